"""Handing a stream over to another living node, and receiving one: the engine's part of a planned move.

The source seals the stream: it refuses appends, and no upload takes the stream's records. The target writes a RESET
record and the tail, all that is past the committed end, to its own log. When that is durable, one transaction of the
catalog (`transfer_streams`) makes the target the owner. So according to the catalog exactly one log has the stream's
tail at any moment, and after a crash at any step the recovery of both logs decides (`RecoveryPlanner`):

    moment                         source's log      target's log
    sealed, tail being written     live              void: the target is not the owner
    after `transfer_streams`        void              live, from the RESET on
    after `cancel_transfer`        live              void; a later transfer under the old epoch is refused

Invariants:

- A sealed stream is unsealed only when no transfer can succeed any more, or none was sent.
- Records that a target has written are void until its engine has received the stream: an opening of the stream writes
  a RESET record first.
- The WAL is not trimmed past a tail that is in no block, on either side. Uploads of other streams continue.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.s3stream.append.journal import Journal
from anabranch.s3stream.append.registry import StreamRegistry
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.append.wal_record import RECORD_HEADER, RECORD_VERSION, RecordKind, encode_reset
from anabranch.s3stream.append.wal_trim import WalTrimmer
from anabranch.s3stream.catalog.values import OpenStream
from anabranch.s3stream.errors import HandoverRefused, StorageError, StorageStopped
from anabranch.s3stream.model import StreamBatch, StreamOwner
from anabranch.wal.interface import AppendedRecord, Buffer, OverCapacity, QueueFull, RecordTooLarge, WalError

SEAL_S: Final = 5.0
"""Longest wait for the last append and for uploads that have records of a stream that is sealed."""
BYTES_PER_TURN: Final = 1 << 20
"""Bytes that are appended to the log before other tasks get a turn."""
DURABLE_S: Final = 5.0
"""Longest wait of a target for its log."""


@dataclass(frozen=True, slots=True, eq=False)
class SealedStream:
    """A stream that its owner hands over, until one of `unseal` and `give_away`."""

    stream: Stream
    epoch: int
    """Epoch under which it was sealed."""
    end_offset: int
    """Committed end, at which the tail begins."""
    next_offset: int
    tail: Sequence[StreamBatch]
    hold: object


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedTail:
    """A tail that is durable in this node's log and void, until one of `receive` and `give_up`."""

    stream_id: int
    end_offset: int
    """Committed end, at which the tail begins."""
    batches: Sequence[StreamBatch]
    wal_offset: int
    """WAL offset of the last record."""
    hold: object


