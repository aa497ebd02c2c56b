"""The daemon of Python workers starts them as PySpark's does, and says nothing of those that were given up."""

import os
import socket
import struct
import subprocess
import sys

import pytest

TIMEOUT_S = 60


def give_up_a_worker(module: str) -> str:
    """Start a daemon, connect and close as a JVM whose query has ended; return what it wrote to standard error."""
    environ = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret"}
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    ) as process:
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            assert struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0] > 0, "a worker's process id"
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "the worker has ended"
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return errors.decode()


@pytest.mark.parametrize(("module", "traces"), [("pyspark.daemon", 1), ("anabranch.spark.python_daemon", 0)])
def test_a_worker_that_is_given_up_leaves_no_trace(module: str, traces: int) -> None:
    errors = give_up_a_worker(module)
    assert (errors.count("Traceback"), "EOFError" in errors) == (traces, traces == 1), errors
