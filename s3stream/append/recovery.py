"""Plans the recovery of a WAL: which of its records are live. Pure: records in, plan out.

Live records belong to an existing stream that this node owns with this log, and follow its committed end without a gap.
A gap stops the stream and keeps its records in the WAL (invariant 11), for an operator to decide what to do with them.
Records of deleted streams are skipped. Records of streams that the catalog never created end the start: either the WAL
or the catalog is the wrong one, and trimming would destroy what was acknowledged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from anabranch.s3stream.append.wal_record import RecordKind, WalRecord
from anabranch.s3stream.errors import Discontinuity, UnknownStreams
from anabranch.s3stream.model import StreamBatch, StreamInfo, StreamOwner


@dataclass(frozen=True, slots=True)
class StoppedStream:
    """A stream with a gap between what is committed and what was recovered, or inside the latter."""

    error: Discontinuity
    wal_offset: int
    """First WAL record that is not committed: the WAL must not be trimmed past it."""
    last_wal_offset: int = -1
    start_offset: int = 0
    """First offset the stream's uncommitted records hold; there are gaps between it and `end_offset`."""
    end_offset: int = 0
    record_count: int = 0
    """Number of the owner's records that are lost when the stream's WAL records are given up."""
    size_bytes: int = 0

    def add(self, batch: StreamBatch, wal_offset: int) -> "StoppedStream":
        """Return the extent with one more batch."""
        return replace(
            self,
            last_wal_offset=wal_offset,
            start_offset=min(self.start_offset, batch.base_offset) if self.record_count else batch.base_offset,
            end_offset=max(self.end_offset, batch.end_offset),
            record_count=self.record_count + batch.record_count,
            size_bytes=self.size_bytes + batch.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The records of a WAL, sorted by their use."""

    live: Mapping[int, Sequence[StreamBatch]]
    """Batches of each stream, contiguous from its committed end."""
    stopped: Mapping[int, StoppedStream]
    fenced: frozenset[int]
    """Streams that have another log (by now): their records past the end can never be committed."""
    skipped_records: int
    last_wal_offset: int
    """Offset of the last record of any kind; -1 when there is none."""


UNKNOWN_SHOWN = 5
"""Unknown streams that the error names one by one."""


def check_streams_known(records: Iterable[WalRecord], next_stream_id: int) -> None:
    """Raise UnknownStreams for records of streams that the catalog, whose next id is given, never created."""
    found: dict[int, tuple[int, int, int]] = {}
    for record in records:
        batch = record.batch
        if batch.stream_id >= next_stream_id:
            start, end, count = found.get(batch.stream_id, (batch.base_offset, batch.end_offset, 0))
            bounds = min(start, batch.base_offset), max(end, batch.end_offset)
            found[batch.stream_id] = (*bounds, count + batch.record_count)
    if found:
        named = [
            f"stream {stream_id}: {count:,} records, offsets {start} to {end - 1}"
            for stream_id, (start, end, count) in sorted(found.items())[:UNKNOWN_SHOWN]
        ]
        if len(found) > len(named):
            named.append(f"{len(found) - len(named):,} streams more")
        raise UnknownStreams(
            f"the WAL holds records of streams that the catalog has never made, its next id being {next_stream_id} "
            f"({'; '.join(named)}): the catalog is not the one of this WAL, or an older state of it. Nothing was "
            "trimmed. Check catalog.url and wal.path, or restore a newer backup of the catalog"
        )


class RecoveryPlanner:
    """Sorts records, given in WAL order, into live, committed, deleted, fenced and discontinuous ones."""

    def __init__(self, streams: Mapping[int, StreamInfo], owner: StreamOwner) -> None:
        """Begin with nothing. `streams` has those of the records' streams that exist."""
        self._streams: Final = streams
        self._owner: Final = owner
        self._live: dict[int, list[StreamBatch]] = {}
        self._stopped: dict[int, StoppedStream] = {}
        self._first_wal_offset: dict[int, int] = {}
        self._fenced: set[int] = set()
        self._skipped, self._last = 0, -1

    def add(self, records: Iterable[WalRecord]) -> None:
        """Sort the next records."""
        live, stopped = self._live, self._stopped
        for record in records:
            self._last = record.wal_offset
            batch = record.batch
            stream_id = batch.stream_id
            info = self._streams.get(stream_id)
            if info is None:
                self._skipped += 1
            elif record.kind is RecordKind.RESET:
                self._skipped += 1 + len(live.pop(stream_id, ()))
                stopped.pop(stream_id, None)
            elif batch.end_offset <= info.end_offset:
                self._skipped += 1
            elif not info.is_held_by(self._owner):
                self._fenced.add(stream_id)
                self._skipped += 1
            elif stream_id in stopped:
                stopped[stream_id] = stopped[stream_id].add(batch, record.wal_offset)
            else:
                self._add_live(batch, info, record.wal_offset)

    def _add_live(self, batch: StreamBatch, info: StreamInfo, wal_offset: int) -> None:
        stream_id = batch.stream_id
        batches = self._live.setdefault(stream_id, [])
        expected = batches[-1].end_offset if batches else info.end_offset
        if not batches:
            self._first_wal_offset[stream_id] = wal_offset
        if batch.base_offset == expected:
            batches.append(batch)
            return
        error = Discontinuity(
            f"stream {stream_id}: the WAL record at offset {wal_offset} holds [{batch.base_offset}, "
            f"{batch.end_offset}), expected one from {expected} (committed up to {info.end_offset})"
        )
        found = StoppedStream(error, self._first_wal_offset[stream_id])
        for each in (*batches, batch):
            found = found.add(each, wal_offset)
        self._stopped[stream_id] = found
        del self._live[stream_id]

    def plan(self) -> RecoveryPlan:
        """Return the plan for the records that were added."""
        live = {key: value for key, value in self._live.items() if value}
        return RecoveryPlan(live, self._stopped, frozenset(self._fenced), self._skipped, self._last)