class StreamHandovers:
    """Seals and receives streams of one engine."""

    def __init__(self, journal: Journal, wal_trimmer: WalTrimmer, streams: StreamRegistry) -> None:
        self._journal = journal
        self._cache = journal.cache
        self._wal_trimmer = wal_trimmer
        self._streams = streams

    @property
    def owner(self) -> StreamOwner:
        """Node, epoch and log as which this engine owns streams."""
        return self._streams.owner

    def _release(self, hold: object) -> None:
        """End a hold. The log space that it kept is freed with the current block, even if that stays empty."""
        self._wal_trimmer.release(hold)
        block = self._cache.current
        block.wal_offset = max(block.wal_offset, self._wal_trimmer.trimmable_wal_offset)
        if not self._journal.admission.is_writable:
            self._journal.sealer.request()

    # source

    async def seal(self, stream: Stream) -> SealedStream:
        """Refuse appends to a stream, and wait until its last one is durable and no upload has records of it.

        Raises HandoverRefused when it takes too long, or the stream refuses appends already; StorageError, WalError.
        The stream accepts appends again then.
        """
        if stream.error is not None or stream.snapshot_source is None or self._journal.admission.error is not None:
            raise HandoverRefused(f"{stream.label} accepts no appends: {stream.error or self._journal.admission.error}")
        stream.seal()
        self._cache.sealed_streams.add(stream.stream_id)
        hold = self._wal_trimmer.hold()
        try:
            async with asyncio.timeout(SEAL_S):
                await stream.until_committed()
                if stream.confirmed_offset < stream.next_offset:
                    assert stream.last_durable is not None, "something was appended"
                    await stream.last_durable
            self._check_open(stream)
        except TimeoutError:
            self._unseal(stream, stream.epoch, hold)
            raise HandoverRefused(
                f"{stream.label}: its last records were not durable, or not uploaded, in time"
            ) from None
        except BaseException:
            self._unseal(stream, stream.epoch, hold)
            raise
        tail = list(stream.tail)
        begin = tail[0].base_offset if tail else stream.next_offset
        assert begin == stream.committed_offset, "the tail of a sealed stream is all that is not committed"
        return SealedStream(stream, stream.epoch, stream.committed_offset, stream.next_offset, tail, hold)

    def unseal(self, sealed: SealedStream, epoch: int) -> None:
        """Accept appends again, under `epoch`: no transfer of the stream can succeed any more, or none was sent."""
        self._unseal(sealed.stream, epoch, sealed.hold)

    def _unseal(self, stream: Stream, epoch: int, hold: object) -> None:
        if self._streams.get(stream.stream_id) is not stream:
            self._release(hold)  # it was deleted, or another node has it
            return
        self._cache.sealed_streams.discard(stream.stream_id)
        if stream.tail:
            # Blocks that were sealed meanwhile have later records, and are committed first.
            self._cache.current.holds.append(hold)
        else:
            self._release(hold)
        stream.unseal(epoch)
        self._journal.sealer.request()

    def give_away(self, sealed: SealedStream) -> None:
        """Forget a stream that the target has now: its records in this log are void."""
        self._release(sealed.hold)
        if self._streams.get(sealed.stream.stream_id) is sealed.stream:
            self._streams.give_away(sealed.stream)

    def is_open(self, stream: Stream) -> bool:
        """Return whether the stream is still this engine's: neither deleted nor seen with another owner."""
        return self._streams.get(stream.stream_id) is stream

    def _check_open(self, stream: Stream) -> None:
        if not self.is_open(stream):
            raise HandoverRefused(f"{stream.label} was closed meanwhile")

    # target

    def is_receiving(self, stream_id: int) -> bool:
        """Return whether the stream is being received: only that may open it here."""
        return self._streams.is_receiving(stream_id)

    async def write_tail(
        self, stream_id: int, epoch: int, end_offset: int, batches: Sequence[StreamBatch]
    ) -> ReceivedTail:
        """Write the tail of another node's stream, past its committed end, to this node's log; it is durable then.

        `epoch` is the one that the stream will have here. Raises HandoverRefused when the log has no room or is slow,
        or the stream is here already; StorageStopped when the log has failed.
        """
        admission = self._journal.admission
        if not admission.is_writable:
            raise HandoverRefused(f"no room for stream {stream_id}: {', '.join(admission.obstacles())}")
        self._streams.begin_receiving(stream_id)
        hold = self._wal_trimmer.hold()
        try:
            async with asyncio.timeout(DURABLE_S):
                appended = await self._append_all(stream_id, epoch, end_offset, batches)
                await appended.durable
        except BaseException as error:
            self._release(hold)
            self._streams.end_receiving(stream_id)
            if isinstance(error, TimeoutError | OverCapacity | RecordTooLarge):
                raise HandoverRefused(f"the log has no room for stream {stream_id}, or is too slow") from error
            if isinstance(error, WalError):
                self._journal.wal_failed(error)
                raise StorageStopped(f"stream {stream_id} cannot be received: {error}") from error
            raise
        return ReceivedTail(stream_id, end_offset, batches, appended.offset, hold)

    async def _append_all(
        self, stream_id: int, epoch: int, end_offset: int, batches: Sequence[StreamBatch]
    ) -> AppendedRecord:
        appended = self._append((encode_reset(stream_id, epoch, end_offset),))
        size_bytes = 0
        for batch in batches:
            _, base, end, count, timestamp, payload = batch
            header = RECORD_HEADER.pack(
                RECORD_VERSION, RecordKind.BATCH, 0, count, stream_id, epoch, base, end, timestamp
            )
            while True:
                try:
                    appended = self._append((header, payload))
                except QueueFull as error:
                    await error.durable
                else:
                    break
            size_bytes += len(payload)
            if size_bytes >= BYTES_PER_TURN:
                size_bytes = 0
                await asyncio.sleep(0)
        return appended

    def _append(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Append a record that the next upload frees, unless a hold keeps it."""
        appended = self._journal.append_unconfirmed(parts)
        block = self._cache.current
        block.wal_offset = max(block.wal_offset, appended.offset)
        return appended

    def receive(self, received: ReceivedTail, opened: OpenStream) -> Stream:
        """Return the stream, which this node owns by `transfer_streams` now. Its user replays it at once.

        Raises StorageError, after which appends are refused until a restart: the log has the stream's records.
        """
        if opened.info.end_offset != received.end_offset:
            error = StorageStopped(
                f"stream {received.stream_id}: its tail was received from {received.end_offset} on, and it ends at "
                f"{opened.info.end_offset}"
            )
            self._journal.stop(error)
            raise error
        stream = self._streams.receive(opened, received.batches)
        block = self._cache.current
        block.wal_offset = max(block.wal_offset, received.wal_offset)
        if received.batches:
            block.holds.append(received.hold)
        else:
            self._release(received.hold)
        if block.size_bytes >= self._journal.threshold_bytes:
            self._journal.sealer.request()
        return stream

    def give_up(self, received: ReceivedTail) -> None:
        """Forget a tail whose transfer was refused: its records in this log stay void."""
        self._release(received.hold)
        self._streams.end_receiving(received.stream_id)

    def stop(self, error: StorageError) -> None:
        """Refuse all appends: a received stream cannot be served, and a restart recovers it from the log."""
        self._journal.stop(StorageStopped(str(error)))
