"""Classification of recovered WAL records: live, committed, deleted, fenced, discontinuous."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.append.wal_record import RecordKind, WalRecord
from anabranch.s3stream.errors import UnknownStreams
from anabranch.s3stream.model import StreamBatch, StreamInfo, StreamOwner
from tests.support.storage import plan_recovery

NODE = 1
WAL = "a1"
OWNER = StreamOwner(NODE, 1, WAL)
NEXT = 10
"""Stream ids below this were created; missing ones were deleted."""


def info(stream_id: int, end: int, *, node: int = NODE, wal: str = WAL) -> StreamInfo:
    return StreamInfo(stream_id, epoch=3, node_id=node, start_offset=0, end_offset=end, snapshot=b"", wal_id=wal)


def record(at: int, stream_id: int, base: int, end: int, kind: RecordKind = RecordKind.BATCH) -> WalRecord:
    return WalRecord(at, kind, 1, StreamBatch(stream_id, base, end, end - base, -1, b"x"))


def test_records_past_the_committed_end_are_live() -> None:
    records = [record(0, 7, 0, 5), record(100, 8, 0, 2), record(200, 7, 5, 9), record(300, 9, 0, 1)]
    plan = plan_recovery(records, {7: info(7, 5), 8: info(8, 0)}, OWNER, next_stream_id=NEXT)
    assert {key: [b.base_offset for b in batches] for key, batches in plan.live.items()} == {7: [5], 8: [0]}
    assert plan.skipped_records == 2
    assert plan.last_wal_offset == 300
    assert not plan.stopped


def test_a_gap_stops_its_stream_alone_and_says_where() -> None:
    records = [record(0, 7, 5, 9), record(100, 8, 0, 2), record(200, 7, 12, 15), record(300, 7, 15, 16)]
    plan = plan_recovery(records, {7: info(7, 5), 8: info(8, 0)}, OWNER, next_stream_id=NEXT)
    assert list(plan.live) == [8]
    assert list(plan.stopped) == [7]
    assert plan.stopped[7].wal_offset == 0
    message = "stream 7: the WAL record at offset 200 holds [12, 15), expected one from 9 (committed up to 5)"
    assert str(plan.stopped[7].error) == message


def test_a_record_that_straddles_the_committed_end_is_a_discontinuity() -> None:
    plan = plan_recovery([record(0, 7, 0, 10)], {7: info(7, 5)}, OWNER, next_stream_id=NEXT)
    assert "holds [0, 10), expected one from 5" in str(plan.stopped[7].error)


@pytest.mark.parametrize(("node", "wal"), [(2, "b2"), (2, ""), (2, WAL), (-1, ""), (NODE, "b2")])
def test_records_of_a_stream_that_this_log_has_lost_are_void(node: int, wal: str) -> None:
    """Another node or log has it, or may have had it: the offsets past its end may belong to other records."""
    found = info(7, 5, node=node, wal=wal)
    plan = plan_recovery([record(0, 7, 3, 5), record(9, 7, 5, 9)], {7: found}, OWNER, next_stream_id=NEXT)
    assert plan.fenced == {7}
    assert not plan.live
    committed = plan_recovery([record(0, 7, 3, 5)], {7: found}, OWNER, next_stream_id=NEXT)
    assert not committed.fenced, "nothing is lost with what is committed"


def test_records_of_a_stream_whose_log_was_not_recorded_belong_to_its_owners() -> None:
    plan = plan_recovery([record(0, 7, 5, 9)], {7: info(7, 5, wal="")}, OWNER, next_stream_id=NEXT)
    assert list(plan.live) == [7]


def test_a_deleted_stream_is_skipped_and_one_that_never_was_stops_the_start() -> None:
    deleted = record(0, 9, 0, 5)
    plan = plan_recovery([deleted], {}, OWNER, next_stream_id=NEXT)
    assert (plan.skipped_records, plan.last_wal_offset) == (1, 0)
    unknown = [record(50, 10, 3, 5), record(60, 7, 5, 6), record(70, 10, 5, 9), record(80, 12, 0, 1)]
    with pytest.raises(UnknownStreams) as raised:
        plan_recovery([deleted, *unknown], {7: info(7, 5)}, OWNER, next_stream_id=NEXT)
    assert "(stream 10: 6 records, offsets 3 to 8; stream 12: 1 records, offsets 0 to 0)" in str(raised.value)
    many = [record(at, 20 + at, 0, 1) for at in range(9)]
    with pytest.raises(UnknownStreams, match="stream 24: 1 records, offsets 0 to 0; 4 streams more"):
        plan_recovery(many, {}, OWNER, next_stream_id=NEXT)


def test_a_reset_voids_what_lies_before_it() -> None:
    records = [record(0, 7, 0, 9), record(50, 7, 20, 29), record(100, 7, 5, 5, RecordKind.RESET), record(200, 7, 5, 6)]
    plan = plan_recovery(records, {7: info(7, 5)}, OWNER, next_stream_id=NEXT)
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
    plan = plan_recovery(records, {key: info(key, end) for key, end in committed.items()}, OWNER, next_stream_id=NEXT)
    assert not plan.stopped
    for stream_id, end in committed.items():
        wanted = [r.batch for r in records if r.batch.stream_id == stream_id and r.batch.base_offset >= end]
        assert list(plan.live.get(stream_id, [])) == wanted
