"""Log compaction of transactional data: a consumer's view before and after, and the markers."""

import os
import random
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.cleaning.execute import BYTES_PER_TURN
from anabranch.compaction.cleaning.transactions import TransactionView
from anabranch.compaction.interface import (
    AbortedRange,
    BatchInfo,
    CleaningHooks,
    CleanPolicy,
    History,
    LastBatch,
    MarkerKind,
)
from anabranch.compaction.service import CompactionService
from anabranch.compaction.settings import CompactionSettings
from anabranch.protocol.batch import HEADER_BYTES, TRANSACTIONAL_MASK, check_crc, parse_batch, write_crc
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker, control_record, decode_records
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import ObjectKind, StreamBatch, StreamInfo
from anabranch.wal.interface import Buffer
from tests.compaction.sets.test_run import every_object_is_accounted_for
from tests.support.catalog_node import UploadingNode, uploading_node

SO, SSO = ObjectKind.SO, ObjectKind.SSO
RETENTION_MS = 1_000
POLICY = CleanPolicy(dirty_ratio_min=0.0, lag_ms_min=0, lag_ms_max=1 << 60, delete_retention_ms=RETENTION_MS)
KV = tuple[bytes, bytes | None]


@dataclass
class TransactionalStream:
    """A partition's owner: appends, and keeps the state of transactions and producers."""

    made: UploadingNode
    stream: int
    pending: list[StreamBatch] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedRange] = field(default_factory=list)
    last: dict[int, LastBatch] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def history(self, info: StreamInfo) -> History:
        """The history at the last upload. These tests append nothing between an upload and a cleaning."""
        stable = min([info.end_offset, *self.open.values()])
        return History(stable, list(self.aborted), dict(self.last))

    def vacate(self, stream: int, vacated: Sequence[AbortedRange]) -> None:
        assert stream == self.stream
        self.aborted = [each for each in self.aborted if each not in set(vacated)]

    def write(
        self, producer: int, records: Sequence[KV], *, transactional: bool = True, codec: Compression = Compression.NONE
    ) -> None:
        base = self.made.ends[self.stream]
        self.made.ends[self.stream] = base + len(records)
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(records)
        payload = build_batch(
            [Record(key, value, self.made.clock.ms) for key, value in records],
            base_offset=base,
            compression=codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK if transactional else 0,
        )
        self.pending.append(
            StreamBatch(self.stream, base, base + len(records), len(records), self.made.clock.ms, payload)
        )
        if transactional:
            self.open.setdefault(producer, base)
        self.last[producer] = LastBatch(base + len(records) - 1, 0)

    def end(self, producer: int, kind: ControlType) -> None:
        base = self.made.ends[self.stream]
        self.made.ends[self.stream] = base + 1
        payload = build_marker(
            kind,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.made.clock.ms,
            base_offset=base,
        )
        self.pending.append(StreamBatch(self.stream, base, base + 1, 1, self.made.clock.ms, payload))
        first = self.open.pop(producer, None)
        if kind is ControlType.ABORT and first is not None:
            self.aborted.append(AbortedRange(producer, first, base))
        self.last.setdefault(producer, LastBatch(-1, 0))

    async def upload(self, kind: ObjectKind = SO) -> None:
        if self.pending:
            await self.made.upload((kind, self.pending))
            self.pending = []

    def service(self, settings: CompactionSettings | None = None, policy: CleanPolicy = POLICY) -> CompactionService:
        cleaning = CleaningHooks(KafkaBatches(), lambda: {self.stream: policy}, self.history, self.vacate)
        return CompactionService(replace(self.made.compaction_context(settings), cleaning=cleaning))

    async def consume(self, *, committed: bool, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
        """Records that Apache Kafka's consumer returns from `start` to the last stable offset (or the end)."""
        end = min([self.made.ends[self.stream], *self.open.values()]) if committed else self.made.ends[self.stream]
        batches = [b for b in (await self.made.contents())[self.stream] if start < b.end_offset <= end]
        told = sorted((a for a in self.aborted if a.last_offset >= start), key=lambda a: a.first_offset)
        filtered: set[int] = set()
        found = []
        for batch in batches:
            header = parse_batch(batch.payload)
            check_crc(batch.payload, header)
            assert header.next_offset == batch.end_offset
            assert header.record_count == batch.record_count
            while committed and told and told[0].first_offset <= header.last_offset:
                filtered.add(told.pop(0).producer_id)
            if header.is_control:
                if header.record_count and control_record(batch.payload)[0] == ControlType.ABORT:
                    filtered.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in filtered:
                continue
            found += [(r.offset, r.key, r.value) for r in decode_records(batch.payload) if r.offset >= start]
        return found

    async def table(self, *, committed: bool = True) -> dict[bytes | None, bytes]:
        found = {key: value for _, key, value in await self.consume(committed=committed)}
        return {key: value for key, value in found.items() if value is not None}

    async def batches(self) -> list[tuple[int, int, str]]:
        """Base offset, producer and kind of each batch."""
        found = []
        for batch in (await self.made.contents())[self.stream]:
            header = parse_batch(batch.payload)
            what = "data"
            if header.is_control:
                what = ControlType(control_record(batch.payload)[0]).name if header.record_count else "empty marker"
            found.append((header.base_offset, header.producer_id, what if header.record_count else "empty"))
        return found


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[TransactionalStream]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        (stream,) = await made.start(1)
        yield TransactionalStream(made, stream)


async def clean(log: TransactionalStream, *, after_ms: int = 0) -> None:
    """One cleaning: something new makes it worthwhile."""
    log.made.clock.ms += after_ms
    log.write(99, [(b"tick", b"%d" % log.made.ends[log.stream])], transactional=False)
    await log.upload()
    summary = await log.service().run_once()
    assert (summary.streams_cleaned, summary.errors) == (1, [])


async def test_records_of_aborted_transactions_go_and_their_marker_follows(log: TransactionalStream) -> None:
    log.write(1, [(b"a", b"old"), (b"b", b"old")], transactional=False)
    log.write(7, [(b"a", b"aborted"), (b"c", b"aborted")])
    log.end(7, ControlType.ABORT)
    log.write(7, [(b"b", b"new")])
    log.end(7, ControlType.COMMIT)
    log.write(1, [(b"z", b"1")], transactional=False)
    expected = {b"a": b"old", b"b": b"new", b"z": b"1"}
    await clean(log)
    assert await log.batches() == [
        (0, 1, "data"),
        (4, 7, "ABORT"),
        (5, 7, "data"),
        (6, 7, "COMMIT"),
        (7, 1, "data"),
        (8, 99, "data"),
    ]
    assert log.aborted, "its data was there a moment ago"
    assert expected.items() <= (await log.table()).items()
    assert expected.items() <= (await log.table(committed=False)).items()
    # The next cleaning meets only the marker: the owner forgets the transaction. The one after dates the marker.
    await clean(log)
    assert log.aborted == []
    await clean(log)
    await clean(log, after_ms=RETENTION_MS - 1)
    assert (4, 7, "ABORT") in await log.batches()
    await clean(log, after_ms=1)
    assert [each[2] for each in await log.batches() if each[1] == 7] == ["data", "COMMIT"]
    for start in range(log.made.ends[log.stream]):
        found = {key: value for _, key, value in await log.consume(committed=True, start=start)}
        assert (b"b" in found) == (start <= 5)
    await every_object_is_accounted_for(log.made)


async def test_an_abort_stays_known_as_long_as_there_is_data_that_cannot_be_read(log: TransactionalStream) -> None:
    """A read-committed consumer skips such a batch, and must continue to skip it."""
    log.write(7, [(b"a", b"aborted")])
    payload = bytearray(log.pending[-1].payload)
    payload[HEADER_BYTES] = 0xFF
    write_crc(payload)
    log.pending[-1] = log.pending[-1]._replace(payload=payload)
    log.end(7, ControlType.ABORT)
    for _ in range(4):
        await clean(log, after_ms=RETENTION_MS)
    assert (await log.batches())[:2] == [(0, 7, "data"), (1, 7, "ABORT")]
    assert log.aborted
    assert b"tick" in await log.table()


async def test_a_commit_marker_stays_as_long_as_its_data(log: TransactionalStream) -> None:
    log.write(7, [(b"a", b"1")])
    log.write(8, [(b"x", b"1")])
    log.end(7, ControlType.COMMIT)
    log.end(8, ControlType.COMMIT)
    for _ in range(3):
        await clean(log, after_ms=2 * RETENTION_MS)
    assert (await log.batches())[:4] == [(0, 7, "data"), (1, 8, "data"), (2, 7, "COMMIT"), (3, 8, "COMMIT")]
    # Superseded, but the end of their producers' sequences: kept empty, and so their markers.
    log.write(1, [(b"a", b"2"), (b"x", b"2")], transactional=False)
    for _ in range(3):
        await clean(log, after_ms=2 * RETENTION_MS)
    assert (await log.batches())[:4] == [(0, 7, "empty"), (1, 8, "empty"), (2, 7, "COMMIT"), (3, 8, "COMMIT")]
    # The producers are forgotten.
    del log.last[7], log.last[8]
    await clean(log, after_ms=2 * RETENTION_MS)
    assert [each[2] for each in await log.batches() if each[1] in {7, 8}] == ["COMMIT", "COMMIT"]
    await clean(log)
    await clean(log, after_ms=RETENTION_MS)
    assert [each for each in await log.batches() if each[1] in {7, 8}] == []
    assert (await log.table())[b"a"] == b"2"


async def test_nothing_at_or_past_the_last_stable_offset_is_cleaned(log: TransactionalStream) -> None:
    log.write(1, [(b"a", b"1")], transactional=False)
    log.write(1, [(b"a", b"2")], transactional=False)
    await log.upload()
    log.write(7, [(b"a", b"open")])
    log.write(1, [(b"b", b"1")], transactional=False)
    log.write(1, [(b"b", b"2")], transactional=False)
    await log.upload()
    assert (await log.service().run_once()).records_removed == 1
    assert [r[1:] for r in await log.consume(committed=False)] == [
        (b"a", b"2"),
        (b"a", b"open"),
        (b"b", b"1"),
        (b"b", b"2"),
    ]
    log.end(7, ControlType.ABORT)
    await log.upload()
    assert (await log.service().run_once()).records_removed == 2
    assert await log.table() == {b"a": b"2", b"b": b"2"}


async def test_a_stream_whose_state_cannot_be_read_is_left_alone(log: TransactionalStream) -> None:
    def broken(_: StreamInfo) -> History:
        raise CorruptObject("snapshot of version 99")

    log.write(1, [(b"a", b"1")], transactional=False)
    log.write(1, [(b"a", b"2")], transactional=False)
    await log.upload()
    cleaning = CleaningHooks(KafkaBatches(), lambda: {log.stream: POLICY}, broken)
    summary = await CompactionService(replace(log.made.compaction_context(), cleaning=cleaning)).run_once()
    assert (summary.streams_cleaned, summary.errors) == (0, [])
    assert len(await log.consume(committed=True)) == 2


async def test_transactions_that_begin_before_or_end_after_the_part_that_fits(log: TransactionalStream) -> None:
    """The key map is full again and again, amid transactions."""
    log.write(7, [(b"k%d" % at, b"aborted") for at in range(3)])
    log.write(8, [(b"k%d" % at, b"8") for at in range(3)])
    for at in range(20):
        log.write(1, [(b"p%d" % at, b"1"), (b"k0", b"%d" % at)], transactional=False)
        log.write(7, [(b"k1", b"aborted")])
    log.end(8, ControlType.COMMIT)
    log.end(7, ControlType.ABORT)
    log.write(7, [(b"k2", b"7")])
    log.end(7, ControlType.COMMIT)
    await log.upload()
    expected = await log.table()
    assert expected[b"k1"] == b"8"
    service = log.service(CompactionSettings(clean_keys_bytes_max=200 * 6, read_bytes_max=1_000))
    runs = 0
    while (await service.run_once()).streams_cleaned:
        runs += 1
        assert await log.table() == expected
    assert runs > 2
    assert all(value != b"aborted" for _, _, value in await log.consume(committed=False))


async def test_data_before_the_first_stream_object_holds_tombstones_and_markers_back(log: TransactionalStream) -> None:
    """An object shared by many streams still has an old value: the record that hides it must not be removed earlier."""
    log.write(1, [(b"a", b"1")], transactional=False)
    await log.upload(SSO)
    log.write(1, [(b"a", None)], transactional=False)
    log.write(2, [(b"z", b"1")], transactional=False)
    await log.upload()
    for at in range(3):
        log.write(2, [(b"z", b"%d" % at)], transactional=False)
        await log.upload()
        log.made.clock.ms += 2 * RETENTION_MS
        await log.service(CompactionSettings(force_split_ms=1 << 60), replace(POLICY, lag_ms_max=1 << 62)).run_timed()
        assert await log.table() == {b"z": b"%d" % at}
    # It is split off when it is old enough, and then cleaned.
    await log.service().run_once()
    assert await log.table() == {b"z": b"2"}
    assert b"1" not in [value for _, key, value in await log.consume(committed=False) if key == b"a"]


def random_step(rng: random.Random, log: TransactionalStream, models: Mapping[int, dict[bytes, bytes | None]]) -> None:
    """One batch or marker of some producer; its records join the model when they count."""
    producer = rng.randrange(1, 6)
    codec = rng.choice([Compression.NONE, Compression.LZ4, Compression.ZSTD])
    records: list[KV] = [
        (b"%d" % rng.randrange(8), None if rng.random() < 0.2 else b"%d" % rng.randrange(1 << 20))
        for _ in range(rng.randint(1, 4))
    ]
    if producer in log.open and rng.random() < 0.5:
        aborts = rng.random() < 0.5
        log.end(producer, ControlType.ABORT if aborts else ControlType.COMMIT)
        if aborts:
            models[producer].clear()
    elif producer > 3 and producer not in log.open:
        log.write(producer, records, transactional=False, codec=codec)
    else:
        log.write(producer, records, codec=codec)


@pytest.mark.parametrize("seed", range(100 if os.environ.get("ANABRANCH_SOAK") else 4))
async def test_any_history_looks_the_same_to_who_reads_what_is_committed(log: TransactionalStream, seed: int) -> None:
    rng = random.Random(seed)
    service = log.service(
        CompactionSettings(clean_keys_bytes_max=rng.choice([200 * 4, 1 << 20]), read_bytes_max=1_500),
        replace(POLICY, dirty_ratio_min=rng.choice([0.0, 0.5])),
    )
    nothing: dict[int, dict[bytes, bytes | None]] = {each: {} for each in range(6)}
    for _ in range(25):
        for _ in range(rng.randint(1, 8)):
            random_step(rng, log, nothing)
        await log.upload(rng.choice([SO, SO, SSO]))
        before = await log.table()
        if rng.random() < 0.2 and log.last:
            del log.last[rng.choice(sorted(log.last))]
        log.made.clock.ms += rng.randint(0, RETENTION_MS)
        summary = await (service.run_once() if rng.random() < 0.6 else service.run_timed())
        assert not summary.errors
        assert await log.table() == before
        aborted = {each.first_offset for each in log.aborted}
        assert len(aborted) == len(log.aborted)
    for producer in sorted(log.open):
        log.end(producer, ControlType.COMMIT)
    await log.upload()
    expected = await log.table()
    log.last.clear()
    service = log.service()
    for _ in range(6):
        log.write(99, [(b"tick", b"%d" % log.made.ends[log.stream])], transactional=False)
        await log.upload()
        await service.run_once()
        log.made.clock.ms += 2 * RETENTION_MS
    found = await log.table()
    found.pop(b"tick")
    assert found == expected
    assert await log.table() == await log.table(committed=False)
    assert not log.aborted
    assert all(kind != "ABORT" for _, _, kind in await log.batches())
    # One record per key and no tombstones: nothing else is left.
    records = await log.consume(committed=False)
    assert len(records) == len({key for _, key, _ in records}) == len(expected) + 1
    assert service.stats.records_removed > 0
    await every_object_is_accounted_for(log.made)


# the pure half


def test_aborted_data_is_told_by_its_offset() -> None:
    view = TransactionView([AbortedRange(7, 20, 30), AbortedRange(7, 0, 10), AbortedRange(8, 5, 1 << 40)])
    assert view.find_aborted(7, 0) == AbortedRange(7, 0, 10)
    assert view.find_aborted(7, 11) is None
    assert view.find_aborted(7, 19) is None
    assert view.find_aborted(7, 30) == AbortedRange(7, 20, 30)
    assert view.find_aborted(8, 1 << 39) == AbortedRange(8, 5, 1 << 40)
    assert view.find_aborted(9, 0) is None


def test_markers_go_when_nothing_needs_them() -> None:
    view = TransactionView([AbortedRange(7, 0, 10), AbortedRange(7, 20, 30)])
    assert view.on_data(7, 5)
    assert not view.on_marker(MarkerKind.ABORT, 7, 10)
    assert view.vacated == []
    assert not view.on_data(7, 15)
    assert not view.on_marker(MarkerKind.COMMIT, 7, 16)
    assert view.on_marker(MarkerKind.COMMIT, 7, 17)
    assert not view.on_marker(MarkerKind.ABORT, 7, 30)
    assert view.vacated == [AbortedRange(7, 20, 30)]
    assert view.on_marker(MarkerKind.ABORT, 7, 40)
    assert view.on_marker(None, 7, 41)
    assert not view.on_marker(MarkerKind.OTHER, 7, 42)


@pytest.mark.parametrize("codec", list(Compression)[1:])
async def test_batches_that_unfold_to_too_much_stay_as_they_are(log: TransactionalStream, codec: Compression) -> None:
    """A topic that was not compacted before may contain them; they must neither fill the memory nor stop compaction."""
    settings = replace(CompactionSettings(), memory_bytes=1 << 20)
    log.write(1, [(b"a", b"old"), (b"b", b"old")], transactional=False)
    log.write(1, [(b"a", bytes(8 << 20))], transactional=False, codec=codec)
    log.write(1, [(b"k", b"")] * 2_000, transactional=False, codec=codec)
    log.write(1, [(b"a", b"new"), (b"b", None)], transactional=False)
    await log.upload()
    before = [batch.payload for batch in (await log.made.contents())[log.stream]]
    service = log.service(settings)
    for _ in range(2):
        summary = await service.run_once()
        assert summary.errors == []
    assert service.stats.streams_cleaned == 1
    assert service.stats.batches_too_large == 2
    assert service.stats.records_removed == 2, "of the batch that can be looked into"
    after = [batch.payload for batch in (await log.made.contents())[log.stream]]
    assert after[:2] == before[1:3]
    await every_object_is_accounted_for(log.made)


async def test_large_batches_are_cleaned_beside_the_loop(
    log: TransactionalStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[tuple[bool, int]] = []
    describe = KafkaBatches.describe

    def watched(self: KafkaBatches, payload: Buffer, bytes_max: int) -> BatchInfo | None:
        described.append((threading.current_thread() is threading.main_thread(), bytes_max))
        return describe(self, payload, bytes_max)

    monkeypatch.setattr(KafkaBatches, "describe", watched)
    log.write(1, [(b"a", bytes(4 << 20))], transactional=False, codec=Compression.ZSTD)
    log.write(1, [(b"a", b"new")], transactional=False)
    await clean(log)
    assert [key for _, key, _ in await log.consume(committed=False)] == [b"a", b"tick"]
    assert {bytes_max for is_loop, bytes_max in described if is_loop} == {BYTES_PER_TURN}
    assert any(not is_loop for is_loop, _ in described)
