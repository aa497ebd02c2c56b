"""Standard output whose reader may end before the command, as `head` does."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Write out standard output at the end. If its reader has ended, end quietly, without an error."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        silence_output()


def silence_output() -> None:
    """Let what is still to be written go nowhere: Python flushes it at its end, which must not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
