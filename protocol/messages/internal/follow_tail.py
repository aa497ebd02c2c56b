"""FollowTail: a replica reads the newest records of partitions from their leader, which waits until there are some.

A node has one such request under way to each leader, with all partitions that it follows there. It is relayed
(`relay`), so that a leader of an earlier version refuses it and keeps the connection.
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_016


@message
class FollowedPartition:
    topic_id: bytes = wire.uuid("0+")
    index: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    """Epoch under which the replica follows; under any other it gets an error."""
    window_offset: int = wire.int64("0+")
    """First offset that the replica serves of what it was told before; -1: it was told nothing yet."""
    offset: int = wire.int64("0+")
    """Offset from which on it has nothing."""


@message(versions="0", flexible=None)
class FollowTailRequest:
    node_id: int = wire.int32("0+")
    """The replica."""
    wait_ms: int = wire.int32("0+")
    """Longest time to wait for records."""
    bytes_max: int = wire.int32("0+")
    """Limit of the records in the response, and of what comes with them. Aborted transactions exceed it a little."""
    partitions: Sequence[FollowedPartition] = wire.array(FollowedPartition, "0+")


@message
class AbortedRange:
    """An aborted transaction. Both offsets are inclusive; the last one is the marker's."""

    producer_id: int = wire.int64("0+")
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    last_stable_offset: int = wire.int64("0+")
    """Last stable offset after the marker."""


@message
class PartitionTail:
    """Records that follow in a partition, or the reason why the replica must not serve what it has any more."""

    error_code: int = wire.int16("0+")
    high_watermark: int = wire.int64("0+")
    last_stable_offset: int = wire.int64("0+")
    log_start_offset: int = wire.int64("0+")
    aborted: Sequence[AbortedRange] = wire.array(AbortedRange, "0+")
    """Those with an offset in the records, or before them whose marker is not: they were open when those were told."""
    records: bytes = wire.bytes_("0+")
    """Whole batches. The first may begin before the requested offset, if the replica has nothing yet."""


@message(versions="0", flexible=None)
class FollowTailResponse:
    partitions: Sequence[PartitionTail] = wire.array(PartitionTail, "0+")
    """In the order of the request."""
