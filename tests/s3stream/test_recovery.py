"""What a recovered WAL means: live, committed, deleted, fenced, discontinuous."""

from hypothesis import given
from hypothesis import strategies as st

from s3stream.model import StreamBatch, StreamInfo
from s3stream.recovery import plan_recovery
from s3stream.wal_record import RecordKind, WalRecord

NODE = 1


def info(stream_id: int, end: int, *, node: int = NODE) -> StreamInfo:
    return StreamInfo(stream_id, epoch=3, node_id=node, start_offset=0, end_offset=end, snapshot=b"")


def record(at: int, stream_id: int, base: int, end: int, kind: RecordKind = RecordKind.BATCH) -> WalRecord:
    return WalRecord(at, kind, 1, StreamBatch(stream_id, base, end, end - base, -1, b"x"))


def test_records_past_the_committed_end_are_live() -> None:
    records = [record(0, 7, 0, 5), record(100, 8, 0, 2), record(200, 7, 5, 9), record(300, 9, 0, 1)]
    plan = plan_recovery(records, {7: info(7, 5), 8: info(8, 0)}, NODE)
    assert {key: [b.base_offset for b in batches] for key, batches in plan.live.items()} == {7: [5], 8: [0]}
    assert plan.skipped_records == 2
    assert plan.last_wal_offset == 300
    assert not plan.stopped


def test_a_gap_stops_its_stream_alone_and_says_where() -> None:
    records = [record(0, 7, 5, 9), record(100, 8, 0, 2), record(200, 7, 12, 15), record(300, 7, 15, 16)]
    plan = plan_recovery(records, {7: info(7, 5), 8: info(8, 0)}, NODE)
    assert list(plan.live) == [8]
    assert list(plan.stopped) == [7]
    assert plan.stopped[7].wal_offset == 0
    message = "stream 7: the WAL record at offset 200 holds [12, 15), expected one from 9 (committed up to 5)"
    assert str(plan.stopped[7].error) == message


def test_a_record_that_straddles_the_committed_end_is_a_discontinuity() -> None:
    plan = plan_recovery([record(0, 7, 0, 10)], {7: info(7, 5)}, NODE)
    assert "holds [0, 10), expected one from 5" in str(plan.stopped[7].error)


def test_records_of_a_stream_that_another_node_took_over_are_void() -> None:
    plan = plan_recovery([record(0, 7, 5, 9)], {7: info(7, 5, node=2)}, NODE)
    assert plan.fenced == {7}
    assert not plan.live


def test_a_reset_voids_what_lies_before_it() -> None:
    records = [record(0, 7, 0, 9), record(50, 7, 20, 29), record(100, 7, 5, 5, RecordKind.RESET), record(200, 7, 5, 6)]
    plan = plan_recovery(records, {7: info(7, 5)}, NODE)
    assert [b.end_offset for b in plan.live[7]] == [6]
    assert not plan.stopped


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=40), st.data())
def test_any_committed_prefix_leaves_exactly_the_rest(appends: list[tuple[int, int]], data: st.DataObject) -> None:
    ends: dict[int, list[int]] = {}
    records = []
    for at, (stream_id, count) in enumerate(appends):
        base = ends.setdefault(stream_id, [0])[-1]
        ends[stream_id].append(base + count)
        records.append(record(at, stream_id, base, base + count))
    committed = {key: data.draw(st.sampled_from(value)) for key, value in ends.items()}
    plan = plan_recovery(records, {key: info(key, end) for key, end in committed.items()}, NODE)
    assert not plan.stopped
    for stream_id, end in committed.items():
        wanted = [r.batch for r in records if r.batch.stream_id == stream_id and r.batch.base_offset >= end]
        assert list(plan.live.get(stream_id, [])) == wanted
