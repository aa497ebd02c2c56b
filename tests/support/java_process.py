"""A Java process whose classes a test uses from Python, for services that a few calls start."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from anabranch.spark.java import find_java_home
from tests.conftest import QUICK_JVM

STOP_TIMEOUT_S = 60
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


@contextmanager
def java_process(classpath: Sequence[str], *options: str) -> Iterator[JavaGateway]:
    """Start a Java process and yield the way into it. The process ends with the context."""
    port, process = launch_gateway(
        jarpath=str(next(SPARK_JARS.glob("py4j-*.jar"))),
        classpath=":".join(classpath),
        javaopts=["-Xmx200m", *QUICK_JVM.split(), *options],
        die_on_exit=True,
        java_path=str(find_java_home() / "bin" / "java"),
        redirect_stderr=subprocess.DEVNULL,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway
    finally:
        gateway.close()
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        process.stdin.close()
