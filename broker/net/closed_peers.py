"""Finds out that a peer has gone whose socket is not read: the end of its data would show only to a reader."""

import select
from collections.abc import Iterable

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def find_closed_peers(descriptors: Iterable[int]) -> set[int]:
    """The sockets among `descriptors` whose peers send nothing more, whatever there is still to be read."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, _GONE)
    return {descriptor for descriptor, _ in poll.poll(0)}
