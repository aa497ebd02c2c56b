"""The leader's part of a planned move: flush, seal, send the tail, and find out who has the partition.

After the last piece was sent the target may become the owner at any time. If its answer does not come in time, the
source excludes that in the catalog (`cancel_transfer`): it keeps the stream, under a new epoch, or the target was
faster. While the catalog does not answer neither is known, and the partition stays sealed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from anabranch.broker.cluster.handover.tail import TAIL_BYTES_MAX, encode_tail, pieces
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.protocol.messages.internal.hand_over import HandOverRequest, HandOverResponse
from anabranch.protocol.messages.internal.prepare_move import PrepareMoveRequest, PrepareMoveResponse
from anabranch.s3stream.append.handover import SealedStream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import CatalogUnavailable, StorageError, StreamFenced, StreamNotFound
from anabranch.wal.interface import WalError

SMALL_TAIL_BYTES: Final = 4 << 20
"""A larger tail is uploaded before the partition is sealed."""
FLUSHES_MAX: Final = 3
FLUSH_S: Final = 60.0
ANSWER_S: Final = 3.0
"""Longest wait for the target after the seal."""
CATALOG_PAUSE_S: Final = 0.2

_log = structlog.get_logger("moves")


class MoveFailed(Exception):
    """A partition was not moved: its leader still serves it. The text is the reason."""


class PartitionSource:
    """Hands partitions over to other nodes."""

    def __init__(
        self, catalog: Catalog, storage: S3Stream, topics: TopicManager, peers: Peers, *, may_seal: Callable[[], bool]
    ) -> None:
        """`may_seal` tells whether the catalog has answered just now: without it no partition could be unsealed."""
        self._catalog = catalog
        self._storage = storage
        self._topics = topics
        self._peers = peers
        self._may_seal = may_seal

    async def move(self, partition: Partition, to_node: int) -> None:
        """Return when another node leads the partition. Raises MoveFailed; NodeFenced when this node is fenced."""
        try:
            await self._prepare(partition, to_node)
            if not self._may_seal():
                raise MoveFailed("the catalog has not answered for a second")
            sealed = await self._storage.handovers.seal(partition.stream)
        except (StorageError, WalError, PeerUnavailable, TimeoutError) as error:
            raise MoveFailed(str(error) or "it took too long to upload what the log has of it") from error
        try:
            async with asyncio.timeout(ANSWER_S):
                refusal = await self._send(partition, sealed, to_node)
        except (PeerUnavailable, TimeoutError) as error:
            refusal = str(error) or f"node {to_node} has not answered within {ANSWER_S:g} s"
        if refusal:
            if await self._take_back(sealed):
                raise MoveFailed(refusal)
            await self._mark_owner(sealed)
        self._leave(partition, sealed, to_node)

    async def _prepare(self, partition: Partition, to_node: int) -> None:
        """Make the tail small, and ask the target. Raises MoveFailed, StorageError, PeerUnavailable, TimeoutError."""
        stream = partition.stream
        async with asyncio.timeout(FLUSH_S):
            for _ in range(FLUSHES_MAX):
                if stream.uncommitted_bytes <= SMALL_TAIL_BYTES:
                    break
                await self._storage.flush()
            tail_bytes = stream.uncommitted_bytes
            if tail_bytes > TAIL_BYTES_MAX:
                raise MoveFailed(f"busy: {tail_bytes} bytes were appended during an upload")
            await stream.until_committed()
        request = PrepareMoveRequest(
            topic_id=partition.topic_id, index=partition.index, stream_id=stream.stream_id, tail_bytes=tail_bytes
        )
        response: PrepareMoveResponse = await self._peers.call(to_node, request, 0)
        if response.refusal:
            raise MoveFailed(response.refusal)

    async def _send(self, partition: Partition, sealed: SealedStream, to_node: int) -> str:
        """Send the tail; return why the target does not lead the partition, or "". Raises PeerUnavailable."""
        tail = encode_tail(sealed.tail, sealed.epoch)
        if len(tail) > TAIL_BYTES_MAX:
            return f"busy: {len(tail)} bytes are in no object"
        for position, piece in pieces(tail):
            request = HandOverRequest(
                topic_id=partition.topic_id,
                index=partition.index,
                stream_id=sealed.stream.stream_id,
                stream_epoch=sealed.epoch,
                leader_epoch=partition.leader_epoch,
                wal_id=self._storage.handovers.owner.wal_id,
                end_offset=sealed.end_offset,
                next_offset=sealed.next_offset,
                tail_bytes=len(tail),
                position=position,
                piece=piece,
            )
            response: HandOverResponse = await self._peers.call(to_node, request, 0)
            if response.refusal:
                return response.refusal
        return ""

    async def _take_back(self, sealed: SealedStream) -> bool:
        """Return whether this node keeps the stream: appends are accepted then. Raises NodeFenced, CatalogError."""
        handovers, stream = self._storage.handovers, sealed.stream
        while handovers.is_open(stream):
            try:
                epoch = await self._catalog.cancel_transfer(stream.stream_id, sealed.epoch, handovers.owner)
            except CatalogUnavailable as error:
                _log.warning("a partition waits for the outcome of its move", partition=stream.label, reason=str(error))
                await asyncio.sleep(CATALOG_PAUSE_S)
            except (StreamFenced, StreamNotFound):
                return False
            else:
                handovers.unseal(sealed, epoch)
                return True
        return False

    async def _mark_owner(self, sealed: SealedStream) -> None:
        """Mark who has the stream: a target that has not answered may not have done it, and this log has the tail."""
        with suppress(StorageError):  # the next manifest says it
            infos = await self._catalog.get_streams((sealed.stream.stream_id,))
            await self._storage.owner_marks.put(infos.values())

    def _leave(self, partition: Partition, sealed: SealedStream, to_node: int) -> None:
        """Let clients know the new leader, and forget the stream."""
        self._topics.note_moved(partition, to_node)
        self._storage.handovers.give_away(sealed)
        partition.notify_listeners()
