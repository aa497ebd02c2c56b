"""Spark's daemon of Python workers, without tracebacks of workers that their JVM gives up before any work.

When a query ends while the JVM is starting a worker for it, the worker finds its connection closed. PySpark prints a
traceback then, into the standard error of a command whose one line says why the query ended.
"""

import sys
import traceback
from types import SimpleNamespace
from typing import Any

from pyspark import daemon


def print_unexpected() -> None:
    """Print the current error, unless it says that nobody is at the other end of the connection."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        traceback.print_exc()


if __name__ == "__main__":
    pyspark_daemon: Any = daemon
    pyspark_daemon.traceback = SimpleNamespace(print_exc=print_unexpected, format_exc=traceback.format_exc)
    pyspark_daemon.manager()
