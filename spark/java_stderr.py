"""Copies the standard error of Spark's JVM, without the one line that Java prints at each start.

Spark starts Java with an incubator module, which MLlib uses, and Java has no option to suppress that line. This runs in
a separate process, which ends with the JVM: the JVM may outlive its driver, and its later output matters, too. Standard
library only, since the process starts without other packages.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from io import BytesIO

NOTICE = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
READ_BYTES = 1 << 16


def start_copier() -> "subprocess.Popen[bytes]":
    """Start a process that copies its standard input to this process's standard error, without the notice.

    Its session is its own, so that Ctrl-C does not end it before the JVM.
    """
    command = [sys.executable, "-I", "-S", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def without_notice(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what the chunks contain, without lines that are the notice.

    Only what may become the notice waits for the rest of its line.
    """
    held, at_start = b"", True
    for chunk in chunks:
        lines, held = BytesIO(held + chunk), b""
        for line in lines:
            if at_start and NOTICE.startswith(line):
                held = b"" if line == NOTICE else line
            else:
                at_start = line.endswith(b"\n")
                yield line
    if held:
        yield held


def main() -> None:
    """Copy until the JVM, and all that it has given its standard error to, have ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for part in without_notice(iter(lambda: os.read(0, READ_BYTES), b"")):
        os.write(2, part)


if __name__ == "__main__":
    main()
