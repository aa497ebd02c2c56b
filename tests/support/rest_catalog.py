"""Iceberg's own REST catalog over an SQLite file, at a free port of loopback, in a Java process of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark.java import find_java_home
from tests.support.tools import rest_catalog as jars_folder

STOP_TIMEOUT_S = 60
IN_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "commons-logging-*.jar")


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Start the catalog with its tables in `folder`, yield its address, stop it at the end. Skips if not installed."""
    spark = Path(pyspark.__file__).parent / "jars"
    jars = [str(jars_folder() / "*"), *(str(jar) for name in IN_SPARK for jar in spark.glob(name))]
    port, process = launch_gateway(
        jarpath=str(next(spark.glob("py4j-*.jar"))),
        classpath=":".join(jars),
        javaopts=["-Xmx200m", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
        java_path=str(find_java_home() / "bin" / "java"),
        redirect_stderr=subprocess.DEVNULL,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield _start(gateway, folder)
    finally:
        gateway.close()
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _start(gateway: JavaGateway, folder: Path) -> str:
    java = gateway.jvm
    backend = java.org.apache.iceberg.jdbc.JdbcCatalog()
    backend.setConf(java.org.apache.hadoop.conf.Configuration())
    settings = {
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "warehouse": str(folder / "warehouse"),
        "jdbc.schema-version": "V1",
    }
    properties = java.java.util.HashMap()
    for name, value in settings.items():
        properties.put(name, value)
    backend.initialize("backend", properties)
    servlet = java.org.apache.iceberg.rest.RESTCatalogServlet(java.org.apache.iceberg.rest.RESTCatalogAdapter(backend))
    handler = java.org.eclipse.jetty.servlet.ServletContextHandler()
    handler.addServlet(java.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    server = java.org.eclipse.jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(handler)
    server.start()
    return f"http://127.0.0.1:{server.getURI().getPort()}"
