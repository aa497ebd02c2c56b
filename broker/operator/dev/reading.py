"""Reads records for tests. Clients, listeners and the faults of clients have no part in it."""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.protocol.batch import BatchHeader, iterate_batches
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.protocol.records import ControlType, Record, control_record, decode_records

FETCH_BYTES: Final = 1 << 20
"""Bytes of one read; a larger batch comes whole."""
FETCH_WAIT_MS: Final = 500
"""Time limit of a read; data in objects may take longer, and is read again then."""


def bounds(partition: Partition, *, committed: bool) -> tuple[int, int]:
    """Return the first offset of a partition, and its end: past all records, or past the committed ones."""
    return partition.log_start_offset, partition.last_stable_offset if committed else partition.high_watermark


async def read(
    local: LocalRequests, user: User, topic: str, index: int, offset: int, *, committed: bool
) -> tuple[Sequence[Record], int]:
    """Return some records from an offset on, and the offset to continue at, which is the same if none has come yet.

    With `committed`, records of aborted transactions are left out. Raises KafkaError, and as `LocalRequests.call`.
    """
    wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    answer = await local.call(request, user)
    (data,) = answer.responses[0].partitions
    if data.error_code:
        raise KafkaError(ErrorCode(data.error_code))
    found: list[Record] = []
    for batch, header in _batches(data):
        if batch is not None:
            found += (record for record in decode_records(batch) if record.offset >= offset)
        offset = header.next_offset
    return found, offset


def _batches(data: PartitionData) -> Iterable[tuple[memoryview | None, BatchHeader]]:
    """Yield the batches of an answer with their headers; None for a marker, and for one that was aborted."""
    aborted: dict[int, list[int]] = defaultdict(list)
    """First offsets of each producer's aborted transactions whose markers are still to come."""
    for each in sorted(data.aborted_transactions or (), key=lambda each: each.first_offset):
        aborted[each.producer_id].append(each.first_offset)
    records: Any = data.records
    for piece in records if isinstance(records, list) else [records or b""]:
        for header, batch in iterate_batches(piece):
            first_offsets = aborted[header.producer_id]
            is_aborted = header.is_transactional and first_offsets and first_offsets[0] <= header.base_offset
            if is_aborted and header.is_control and control_record(batch)[0] == ControlType.ABORT:
                first_offsets.pop(0)
            yield None if is_aborted or header.is_control else batch, header


def row(record: Record) -> Sequence[object]:
    """Return a record as JSON has it: offset, time, key, value and headers, whose bytes are in base64."""
    headers = [[name, _text(value)] for name, value in record.headers]
    return [record.offset, record.timestamp_ms, _text(record.key), _text(record.value), headers]


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
