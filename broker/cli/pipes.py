"""Standard output whose reader may end before the command, as `head` does."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Write out standard output at the end. If its reader has ended, end quietly, without an error.

    A BrokenPipeError of anything else, such as a connection, is raised.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        silence_output()


def _reader_has_ended() -> bool:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # not a file of the system
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def silence_output() -> None:
    """Let what is still to be written go nowhere: Python flushes it at its end, which must not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
