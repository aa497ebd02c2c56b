"""The last records of partitions, counted as consumers see them: without markers, gaps and aborted transactions.

The batches before the end are read backwards in windows, of which each is twice as large as the one before, until they
have enough records. Every failure is a ClientError.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from anabranch.client.cluster import Cluster
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.batch import BatchHeader, iterate_batches
from anabranch.protocol.errors import CorruptBatch
from anabranch.protocol.messages.fetch import PartitionData
from anabranch.protocol.messages.metadata import MetadataResponseTopic
from anabranch.protocol.records import decode_records

FETCH_BYTES: Final = 8 << 20


def find_last(
    cluster: Cluster,
    topic: MetadataResponseTopic,
    index: int,
    *,
    first: int,
    end: int,
    count: int,
    read_committed: bool,
) -> int:
    """Return the offset of the `count`th last record between two offsets; the first one if there are fewer."""
    start, width = end, count
    while count and start > first:
        until, start = start, max(first, start - width)
        width *= 2
        found = list(_window(cluster, topic, index, start, until, read_committed=read_committed))
        for offsets in reversed(found):
            if count <= len(offsets):
                return offsets[-count]
            count -= len(offsets)
    return start


def _window(
    cluster: Cluster, topic: MetadataResponseTopic, index: int, start: int, until: int, *, read_committed: bool
) -> Iterator[Sequence[int]]:
    """Yield the offsets of the records of each batch from `start` on and before `until`."""
    offset = start
    while offset < until:
        answer = cluster.fetch(topic, index, offset, bytes_max=FETCH_BYTES, read_committed=read_committed)
        before = offset
        for header, batch in _visible(answer, read_committed=read_committed):
            offset = header.next_offset
            if batch is None:
                continue
            if header.record_count == header.last_offset_delta + 1:
                yield range(max(header.base_offset, start), min(header.next_offset, until))
            else:  # compaction has removed records
                yield [each.offset for each in decode_records(batch) if start <= each.offset < until]
            if offset >= until:
                return
        if offset == before:
            reason = error_text(answer.error_code)
            raise ClientError(f"{topic.name}-{index}: offset {offset} cannot be read: {reason}")


def _visible(answer: PartitionData, *, read_committed: bool) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """Yield the batches of an answer; None for one whose records no consumer sees."""
    aborted = sorted(answer.aborted_transactions or (), key=lambda each: each.first_offset) if read_committed else []
    open_aborted: set[int] = set()
    """Producers whose transaction at this place was aborted."""
    records: Any = answer.records or b""  # received in one piece
    batches = iterate_batches(records)
    while True:
        try:
            header, batch = next(batches)
        except (StopIteration, CorruptBatch):  # brokers may cut the last one; a damaged one is the first of an answer
            return
        while aborted and aborted[0].first_offset <= header.last_offset:
            open_aborted.add(aborted.pop(0).producer_id)
        if header.is_control:
            open_aborted.discard(header.producer_id)
        is_hidden = header.is_control or (header.is_transactional and header.producer_id in open_aborted)
        yield header, None if is_hidden else batch
