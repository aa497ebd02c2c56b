"""The streams that this node has open: opening, closing, fencing and dropping them.

A stream's first opening after a crash finds the batches that recovery kept for it. They must begin at the committed
end, or the stream is stopped. Batches that are cached from an earlier opening are discarded: another node may have had
the stream meanwhile.
"""

from collections.abc import Sequence

import structlog

from anabranch.s3stream.append.journal import Journal
from anabranch.s3stream.append.recovery import RecoveryPlan, StoppedStream
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.append.stream_trim import StreamTrimmer
from anabranch.s3stream.append.wal_record import encode_reset
from anabranch.s3stream.append.wal_trim import WalTrimmer
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import OpenStream
from anabranch.s3stream.errors import Discontinuity, HandoverRefused, StorageError, StorageStopped, StreamFenced
from anabranch.s3stream.model import StreamBatch, StreamInfo, StreamOwner
from anabranch.s3stream.object.owner_marks import OwnerMarks
from anabranch.s3stream.read.stream_reader import StreamReader
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.tasks import Turns
from anabranch.wal.interface import OverCapacity, WalError

UNDEFINED_EPOCH = -1
"""Leader epoch of a stream that this node does not lead."""

log = structlog.get_logger(__name__)


class StreamRegistry:
    """Open streams by id."""

    def __init__(
        self,
        *,
        journal: Journal,
        wal_trimmer: WalTrimmer,
        reader: StreamReader,
        trimmer: StreamTrimmer,
        catalog: Catalog,
        owner_marks: OwnerMarks,
        stats: StorageStats,
        default_store: str,
    ) -> None:
        self._streams: dict[int, Stream] = {}
        self._fenced: set[int] = set()
        """Streams whose records past their ends in the WAL are void, because this log lost them to another."""
        self._journal = journal
        self._cache = journal.cache
        self._sealer = journal.sealer
        self._wal_trimmer = wal_trimmer
        self._reader = reader
        self._trimmer = trimmer
        self._catalog = catalog
        self._owner_marks = owner_marks
        self._stats = stats
        self._default_store = default_store
        self._owner: StreamOwner | None = None
        self._opening: set[int] = set()
        """Streams that the catalog is just asked for."""
        self._receiving: set[int] = set()
        """Streams whose tails are being received from other nodes (`s3stream.append.handover`)."""

    def get(self, stream_id: int) -> Stream | None:
        """Return the stream, or None if it is not open."""
        return self._streams.get(stream_id)

    def __getitem__(self, stream_id: int) -> Stream:
        return self._streams[stream_id]

    @property
    def owner(self) -> StreamOwner:
        """Node, epoch and log as which this engine opens streams."""
        assert self._owner is not None, "adopt() comes first"
        return self._owner

    # recovery

    async def adopt(self, owner: StreamOwner, plan: RecoveryPlan) -> None:
        """Open streams as `owner` from now on.

        Live records go into the current block, which is sealed once the streams' users have replayed them. It gets its
        age at the end only: until then nothing looks at it.
        """
        self._owner = owner
        stats, cache = self._stats, self._cache
        for stream_id, stopped in plan.stopped.items():
            self._wal_trimmer.stop(stream_id, stopped)
            log.error("stream stopped at recovery", stream_id=stream_id, reason=str(stopped.error))
        self._fenced = set(plan.fenced)
        if plan.fenced:
            log.info("records in the log of streams that another node has now are void", streams=len(plan.fenced))
        turns = Turns()
        for stream_id, batches in plan.live.items():
            run = cache.start_run(stream_id, batches[0].base_offset)
            async for some in turns.pieces(batches):
                for batch in some:
                    run.add(batch)
            cache.count_recovered(run)
            self._sealer.not_replayed.add(stream_id)
            stats.recovered_records += len(batches)
            stats.recovered_bytes += run.size_bytes
        if plan.live:
            self._journal.start_age()
        cache.current.wal_offset = plan.last_wal_offset
        stats.skipped_records = plan.skipped_records
        stats.stopped_streams = len(plan.stopped)
        if cache.current.size_bytes >= self._journal.threshold_bytes:
            self._sealer.request()

    # opening

    async def open(self, stream_ids: Sequence[int]) -> list[Stream]:
        """Take streams over, in one transaction: their epochs grow.

        Raises StreamNotFound, StreamHeld, NodeFenced, StorageError.
        """
        owner = self.owner
        if moving := self._receiving.intersection(stream_ids):
            raise HandoverRefused(f"streams {sorted(moving)} are being received from other nodes")
        if again := [stream_id for stream_id in stream_ids if stream_id in self._streams]:
            raise StorageError(f"streams {again} are open already")
        self._opening.update(stream_ids)
        try:
            opened = await self._open(stream_ids, owner)
        finally:
            self._opening.difference_update(stream_ids)
        return [self._add(item) for item in opened]

    async def _open(self, stream_ids: Sequence[int], owner: StreamOwner) -> Sequence[OpenStream]:
        returning = self._fenced.intersection(stream_ids)
        if returning:
            # A recovery after the opening must not take old records for live ones: first they are void, durably.
            for info in (await self._catalog.get_streams(sorted(returning))).values():
                await self.void_records(info)
        opened = await self._catalog.open_streams(stream_ids, owner)
        self._fenced -= returning
        await self._owner_marks.put(item.info for item in opened if not item.is_first)
        return opened

    async def open_recovered(self) -> list[Stream]:
        """Open the streams that have live records, for the recovery of a dead node's log.

        They keep their epochs and leader epochs: their leaders open them afterwards.
        """
        infos = await self._catalog.get_streams(sorted(self._sealer.not_replayed))
        return [self._add(OpenStream(info, UNDEFINED_EPOCH)) for info in infos.values()]

    def _add(self, item: OpenStream) -> Stream:
        stream_id = item.info.stream_id
        # This node may have read it as a replica. Compaction may have removed data since, and the next snapshot tells
        # readers nothing of it any more.
        self._reader.loader.invalidate((stream_id,))
        recovered: Sequence[StreamBatch] = ()
        if stream_id in self._sealer.not_replayed:
            recovered = self._check_recovered(item.info)
        elif self._cache.runs_of(stream_id).runs:
            # Another node may have had it meanwhile: the stream may have other records by now, and another end.
            self._cache.drop(stream_id)
        runs = self._cache.runs_of(stream_id)
        runs.is_open = True
        stream = Stream(
            item,
            journal=self._journal,
            runs=runs,
            recovered=recovered,
            reader=self._reader,
            trimmer=self._trimmer,
            store=self._default_store,
        )
        if stream_id in self._wal_trimmer.stopped:
            stream.refuse(self._wal_trimmer.stopped[stream_id].error)
        self._streams[stream_id] = stream
        return stream

    def _check_recovered(self, info: StreamInfo) -> Sequence[StreamBatch]:
        """Return the batches found in the WAL if they begin at the committed end; else stop the stream."""
        stream_id = info.stream_id
        recovered = self._cache.runs_of(stream_id).runs[-1].batches
        if recovered[0].base_offset == info.end_offset:
            return recovered
        error = Discontinuity(
            f"stream {stream_id}: recovered from {recovered[0].base_offset}, committed up to {info.end_offset}"
        )
        log.error("stream stopped when it was opened", stream_id=stream_id, reason=str(error))
        # Its records stay in the WAL, for an operator to decide; uploads of the other streams do not wait for it.
        stopped = StoppedStream(error, 0)
        for batch in recovered:
            stopped = stopped.add(batch, self._cache.current.wal_offset)
        self._wal_trimmer.stop(stream_id, stopped)
        self._stats.stopped_streams += 1
        self.drop(stream_id)
        return ()

    # being received from another node

    def is_receiving(self, stream_id: int) -> bool:
        """Return whether the stream's tail is being received: the stream must not be opened then."""
        return stream_id in self._receiving

    def begin_receiving(self, stream_id: int) -> None:
        """Note that records of the stream will be in the WAL that are void until `receive`. Raises HandoverRefused."""
        if stream_id in self._streams or stream_id in self._receiving or stream_id in self._opening:
            raise HandoverRefused(f"stream {stream_id} is here already")
        self._receiving.add(stream_id)
        self._fenced.add(stream_id)

    def end_receiving(self, stream_id: int) -> None:
        """Note that the stream is not received, or no more. Its records in the WAL stay void."""
        self._receiving.discard(stream_id)

    def receive(self, item: OpenStream, tail: Sequence[StreamBatch]) -> Stream:
        """Return a stream that this node owns now, with its tail, which is in the WAL after a RESET."""
        stream_id = item.info.stream_id
        self._receiving.discard(stream_id)
        self._fenced.discard(stream_id)
        self._cache.drop(stream_id)
        if tail:
            run = self._journal.start_run(stream_id, tail[0].base_offset)
            for batch in tail:
                run.add(batch)
            self._cache.count_recovered(run)
            self._sealer.not_replayed.add(stream_id)
        return self._add(item)

    def give_away(self, stream: Stream) -> None:
        """Forget a sealed stream that another node has now: refuse appends and reads, wake those who wait."""
        stream_id = stream.stream_id
        self._fenced.add(stream_id)
        stream.refuse(StreamFenced(f"{stream.label} is led by another node"))
        self.drop(stream_id)
        stream.release()
        if self._streams.get(stream_id) is stream:
            del self._streams[stream_id]

    async def void_records(self, info: StreamInfo) -> None:
        """Append a record that voids those of the stream that are in the WAL, and wait until it is durable.

        Raises StorageStopped. If the WAL has failed permanently, the engine stops: it may have failed while idle, and
        been noticed here first.
        """
        try:
            reset = encode_reset(info.stream_id, info.epoch, info.end_offset)
            appended = self._journal.append_unconfirmed((reset,))
            await appended.durable
        except WalError as error:
            if not isinstance(error, OverCapacity):
                self._journal.wal_failed(error)
            raise StorageStopped(f"old records of stream {info.stream_id} cannot be voided: {error}") from error

    # closing

    async def close(self, stream: Stream, *, discard: bool) -> None:
        """Refuse appends, upload the stream's data and forget it; with `discard` (deleted) do not upload."""
        stream_id = stream.stream_id
        if discard and stream.is_sealed:
            self.give_away(stream)
            return
        stream.refuse(StorageStopped(f"stream {stream_id} is closed"))
        if discard:
            self.drop(stream_id)
            stream.release()
        elif stream.next_offset > stream.committed_offset and stream_id not in self._sealer.not_replayed:
            await self._sealer.flush()
        if self._streams.pop(stream_id, None) is stream:
            self._cache.mark_closed(stream_id)
            self._reader.loader.invalidate((stream_id,))

    def drop(self, stream_id: int) -> None:
        """Discard what is in memory of a deleted or fenced stream."""
        self._sealer.drop(stream_id)
        self._reader.loader.invalidate((stream_id,))

    def fence(self, stream_id: int, error: StreamFenced) -> None:
        """Refuse appends and reads of a stream that another node has taken over; discard what is in memory of it."""
        log.error("stream fenced", stream_id=stream_id, reason=str(error))
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.refuse(StreamFenced(str(error)))
            stream.release()
        self._fenced.add(stream_id)
        self.drop(stream_id)

    async def give_up_recovered(self, stream_id: int) -> None:
        """Give up the WAL records of a stopped stream and accept its appends again, from its committed end.

        Raises StorageError when the stream is not stopped, or the WAL refuses the record that voids the others.
        """
        stopped = self._wal_trimmer.stopped.get(stream_id)
        if stopped is None:
            raise StorageError(f"stream {stream_id} is not stopped")
        info = (await self._catalog.get_streams((stream_id,))).get(stream_id)
        if info is not None and not self._wal_trimmer.frees(stream_id, stopped.last_wal_offset):
            # They stay in the WAL until what lies before them is uploaded, or given up: a restart must not find them.
            await self.void_records(info)
        log.warning("records given up", stream_id=stream_id, records=stopped.record_count, bytes=stopped.size_bytes)
        await self._wal_trimmer.give_up(stream_id)
        self._journal.admission.made_room()
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.accept(Discontinuity)  # not before: a crash would find what is appended behind what is given up
