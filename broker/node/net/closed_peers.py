"""Detection of peers that have closed while their socket is not read, and so EOF cannot be seen."""

import select
from collections.abc import Iterable

from anabranch.platform import POLLRDHUP

_GONE = POLLRDHUP | select.POLLHUP | select.POLLERR


def find_closed_peers(descriptors: Iterable[int]) -> set[int]:
    """Return the sockets among `descriptors` whose peers have closed, even if there is unread data."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, _GONE)
    return {descriptor for descriptor, _ in poll.poll(0)}
