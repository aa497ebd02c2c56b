"""The daemon of Python workers says nothing of those that their JVM gives up before any work."""

import os
import select
import socket
import struct
import subprocess
import sys

import pytest

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
