"""A partition that comes back knows what it knew: from a snapshot, from the log's batches, and from both."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.partitions.replay import replay_recovered
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.record_scan import RECORD_BYTES_MAX
from anabranch.protocol.records import ControlType
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.tasks import STEPS_PER_TURN, Turns
from anabranch.wal.interface import Durable
from tests.support.raw_client import batch_of

NOW = 1_700_000_000_000
CONFIG = TopicConfig(
    max_message_bytes=1 << 20,
    log_append_time=False,
    timestamp_before_max_ms=1 << 62,
    timestamp_after_max_ms=1 << 40,
    compression=None,
    compression_level=None,
    cleaning=None,
    retention_ms=-1,
    retention_bytes=-1,
    deletable=True,
    store="local",
    record_bytes_max=RECORD_BYTES_MAX,
)


class MemoryStream:
    """As much of a stream as a partition's state depends on. What is appended is durable at once."""

    def __init__(self, start: int, snapshot: bytes = b"", recovered: tuple[StreamBatch, ...] = ()) -> None:
        self.stream_id, self.leader_epoch, self.label = 7, 3, ""
        self.start_offset = 0
        self.committed_offset = start
        self.snapshot, self.recovered = snapshot, recovered
        self.next_offset = recovered[-1].end_offset if recovered else start
        self.snapshot_source: Any = None
        self.log: list[StreamBatch] = []

    @property
    def confirmed_offset(self) -> int:
        return self.next_offset

    def check_accepts(self) -> None:
        """Accept everything."""

    def append(self, batch: StreamBatch) -> Durable:
        assert batch.base_offset == self.next_offset
        self.log.append(batch)
        self.next_offset = batch.end_offset
        durable = Durable()
        durable.complete()
        return durable


def partition_over(stream: MemoryStream, work: RecordWork) -> Partition:
    return Partition("t", bytes(16), 0, cast("Stream", stream), CONFIG, work, lambda: NOW)


@dataclass(frozen=True)
class Step:
    """A batch that a producer sends, or its transaction's marker."""

    producer_id: int
    epoch: int
    count: int
    transactional: bool
    marker: ControlType | None
    timed: bool


steps = st.lists(
    st.builds(
        Step,
        producer_id=st.sampled_from([-1, 1, 2, 3]),
        epoch=st.integers(0, 3),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        marker=st.sampled_from([None, None, None, ControlType.ABORT, ControlType.COMMIT]),
        timed=st.booleans(),
    ),
    max_size=25,
)


def take(partition: Partition, step: Step) -> None:
    """Append what the step says, with the sequence number that continues the producer's epoch."""
    if step.marker is not None and step.producer_id >= 0:
        _ = partition.append_marker(
            step.marker, producer_id=step.producer_id, producer_epoch=step.epoch, coordinator_epoch=0
        )
        return
    fields: dict[str, int] = {}
    if step.producer_id >= 0:
        entry = partition.producers.entries.get(step.producer_id)
        goes_on = entry is not None and entry.epoch == step.epoch and entry.batches
        sequence = entry.batches[-1].last_sequence + 1 if entry is not None and goes_on else 0
        fields = {"producer_id": step.producer_id, "producer_epoch": step.epoch, "base_sequence": sequence}
        fields["attributes"] = TRANSACTIONAL_MASK if step.transactional else 0
    batch = batch_of(*[b"x"] * step.count, timestamp_ms=NOW if step.timed else -1, **fields)
    _ = partition.append(memoryview(batch), verify=lambda *_: True)


@given(steps, st.integers(0, 25), st.sampled_from([0, 2**31 - 3, 2**32 - 3, 2**33]))
async def test_it_is_the_state_of_a_partition_that_never_stopped(steps: list[Step], uploaded: int, begin: int) -> None:
    work = RecordWork(1 << 20)
    try:
        stream = MemoryStream(begin)
        partition = partition_over(stream, work)
        snapshot, committed, kept = b"", begin, 0
        for at, step in enumerate(steps):
            if at == uploaded:
                snapshot, committed, kept = stream.snapshot_source(), stream.next_offset, len(stream.log)
            before = stream.next_offset
            try:
                take(partition, step)
            except KafkaError:
                assert stream.next_offset == before, "a refusal leaves nothing"
        again = MemoryStream(committed, snapshot, tuple(stream.log[kept:]))
        recovered = partition_over(again, work)
        assert again.snapshot_source() == stream.snapshot_source()
        assert recovered.producers.entries == partition.producers.entries
        assert recovered.transactions.open == partition.transactions.open
        assert recovered.transactions.aborted == partition.transactions.aborted
        assert recovered.last_stable_offset == partition.last_stable_offset
        assert (recovered.max_timestamp, recovered.untimed_end) == (partition.max_timestamp, partition.untimed_end)
    finally:
        work.close()


async def test_others_get_their_turns_while_what_was_recovered_is_replayed() -> None:
    count = 3 * STEPS_PER_TURN
    payload = bytes(batch_of(b"x", timestamp_ms=NOW, producer_id=1, producer_epoch=0, base_sequence=0))
    stream = MemoryStream(0, recovered=tuple(StreamBatch(7, at, at + 1, 1, NOW, payload) for at in range(count)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    state = await replay_recovered(cast("Stream", stream), Turns(), lambda: NOW)
    counting.cancel()
    assert turns == 3
    assert state.producers.entries.keys() == {1}
    work = RecordWork(1 << 20)
    partition = Partition("t", bytes(16), 0, cast("Stream", stream), CONFIG, work, lambda: NOW, state)
    work.close()
    assert partition.producers is state.producers
