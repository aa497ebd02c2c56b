"""Bytes of record batches between clients and this node, by the rack of the client and by stream.

A client tells its rack as `client.rack` in Fetch (KIP-392), and any client as `rack=ID` in its client id, as producers
have no other way. A connection counts where its client is; until that is known, in the rack with the empty name.
Counting costs one entry of a dict for a batch that is received, or a partition that is sent.
"""

import re
from collections.abc import Container
from typing import Final

UNKNOWN_RACK: Final = ""
RACKS_MAX: Final = 64
"""Racks that are told apart. Clients of others count as those of no known rack."""
RACK_CHARS_MAX: Final = 255
"""Longest rack, as clients name it: a longer one is not known."""
DELETED: Final = -1
"""Key of all streams that do not exist any more."""
_RACK: Final = re.compile(r"(?:^|\W)rack=([\w.:/-]+)")


class RackTraffic:
    """Bytes since the start of the node, by stream."""

    __slots__ = ("rack", "received", "sent")

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self.received: dict[int, int] = {}
        self.sent: dict[int, int] = {}

    def note_received(self, stream_id: int, size_bytes: int) -> None:
        """Count a batch. Its twin is in `native/src/lane.rs`."""
        received = self.received
        received[stream_id] = received.get(stream_id, 0) + size_bytes

    def note_sent(self, stream_id: int, size_bytes: int) -> None:
        """Count the batches of a partition in an answer."""
        sent = self.sent
        sent[stream_id] = sent.get(stream_id, 0) + size_bytes

    def exchanged(self, stream_id: int) -> int:
        """Return the bytes of a stream in both directions."""
        return self.received.get(stream_id, 0) + self.sent.get(stream_id, 0)

    @property
    def received_bytes(self) -> int:
        """Sum of all streams."""
        return sum(self.received.values())

    @property
    def sent_bytes(self) -> int:
        """Sum of all streams."""
        return sum(self.sent.values())


class ClientTraffic:
    """Traffic of a node's clients, by rack."""

    def __init__(self) -> None:
        self.racks: dict[str, RackTraffic] = {UNKNOWN_RACK: RackTraffic(UNKNOWN_RACK)}

    def of(self, rack: str) -> RackTraffic:
        """Return the traffic of a rack."""
        found = self.racks.get(rack)
        if found is None:
            if len(self.racks) > RACKS_MAX or len(rack) > RACK_CHARS_MAX:
                return self.racks[UNKNOWN_RACK]
            found = self.racks[rack] = RackTraffic(rack)
        return found

    @property
    def counts(self) -> int:
        """Number of counts that are kept."""
        return sum(len(each.received) + len(each.sent) for each in self.racks.values())

    def forget_deleted(self, streams: Container[int]) -> None:
        """Put the counts of all streams that are not among these together."""
        for traffic in self.racks.values():
            for counts in (traffic.received, traffic.sent):
                for stream_id in [each for each in counts if each not in streams and each != DELETED]:
                    counts[DELETED] = counts.get(DELETED, 0) + counts.pop(stream_id)


def rack_in(client_id: str | None) -> str:
    """Return the rack that a client id names, as in `orders,rack=eu-1a`; empty if it names none."""
    found = _RACK.search(client_id) if client_id else None
    return found[1] if found else UNKNOWN_RACK
