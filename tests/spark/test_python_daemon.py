"""The daemon's Python workers read no archive of Spark again, and say nothing when they are given up before work."""

import gc
import os
import select
import socket
import struct
import subprocess
import sys
from zipimport import zipimporter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

TIMEOUT_S = 60
ABORT = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which a socket is reset instead of closed."""


def give_up_a_worker(module: str, *, abort: bool) -> str:
    """Start a daemon, connect and close as a JVM whose query has ended; return what went to standard error."""
    environ = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret"}
    command = [sys.executable, "-m", module]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            (worker,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
            ended = os.pidfd_open(worker)
            if abort:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        assert select.select([ended], [], [], TIMEOUT_S)[0], "the worker ends"
        os.close(ended)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return errors.decode()


@pytest.mark.parametrize(("abort", "error"), [(False, "EOFError"), (True, "ConnectionResetError")])
def test_a_worker_that_is_given_up_leaves_no_trace(abort: bool, error: str) -> None:
    assert give_up_a_worker("anabranch.spark.python_daemon", abort=abort) == ""
    of_pyspark = give_up_a_worker("pyspark.daemon", abort=abort)
    assert error in of_pyspark.splitlines()[-1], "else the module can go"


@pytest.mark.spark
def test_a_worker_is_frozen_after_a_task(spark: SparkSession) -> None:
    def look(_: int) -> list[int]:
        keeps_archives = zipimporter.invalidate_caches.__module__ == "anabranch.spark.direct.worker"
        return [int(keeps_archives), gc.get_freeze_count()]

    rows = spark.range(1).select(f.udf(look, "ARRAY<INT>", useArrow=False)("id").alias("found"))
    rows.collect()
    ((keeps_archives, frozen),) = (row["found"] for row in rows.collect())
    assert keeps_archives
    assert frozen > 1_000
