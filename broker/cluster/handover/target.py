"""The new leader's part of a planned move: take the tail, own the stream, serve it.

A tail is put together in memory, from pieces. Then a task of the node writes it to the log and runs the transfer. That
task does not end with the connection, because from then on only the catalog knows which node owns the stream: the
transfer is repeated until the catalog answers. Commands run one at a time, so a refusal comes after the end of earlier
attempts. One transaction transfers all streams that wait for it: the catalog may be far away.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from anabranch.broker.cluster.handover.tail import TAIL_BYTES_MAX, InvalidTail, decode_tail
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.turns import ChangeTurns
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages.internal.hand_over import HandOverRequest, HandOverResponse
from anabranch.protocol.messages.internal.prepare_move import PrepareMoveRequest, PrepareMoveResponse
from anabranch.s3stream.append.handover import ReceivedTail
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import OpenStream, StreamTransfer
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import CatalogUnavailable, StorageError
from anabranch.s3stream.model import StreamOwner

RECEIVED_BYTES_MAX: Final = 64 << 20
"""Bytes of all tails that are being received."""
ABANDONED_S: Final = 10.0
"""Time after which a tail whose next piece has not come is forgotten."""
CATALOG_PAUSE_S: Final = 0.2
GATHERING: Final = 0.25
"""Pause between two transactions, as a part of the time that the first took: its source sends others as soon as it has
the answers. Without it those would always miss the next transaction, and each would have half of what is on the way."""
GATHERING_S_MAX: Final = 0.25
EPOCH_MAX: Final = 2**62
CLOSE_S: Final = 10.0
"""Longest wait of `close`. The next recovery of the log finds outcomes that are unknown then in the catalog."""

_log = structlog.get_logger("moves")


@dataclass(slots=True)
class _Incoming:
    """A tail of which pieces are missing."""

    source: StreamOwner
    first: HandOverRequest
    since_s: float
    pieces: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class PartitionTarget:
    """Receives partitions from other nodes. `spawn` runs a coroutine as a task of this node."""

    def __init__(
        self,
        catalog: Catalog,
        storage: S3Stream,
        topics: TopicManager,
        turns: ChangeTurns,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._topics = topics
        self._turns = turns
        self._spawn = spawn
        self._incoming: dict[int, _Incoming] = {}
        self._finishing: dict[int, int] = {}
        """Sizes of the tails, by stream, that are complete and whose outcome is not known."""
        self._transfers: list[tuple[StreamTransfer, asyncio.Future[OpenStream | StorageError]]] = []
        """Those that wait for the catalog, with their answers."""
        self._transferring = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def prepare(self, request: PrepareMoveRequest) -> PrepareMoveResponse:
        """Answer whether this node would take the partition over now."""
        return PrepareMoveResponse(
            refusal=self._refusal(request.topic_id, request.index, request.stream_id, request.tail_bytes)
        )

    def _refusal(self, topic_id: bytes, index: int, stream_id: int, tail_bytes: int) -> str:
        topic = self._topics.get(topic_id)
        if self._closed or self._storage.error is not None:
            return f"the node stops: {self._storage.error or 'it leaves'}"
        if topic is None or not 0 <= index < len(topic.partitions):
            return "the node does not know the partition yet"
        if topic.info.partitions[index].stream_id != stream_id or topic.partitions[index] is not None:
            return "the node has the partition already"
        if stream_id in self._finishing:
            return "the node is receiving the partition already"
        if not self._storage.writable:
            return f"the node is full: {', '.join(self._storage.obstacles())}"
        if tail_bytes > TAIL_BYTES_MAX or self._held_bytes() + tail_bytes > RECEIVED_BYTES_MAX:
            return f"no room for {tail_bytes} bytes"
        return ""

    def _held_bytes(self) -> int:
        now_s = asyncio.get_running_loop().time()
        for stream_id, each in list(self._incoming.items()):
            if now_s - each.since_s > ABANDONED_S:
                del self._incoming[stream_id]
        return sum(each.first.tail_bytes for each in self._incoming.values()) + sum(self._finishing.values())

    async def take(self, request: HandOverRequest, source: tuple[int, int]) -> HandOverResponse:
        """Take a piece of a tail from the node with that id and epoch; after the last one, lead the partition."""
        stream_id = request.stream_id
        if request.position == 0:
            self._incoming.pop(stream_id, None)
            refusal = self._refusal(request.topic_id, request.index, stream_id, request.tail_bytes)
            if refusal or not _is_valid(request):
                return HandOverResponse(refusal=refusal or "the offsets or epochs are invalid")
            owner = StreamOwner(*source, request.wal_id)
            self._incoming[stream_id] = _Incoming(owner, request, asyncio.get_running_loop().time())
        incoming = self._incoming.get(stream_id)
        if incoming is None or not _continues(incoming, request, source):
            return HandOverResponse(refusal="the piece belongs to no tail that is being received")
        incoming.pieces.append(request.piece)
        incoming.size_bytes += len(request.piece)
        incoming.since_s = asyncio.get_running_loop().time()
        if incoming.size_bytes < request.tail_bytes:
            return HandOverResponse(refusal="")
        del self._incoming[stream_id]
        self._finishing[stream_id] = request.tail_bytes
        self._idle.clear()
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._spawn(self._finish(incoming, outcome))
        return HandOverResponse(refusal=await asyncio.shield(outcome))

    async def _finish(self, incoming: _Incoming, outcome: "asyncio.Future[str]") -> None:
        refusal = "the node stops"
        try:
            refusal = await self._receive(incoming)
        except StorageError as error:
            refusal = str(error)
        finally:
            del self._finishing[incoming.first.stream_id]
            if not self._finishing:
                self._idle.set()
            if not outcome.done():
                outcome.set_result(refusal)
        if refusal:
            await self._open_instead(incoming.first.topic_id)

    async def _open_instead(self, topic_id: bytes) -> None:
        """Open what became this node's in another way while it was being received, for instance by a takeover."""
        while not self._closed and self._storage.error is None:
            try:
                async with self._turns.changing():
                    await self._topics.open_left(topic_id)
            except CatalogUnavailable:
                await asyncio.sleep(CATALOG_PAUSE_S)
            except StorageError as error:
                _log.warning("a topic's partitions cannot be opened", topic_id=uuid_text(topic_id), reason=str(error))
                return
            else:
                return

    async def _receive(self, incoming: _Incoming) -> str:
        """Lead the partition; return the reason if that is refused, else an empty text. Raises StorageError."""
        request, handovers = incoming.first, self._storage.handovers
        try:
            tail = memoryview(b"".join(incoming.pieces))
            batches = decode_tail(tail, request.stream_id, request.end_offset, request.next_offset)
        except InvalidTail as error:
            return str(error)
        received = await handovers.write_tail(request.stream_id, request.stream_epoch + 1, request.end_offset, batches)
        wanted = StreamTransfer(
            request.stream_id,
            request.stream_epoch,
            request.leader_epoch,
            request.end_offset,
            incoming.source,
            handovers.owner,
        )
        answer = await self._transfer(wanted)
        if isinstance(answer, StorageError):
            handovers.give_up(received)
            raise answer
        await self._serve(request, received, answer)
        return ""

    async def _transfer(self, wanted: StreamTransfer) -> OpenStream | StorageError:
        """Own the stream, or return why that was refused; the outcome is unknown until the catalog answers."""
        answer: asyncio.Future[OpenStream | StorageError] = asyncio.get_running_loop().create_future()
        self._transfers.append((wanted, answer))
        if not self._transferring:
            self._transferring = True
            self._spawn(self._transfer_all())
        return await answer

    async def _transfer_all(self) -> None:
        """Transfer what waits, until nothing does."""
        loop = asyncio.get_running_loop()
        try:
            while self._transfers:
                pairs, self._transfers = self._transfers, []
                began_s = loop.time()
                answers = await self._ask_catalog([wanted for wanted, _ in pairs])
                # The next ones do not wait for the store, only for the catalog.
                self._spawn(self._answer([waiting for _, waiting in pairs], answers))
                await asyncio.sleep(min(GATHERING * (loop.time() - began_s), GATHERING_S_MAX))
        finally:
            self._transferring = False

    async def _answer(
        self,
        waiting: Sequence[asyncio.Future[OpenStream | StorageError]],
        answers: Sequence[OpenStream | StorageError],
    ) -> None:
        await self._storage.owner_marks.put(each.info for each in answers if isinstance(each, OpenStream))
        for each, answer in zip(waiting, answers, strict=True):
            if not each.done():
                each.set_result(answer)

    async def _ask_catalog(self, wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        while True:
            try:
                return await self._catalog.transfer_streams(wanted)
            except CatalogUnavailable as error:
                _log.warning("received partitions wait for the catalog", count=len(wanted), reason=str(error))
                await asyncio.sleep(CATALOG_PAUSE_S)
            except StorageError as error:
                return [error] * len(wanted)

    async def _serve(self, request: HandOverRequest, received: ReceivedTail, opened: OpenStream) -> None:
        """Serve the partition, without an await in between. Raises StorageError."""
        handovers = self._storage.handovers
        try:
            stream = handovers.receive(received, opened)
            is_served = self._topics.serve_received(request.topic_id, request.index, stream)
        except (StorageError, KafkaError) as error:
            # This node owns the stream, and only its log has the tail: a restart recovers it.
            failure = StorageError(f"stream {request.stream_id} was received and cannot be served: {error}")
            handovers.stop(failure)
            raise failure from error
        if not is_served:  # its topic was deleted just after the transfer
            await self._storage.close_stream(stream, discard=True)

    async def close(self) -> None:
        """Take no more partitions, and wait for the outcomes of those that are being received; not forever."""
        self._closed = True
        self._incoming.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._idle.wait()


def _is_valid(request: HandOverRequest) -> bool:
    return (
        0 <= request.end_offset <= request.next_offset
        and 0 < request.stream_epoch < EPOCH_MAX
        and request.leader_epoch >= 0
        and request.tail_bytes >= 0
    )


def _continues(incoming: _Incoming, request: HandOverRequest, source: tuple[int, int]) -> bool:
    first, owner = incoming.first, incoming.source
    return (
        (owner.node_id, owner.node_epoch) == source
        and (request.stream_epoch, request.next_offset, request.tail_bytes)
        == (first.stream_epoch, first.next_offset, first.tail_bytes)
        and request.position == incoming.size_bytes
        and incoming.size_bytes + len(request.piece) <= request.tail_bytes
    )
