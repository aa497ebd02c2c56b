"""The share coordinator: finds the shard of a share partition's state, loads shards, forgets deleted topics.

A state belongs to the partition of `__share_group_state` that its key hashes to, and to the node that leads it. Until
the partition is replayed, requests get COORDINATOR_LOAD_IN_PROGRESS.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from anabranch.broker.kafka.coordination.log import InternalTopic, LogWriter
from anabranch.broker.kafka.coordination.shards import Shards
from anabranch.broker.kafka.share.interface import (
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_COUNT,
    InitialState,
    ShareKey,
    ShareSummary,
)
from anabranch.broker.kafka.share.state.shard import Outcome, ShareStateShard, StateCounts, StateRead
from anabranch.broker.kafka.share.state.stored import StateWrite
from anabranch.broker.kafka.share.state.topics import ShareTopics
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.node.settings.client_areas import ShareSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

SETTLE_S: Final = 1.0
"""Pause before a topic that this node does not know is looked for a second time: it may just be being deleted."""
RETRY_S: Final = 10.0
"""Pause before the catalog is asked again for deleted topics, when it did not answer."""
NO_STATE: Final = ShareSummary(0, 0, UNINITIALIZED_START_OFFSET, UNKNOWN_COUNT)
"""Summary of a share partition that was never initialised."""

_log = structlog.get_logger(__name__)


class ShareCoordinator:
    """The states of this node. Call `start`, keep `run` running, and call `close` at the end.

    Requests raise KafkaError: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, and what the
    methods of `ShareStateShard` raise.
    """

    def __init__(
        self,
        topic: InternalTopic,
        topics: ShareTopics,
        settings: ShareSettings,
        *,
        now_ms: Callable[[], int],
        parking: Parking | None = None,
    ) -> None:
        """`parking` is notified of shards that are being loaded."""
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms
        self.counts = StateCounts()
        self._shards = Shards(topic, "states of share partitions", self._new_shard, parking)
        self._unchecked = asyncio.Event()
        """Set when topics may have been deleted that states belong to."""
        self._detached: frozenset[bytes] = frozenset()
        """Topics that this node does not know, but the catalog does, also after a while."""

    # -- Life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Coordinate the states of those partitions of `__share_group_state` that this node leads. `run` loads them."""
        self._topics.subscribe(self._unchecked.set)
        self._shards.start()

    def _new_shard(self, writer: LogWriter) -> ShareStateShard:
        return ShareStateShard(
            writer,
            updates_per_snapshot=self._settings.updates_per_snapshot,
            now_ms=self._now_ms,
            has_partition=self._topics.has_partition,
            on_loaded=self._unchecked.set,
            counts=self.counts,
        )

    async def run(self) -> None:
        """Load shards, rewrite logs that have grown, and delete the states of deleted topics, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._shards.run())
            while True:
                await self._unchecked.wait()
                try:
                    left = await self._forget_deleted_topics()
                    if left:
                        await asyncio.sleep(SETTLE_S)
                        self._detached = left & await self._forget_deleted_topics()
                except StorageError as error:
                    _log.warning("states of deleted topics are kept for now", reason=str(error))
                    await asyncio.sleep(RETRY_S)
                    self._unchecked.set()

    async def _forget_deleted_topics(self) -> frozenset[bytes]:
        """Delete the states of topics that are in the catalog no more. Raises CatalogError.

        Returns the topics that are in the catalog, but not known here: they are detached, being deleted, or were
        created through another node just now. Those that have been found detached are not looked for again.
        """
        self._unchecked.clear()
        unknown = {
            topic_id
            for shard in self._shards.led_shards()
            for topic_id in shard.topic_ids()
            if not self._topics.has_partition(topic_id, 0)
        }
        if unknown <= self._detached:
            return frozenset()
        deleted = unknown.difference(await self._topics.read_ids())
        for shard in self._shards.led_shards():
            if shard.loaded:
                shard.forget_topics(deleted)
        return frozenset(unknown - deleted)

    async def compact(self) -> None:
        """Rewrite logs that have grown well beyond their live records."""
        await self._shards.compact()

    def close(self) -> None:
        """Stop coordinating. Requests that wait get NOT_COORDINATOR."""
        self._shards.close()

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if `__share_group_state` is known. States of this node may not be loaded yet."""
        return self._shards.is_open

    def is_coordinator_of(self, key_text: str) -> bool:
        """Return whether this node keeps the state of a key, given as `ShareKey.text`."""
        return self._shards.leads_shard_of(key_text)

    @property
    def shards_loading(self) -> int:
        """Number of shards that are not loaded, because they are being read or cannot be read."""
        return sum(not shard.loaded for shard in self._shards.led_shards())

    def state_count(self) -> int:
        """Return the number of states of this node that are loaded."""
        return sum(len(shard) for shard in self._shards.led_shards())

    # -- Requests ----------------------------------------------------------------------------------------------------

    def initialize(self, key: ShareKey, initial: InitialState) -> Outcome:
        """Begin a state epoch."""
        return self._shard(key).initialize(key, initial)

    def write(self, key: ShareKey, wanted: StateWrite) -> Outcome:
        """Write what a leader has changed."""
        return self._shard(key).write(key, wanted)

    def read(self, key: ShareKey, leader_epoch: int) -> StateRead:
        """Read a state for a leader, and shut out those with a lower epoch."""
        return self._shard(key).read(key, leader_epoch)

    def delete(self, key: ShareKey) -> Outcome:
        """Delete a state, if there is one."""
        return self._shard(key).delete(key)

    def summary(self, key: ShareKey) -> ShareSummary:
        """Return a durable state without its batches; `NO_STATE` if it was never initialised."""
        return self._shard(key).summary(key) or NO_STATE

    def _shard(self, key: ShareKey) -> ShareStateShard:
        if not self._shards.is_open:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return self._shards.shard_of(key.text)


async def durable(outcome: Outcome) -> None:
    """Return when what a request rests on is durable. Raises KafkaError if it is not to be."""
    error = await asyncio.shield(outcome)  # others may wait for it, too
    if error is not ErrorCode.NONE:
        raise KafkaError(error)
