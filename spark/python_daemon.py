"""Spark's daemon of Python workers: those of one JVM start here, and are reused from task to task.

It differs from PySpark's in two ways. Its workers spend 0.15 s of CPU less on each task (see `direct.worker`). And it
prints no traceback of a worker that its JVM gives up before any work: when a query ends while the JVM is starting a
worker for it, the worker finds its connection closed. The traceback would go into the standard error of a command whose
one line says why the query ended.
"""

import socket
import sys
import traceback
from types import SimpleNamespace
from typing import Any

from pyspark import daemon

from anabranch.spark.direct.worker import freeze_worker, keep_archives

pyspark_daemon: Any = daemon
run_worker = pyspark_daemon.worker


def print_unexpected() -> None:
    """Print the current error, unless it says that nobody is at the other end of the connection."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        traceback.print_exc()


def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as PySpark calls it
    """Run one task, and freeze what it imported. Returns an exit code."""
    code = int(run_worker(sock, authenticated))
    freeze_worker()
    return code


if __name__ == "__main__":
    pyspark_daemon.traceback = SimpleNamespace(print_exc=print_unexpected, format_exc=traceback.format_exc)
    pyspark_daemon.worker = worker
    keep_archives()
    pyspark_daemon.manager()
