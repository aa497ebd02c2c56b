"""The last records of a partition, against logs with markers, gaps and aborted transactions in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import ClientError
from anabranch.client.tail import find_last
from anabranch.protocol.batch import TRANSACTIONAL_MASK, parse_batch
from anabranch.protocol.messages.fetch import AbortedTransaction, PartitionData
from anabranch.protocol.messages.metadata import MetadataResponseTopic
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker

TOPIC = MetadataResponseTopic(name="t")


@dataclass
class Log:
    """A partition, and the requests that read it."""

    batches_max: int = 3
    batches: list[bytearray] = field(default_factory=list)
    end: int = 0
    visible: list[int] = field(default_factory=list)
    """Offsets that a consumer of committed records sees."""
    everything: list[int] = field(default_factory=list)
    """Those that any consumer sees."""
    aborted: list[tuple[AbortedTransaction, int]] = field(default_factory=list)
    """With the offset of the marker."""
    open: dict[int, list[int]] = field(default_factory=dict)
    requests: int = 0

    def append(self, offsets: Sequence[int], producer: int | None = None) -> None:
        """Append a batch with records at these distances from its base offset."""
        records = [Record(None, b"", 0, offset=self.end + each) for each in offsets]
        producer_id, attributes = (-1, 0) if producer is None else (producer, TRANSACTIONAL_MASK)
        self._add(build_batch(records, base_offset=self.end, producer_id=producer_id, attributes=attributes))
        written = [each.offset for each in records]
        self.everything += written
        if producer is None:
            self.visible += written
        else:
            self.open.setdefault(producer, []).extend(written)

    def finish(self, producer: int, *, commits: bool) -> None:
        """Append the marker of a producer's transaction."""
        written = self.open.pop(producer, [])
        if not written:
            return
        kind = ControlType.COMMIT if commits else ControlType.ABORT
        ids = {"producer_id": producer, "producer_epoch": 0, "coordinator_epoch": 0}
        if commits:
            self.visible += written
        else:
            first = AbortedTransaction(producer_id=producer, first_offset=written[0])
            self.aborted.append((first, self.end))
        self._add(build_marker(kind, timestamp_ms=0, base_offset=self.end, **ids))

    def _add(self, batch: bytearray) -> None:
        self.batches.append(batch)
        self.end = parse_batch(batch).next_offset

    def fetch(
        self, _topic: object, _index: int, offset: int, *, bytes_max: int, read_committed: bool = False
    ) -> PartitionData:
        """Answer as a broker does, with few batches, of which the last one is cut."""
        self.requests += 1
        found = [each for each in self.batches if parse_batch(each).next_offset > offset]
        records = b"".join(found[: self.batches_max]) + b"".join(found[self.batches_max : self.batches_max + 1])[:65]
        last = parse_batch(found[: self.batches_max][-1]).last_offset if found else offset
        aborted = [each for each, marker in self.aborted if each.first_offset <= last and marker >= offset]
        return PartitionData(records=records, aborted_transactions=aborted if read_committed else None)


def last(log: Any, count: int, *, read_committed: bool = True, first: int = 0) -> int:
    return find_last(log, TOPIC, 0, first=first, end=log.end, count=count, read_committed=read_committed)


STEPS = st.lists(
    st.tuples(st.just("append"), st.none() | st.integers(1, 2), st.sampled_from([(0,), (0, 1, 2), (0, 3), (2, 5)]))
    | st.tuples(st.just("finish"), st.integers(1, 2), st.booleans()),
    min_size=1,
    max_size=20,
)


@given(steps=STEPS, count=st.integers(1, 30), batches_max=st.integers(1, 4), first=st.integers(0, 5))
def test_the_last_records_are_those_that_a_consumer_sees(
    steps: list[Any], count: int, batches_max: int, first: int
) -> None:
    log = Log(batches_max)
    for kind, producer, what in steps:
        if kind == "append":
            log.append(what, producer)
        else:
            log.finish(producer, commits=what)
    for producer in (1, 2):
        log.finish(producer, commits=producer == 1)
    for read_committed, seen in ((True, log.visible), (False, log.everything)):
        kept = sorted(each for each in seen if each >= first)
        expected = kept[-count:]
        found = last(log, count, read_committed=read_committed, first=first)
        assert [each for each in kept if each >= found] == expected


def test_as_few_records_are_read_as_are_wanted() -> None:
    log = Log()
    for _ in range(1_000):
        log.append([0])
    assert last(log, 1) == 999
    assert log.requests == 1
    assert last(log, 0) == 1_000
    assert log.requests == 1


def test_what_cannot_be_read_is_an_error() -> None:
    class Away(Log):
        def fetch(self, *_: Any, **__: Any) -> PartitionData:
            return PartitionData(error_code=6)

    log = Away()
    log.append([0])
    with pytest.raises(ClientError, match="t-0: offset 0 cannot be read: NOT_LEADER_OR_FOLLOWER"):
        last(log, 1)
