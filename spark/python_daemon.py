"""Spark's daemon of Python workers, without the traceback of a worker that its JVM gives up before any work.

When a query ends while the JVM is starting a worker for it, the worker finds its connection closed. PySpark prints a
traceback then, into the standard error of a command whose one line says why the query ended.
"""

import socket
from typing import Any

from pyspark import daemon

pyspark_daemon: Any = daemon
start_worker = pyspark_daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as PySpark calls it
    """Run a worker as PySpark does, and return its exit code, also if nobody is at the other end of the connection."""
    try:
        return int(start_worker(sock, authenticated))
    except EOFError:
        return 1


if __name__ == "__main__":
    pyspark_daemon.worker = worker
    pyspark_daemon.manager()
