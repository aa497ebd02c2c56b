"""Aborted transactions in the answer to a Fetch request, and data that left its place while others were loaded."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.api.handlers import fetch_response
from anabranch.broker.kafka.fetch_sessions import FetchTarget
from anabranch.broker.kafka.partitions.transactions import AbortedEntry
from anabranch.protocol.batch import parse_batch
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.model import StreamBatch
from tests.broker.kafka.topics.test_tail_partition import batch, tail_of


def test_an_answer_with_many_aborted_transactions_looks_at_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica does not know of which transactions compaction has left data."""
    batches: list[StreamBatch] = []
    entries: list[AbortedEntry] = []
    for base in range(0, 200, 2):  # data and marker, of two producers in turn; that of every fifth transaction is gone
        producer_id = 1 + base // 2 % 2
        entries.append(AbortedEntry(producer_id, base, base + 1, base + 2))
        for offset in (base, base + 1)[base % 5 == 0 :]:
            payload = build_batch([Record(None, b"v")], base_offset=offset, producer_id=producer_id)
            batches.append(StreamBatch(1, offset, offset + 1, 1, 0, payload))
    parsed: list[Any] = []

    def counted(payload: Any) -> Any:
        parsed.append(payload)
        return parse_batch(payload)

    monkeypatch.setattr(fetch_response, "parse_batch", counted)

    def aborted_between(*_: int) -> Sequence[AbortedEntry]:
        return entries

    partition: Any = SimpleNamespace(
        transactions=SimpleNamespace(aborted_between=aborted_between), is_vacated=lambda _: True
    )
    read: Any = SimpleNamespace(batches=batches, target=SimpleNamespace(fetch_offset=0))
    found = fetch_response._aborted(read, partition)  # noqa: SLF001
    assert [each.first_offset for each in found] == [each.first_offset for each in entries if each.first_offset % 5]
    assert len(parsed) == len(batches)


async def test_batches_that_left_the_window_of_a_tail_are_not_sent() -> None:
    tail, target = tail_of(batch(10), batch(11)), FetchTarget(("t", 0), 10, 1 << 20, -1, -1)
    read = fetch_response.PartitionRead(target, tail)
    read.batches = tail.read(10, 1 << 20, end_offset=12)
    read.refuse_deleted()
    assert len(read.batches) == 2
    tail.evict_first()
    read.refuse_deleted()
    assert (read.batches, read.error) == ((), 0), "their aborted transactions left it, too"
