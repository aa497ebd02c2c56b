"""The topics as this node knows them: how it opens, serves and closes their partitions as the catalog has them.

Invariants:

- A topic is in the map as soon as this node knows it, with those partitions that are open. Requests for the others that
  it leads are parked until they are open (`is_opening`), so Metadata may name this node as their leader.
- Changes run one at a time, in turns (`broker.kafka.topics.turns`). The catalog decides, and the map follows.
- When the catalog's answer to a change is lost, the outcome is unknown: a topic that was to be deleted is then neither
  served nor released. `resolve_outcomes`, which each turn begins with, reads the outcome from the catalog.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

import structlog

from anabranch.broker.kafka.configs.table import is_enabled
from anabranch.broker.kafka.configs.topic import TopicConfig, TopicDefaults, parse_topic_config
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.partitions.replay import PartitionReplay, replay_recovered
from anabranch.broker.kafka.topics.creation import TopicCreation
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.kafka.topics.places import with_leader, without_older
from anabranch.broker.kafka.topics.topic import Topic, TopicLeaving
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import store_names
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.wire import ZERO_UUID
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CatalogChanges, PartitionInfo, TopicInfo
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable, StorageError
from anabranch.s3stream.tasks import Turns

REMOVED_NAMES_MAX: Final = 1000
OnDeleted = Callable[[Sequence[str]], object]
"""Called with the name of a topic as soon as its deletion is found out, before another one of that name is served."""


def _apply_storage_configs(stream: Stream, config: TopicConfig) -> None:
    """Set the object store of a stream's new data, and whether it goes to stream objects at once."""
    stream.store = config.store
    stream.uploads_alone = config.uploads_alone


class TopicManager(TopicMap):
    """The topics as this node knows them. Commands and other nodes' changes come in turns."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        storage: S3Stream,
        settings: Settings,
        work: RecordWork,
        defaults: TopicDefaults,
        members: Members,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self.parking = Parking()
        """Requests that wait for partitions, groups and transactions that this node is about to serve."""
        self.listeners.append(self.parking.wake)
        self._work = work
        self._catalog = catalog
        self._storage = storage
        self._settings = settings
        self._defaults = defaults
        self._members = members
        self._node_id = settings.node.node_id
        self._now_ms = now_ms
        self._being_removed: dict[bytes, Topic] = {}
        """Topics by id whose removal is under way in the catalog, or whose outcome is unknown."""
        self._removed_names: dict[str, None] = {}
        """Names of removed topics, until a client asks for one. The oldest are forgotten."""
        self._configs_unknown = False
        """True while a change of a topic's configs is under way, and after its answer was lost."""
        self._growth_pending: set[bytes] = set()
        """Ids of topics that may have more partitions in the catalog than are served here."""
        self._log = structlog.get_logger("topics")

    def is_being_removed(self, name: str | None, topic_id: bytes = ZERO_UUID) -> bool:
        """Return whether a topic of that name or id is being deleted or detached, or the outcome of that is unknown."""
        return topic_id in self._being_removed or any(topic.name == name for topic in self._being_removed.values())

    def take_removed(self, name: str) -> bool:
        """Return whether a topic of that name was removed before, once after each removal.

        A client that asks for a topic right after its deletion must learn that it is gone, although it may be created
        again. Apache Kafka says so to the first request for any topic that it creates on request.
        """
        return self._removed_names.pop(name, "") is None

    def known_id(self, name: str) -> bytes | None:
        """Return the topic id that this node knows for the name, even of a topic that is being removed."""
        removed = (topic for topic in self._being_removed.values() if topic.name == name)
        topic = self.get(name) or next(removed, None)
        return None if topic is None else topic.topic_id

    def new_creation(self) -> TopicCreation:
        """Start a creation of topics, to check them before `create_all`."""
        return TopicCreation(self, self._settings.topic.partitions_max)

    def is_opening(self, topic: Topic, index: int) -> bool:
        """Return whether this node is to lead a partition that it has not open yet. `parking` wakes when that ends."""
        return (
            self._by_id.get(topic.topic_id) is topic
            and 0 <= index < len(topic.partitions)
            and topic.partitions[index] is None
            and topic.info.partitions[index].leader == self._node_id
        )

    def _note_opening(self, topic: Topic) -> None:
        """Tell `parking` whether the topic has partitions that this node is opening."""
        if any(self.is_opening(topic, index) for index in range(len(topic.partitions))):
            self.parking.begin(topic.topic_id)
        else:
            self.parking.end(topic.topic_id)

    async def load(self) -> Collection[str]:
        """Open all partitions that this node leads, at the start. Returns the names of all topics, detached or not."""
        topics, detached = await self._catalog.list_topics_and_detached()
        self._check_policies(topics)
        await self.open_topics(*topics)
        return {topic.name for topic in topics}.union(topic.name for topic in detached)

    async def read_names(self) -> Collection[str]:
        """Return the names of all topics of the catalog, detached or not. Raises CatalogError."""
        topics, detached = await self._catalog.list_topics_and_detached()
        return {topic.name for topic in topics}.union(topic.name for topic in detached)

    async def read_ids(self) -> Collection[bytes]:
        """Return the ids of all topics of the catalog, detached or not. Raises CatalogError."""
        topics, detached = await self._catalog.list_topics_and_detached()
        return {topic.topic_id for topic in topics}.union(topic.topic_id for topic in detached)

    def _check_policies(self, topics: Sequence[TopicInfo]) -> None:
        """Raise StorageError if a topic names a store that is not (or no longer) configured."""
        known = store_names(self._settings)
        for info in topics:
            policy = parse_topic_config(info.configs, self._defaults).store
            if policy not in known:
                raise StorageError(
                    f"topic {info.name!r} has storage.policy={policy}, but no such store is configured here: add the "
                    f"table [stores.{policy}] (configured: {', '.join(known)})"
                )

    def names_node(self, node_id: int) -> bool:
        """Return whether a node leads partitions, or may have records of them in its log."""
        return any(node_id in {each.leader, each.owner} for topic in self for each in topic.info.partitions)

    def new_leaders(self) -> Sequence[int]:
        """Return the nodes that partitions may be placed on, this one first."""
        return (self._node_id, *self.other_leaders())

    def other_leaders(self) -> Sequence[int]:
        """Return the other living nodes, which share new partitions with this one.

        A transaction over nodes needs connections between them: a node of an earlier version that takes none gets no
        partitions from others.
        """
        others = (member for member in self._members.living() if member.node_id != self._node_id)
        return [member.node_id for member in others if member.internal_port]

    def expect_growth(self, topic: Topic) -> None:
        """Note that the topic may have more partitions in the catalog from now on, until `open_added`."""
        self._growth_pending.add(topic.topic_id)

    async def open_added(self, topic: Topic, info: TopicInfo) -> None:
        """Open and serve the partitions that the topic has in the catalog only."""
        if info.configs != topic.info.configs:
            self.apply_configs(topic, info.configs)
        added = info.partitions[len(topic.partitions) :]
        if added:
            grown = Topic(info, topic.config, [*topic.partitions, *(None for _ in added)])
            await self._open([(grown, each) for each in added if self._opens(each)])
            topic.info, topic.partitions = replace(info, configs=topic.info.configs), grown.partitions
            self._note_change()
        self._growth_pending.discard(topic.topic_id)

    @contextmanager
    def altering(self) -> Iterator[None]:
        """Change configs in the catalog. All are read again in the next turn, unless the body knows the outcome."""
        self._configs_unknown = True
        yield
        self._configs_unknown = False

    async def _refresh_configs(self) -> None:
        found = await self._catalog.list_topic_configs(settled=self._configs_unknown)
        self._configs_unknown = False
        for topic in self:
            configs = found.get(topic.topic_id, {})
            if configs != topic.info.configs:
                self.apply_configs(topic, configs)

    def apply_defaults(self) -> None:
        """Apply changed defaults to the topics that do not set the config themselves."""
        for topic in (*self, *self._being_removed.values()):
            self.apply_configs(topic, topic.info.configs)

    def apply_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Let a topic have the configs that it has in the catalog."""
        try:
            config = parse_topic_config(configs, self._defaults)
        except (KeyError, ValueError) as error:
            # Accepted by a node of another version. The configs set before stay in force.
            self._log.error(
                "a topic's configs cannot be parsed; its previous configs stay in force",
                topic=topic.name,
                reason=repr(error),
            )
            return
        is_table = is_enabled(topic.info.configs) or is_enabled(configs)
        topic.info = replace(topic.info, configs=configs)
        if config.store not in store_names(self._settings):
            # Accepted by a node that has the store. Data still goes to the previous store, which this node has.
            self._log.error(
                "a topic's storage.policy names a store that is not configured here; its previous store stays in use",
                topic=topic.name,
                policy=config.store,
                used=topic.config.store,
            )
            config = replace(config, store=topic.config.store)
        topic.config = config
        if is_table:  # its upkeep follows changes of topics
            self._note_change()
        for partition in topic.partitions:
            if partition is not None:
                partition.config = config
                _apply_storage_configs(partition.stream, config)

    async def resolve_outcomes(self, on_deleted: OnDeleted) -> None:
        """Read outcomes of changes whose answers were lost, before the next change. Raises CatalogError."""
        if self._configs_unknown:
            await self._refresh_configs()
        if not self._being_removed and not self._growth_pending:
            return
        topics, detached = await self._catalog.list_topics_and_detached(settled=True)
        known = {info.topic_id: info for info in topics}
        kept = known.keys() | {info.topic_id for info in detached}
        held = await self._still_held([topic for topic_id, topic in self._being_removed.items() if topic_id in known])
        for topic_id, topic in list(self._being_removed.items()):
            if topic_id in held:
                self._serve(topic)
            else:
                await self._release(topic)
                if topic_id not in kept:
                    on_deleted([topic.name])
            del self._being_removed[topic_id]
        await self._resolve_growth(known)

    async def _still_held(self, topics: Sequence[Topic]) -> set[bytes]:
        """Return the ids of those topics whose streams this node still has.

        They have its epochs, or their handover is being cancelled. No other node has opened them.
        """
        if not topics:
            return set()
        infos = await self._catalog.get_streams([stream.stream_id for topic in topics for stream in topic.streams])
        owner = self._storage.handovers.owner

        def is_held(stream: Stream) -> bool:
            info = infos.get(stream.stream_id)
            return info is not None and (info.epoch == stream.epoch or (stream.is_sealed and info.is_held_by(owner)))

        return {topic.topic_id for topic in topics if all(is_held(stream) for stream in topic.streams)}

    async def _resolve_growth(self, known: Mapping[bytes, TopicInfo]) -> None:
        for topic_id in list(self._growth_pending):
            topic = self.get(topic_id)
            if topic is not None and topic_id in known:
                try:
                    await self.open_added(topic, known[topic_id])
                except StorageError as error:
                    self._log.warning(
                        "added partitions could not be opened; retried with the next change",
                        topic=topic.name,
                        reason=str(error),
                    )
                    continue
            self._growth_pending.discard(topic_id)

    # changes by other nodes

    async def apply_changes(self, changes: CatalogChanges, on_deleted: OnDeleted) -> None:
        """Serve what this node leads now, and drop what is gone, while no change is under way.

        Raises StorageError. It may be called again with the same or newer changes.
        """
        if changes.topic_ids is not None:
            for topic in self:
                if topic.topic_id not in changes.topic_ids:
                    await self._drop(topic)
                    if topic.topic_id not in changes.detached_ids:
                        on_deleted([topic.name])
        for info in changes.topics:
            known = self.get(info.topic_id)
            if known is not None and known.name != info.name:  # detached, and attached under another name
                await self._drop(known)
        self._name_leaders(changes.topics)
        topics = [self._by_id[info.topic_id] for info in changes.topics]
        for topic, info in zip(topics, changes.topics, strict=True):
            await self._follow(topic, info)
        await self._open_led(*topics)

    def _name_leaders(self, infos: Sequence[TopicInfo]) -> None:
        """Announce all new leaders to clients before any partition is opened; this node parks requests until then."""
        is_changed = False
        for info in infos:
            topic = self.get(info.topic_id)
            if topic is None:
                topic = self._new_topic(info)
                self._insert(topic)
                self._note_opening(topic)
            if len(topic.partitions) != len(info.partitions):
                continue
            info = without_older(info, topic.info)
            closes = any(
                partition is not None and each.owner != self._node_id
                for each, partition in zip(info.partitions, topic.partitions, strict=True)
            )
            if not closes and topic.info.partitions != info.partitions:
                topic.info = replace(info, configs=topic.info.configs)
                self._note_opening(topic)
                is_changed = True
        if is_changed:
            self._note_change()

    async def _drop(self, topic: Topic) -> None:
        self._discard(topic)
        await self._release(topic)

    async def _follow(self, topic: Topic, info: TopicInfo) -> None:
        """Apply the configs, added partitions, leaders and owners that the topic has in the catalog."""
        info = without_older(info, topic.info)
        closing = [
            partition
            for each, partition in zip(info.partitions, topic.partitions, strict=False)
            if partition is not None and each.owner != self._node_id
        ]
        for partition in closing:
            topic.partitions[partition.index] = None
        if closing:
            self._note_change()
        for partition in closing:
            await self._close(partition)
        info = without_older(info, topic.info)  # a move may have ended meanwhile
        if topic.info.partitions != info.partitions:
            topic.partitions += [None] * (len(info.partitions) - len(topic.partitions))
            topic.info = replace(info, configs=topic.info.configs)
            self._note_change()
        self._note_opening(topic)
        await self.open_added(topic, info)  # its configs

    async def _open_led(self, *topics: Topic) -> None:
        """Open what this node leads and has not open, in one transaction of the catalog."""
        opening = [
            (topic, each)
            for topic in topics
            for each in topic.info.partitions
            if topic.partitions[each.index] is None and self._opens(each)
        ]
        if opening:
            await self._open(opening)
            for topic in topics:
                self._note_opening(topic)
            self._note_change()

    async def open_left(self, topic_id: bytes) -> None:
        """Open those partitions of a topic that this node leads and has not open. Raises StorageError."""
        topic = self._by_id.get(topic_id)
        if topic is not None:
            await self._follow(topic, topic.info)
            await self._open_led(topic)

    # moves of partitions between living nodes: both ends know the outcome before they have read it as a change

    def serve_received(self, topic_id: bytes, index: int, stream: Stream) -> bool:
        """Serve a partition whose stream has come from another node; False if its topic is gone."""
        topic = self._by_id.get(topic_id) or self._being_removed.get(topic_id)
        if topic is None:
            return False
        assert topic.partitions[index] is None, "a stream that is being received is not opened"
        topic.partitions[index] = self._new_partition(topic, index, stream)
        self._note_place(topic, index, self._node_id, stream.leader_epoch)
        return True

    def note_moved(self, partition: Partition, leader: int) -> None:
        """Stop serving a partition that this node has moved to another leader."""
        topic = self._by_id.get(partition.topic_id) or self._being_removed.get(partition.topic_id)
        if topic is not None and topic.partitions[partition.index] is partition:
            topic.partitions[partition.index] = None
            self._note_place(topic, partition.index, leader, partition.leader_epoch + 1)

    def _note_place(self, topic: Topic, index: int, leader: int, leader_epoch: int) -> None:
        topic.info = with_leader(topic.info, index, leader, leader_epoch)
        self._note_opening(topic)
        self._note_change()

    # steps of changes

    def _serve(self, topic: Topic) -> None:
        """Add a topic whose streams are open to the map; one that was being detached accepts appends again."""
        for stream in topic.streams:
            stream.accept(TopicLeaving)
        self._insert(topic)

    @asynccontextmanager
    async def removing(self, *topics: Topic) -> AsyncIterator[None]:
        """Stop serving the topics while the body removes them from the catalog, then close their streams.

        If the catalog refuses, they are served again. If its answer is lost, or the wait for it is cancelled, they are
        left to `resolve_outcomes`.
        """
        for topic in topics:
            self._discard(topic)
            self._being_removed[topic.topic_id] = topic
        try:
            yield
        except CatalogUnavailable:
            raise
        except (CatalogError, KafkaError):
            for topic in topics:
                del self._being_removed[topic.topic_id]
                self._serve(topic)
            raise
        for topic in topics:
            await self._release(topic)
        # All together: after a cancellation all are left to `resolve_outcomes`, none is forgotten.
        for topic in topics:
            del self._being_removed[topic.topic_id]

    async def _release(self, topic: Topic) -> None:
        """Close a removed topic's streams, and notify readers that wait on it."""
        self._removed_names[topic.name] = None
        if len(self._removed_names) > REMOVED_NAMES_MAX:
            del self._removed_names[next(iter(self._removed_names))]
        self.parking.end(topic.topic_id)
        for partition in topic.partitions:
            if partition is not None:
                await self._close(partition)

    async def _close(self, partition: Partition) -> None:
        partition.notify_listeners()
        await self._storage.close_stream(partition.stream, discard=True)

    async def open_topics(self, *infos: TopicInfo) -> Sequence[Topic]:
        """Open and serve topics of the catalog, in one transaction of it."""
        if not infos:
            return ()
        topics = [self._new_topic(info) for info in infos]
        await self._open([(topic, each) for topic in topics for each in topic.info.partitions if self._opens(each)])
        for topic in topics:
            self._serve(topic)
        return topics

    async def open_existing(self, *names: str) -> Sequence[Topic]:
        """Open those of the topics that exist in the catalog only, because their creation was interrupted."""
        return await self.open_topics(*(info for info in await self._catalog.list_topics() if info.name in names))

    def _opens(self, partition: PartitionInfo) -> bool:
        """Return whether to open it here: this node leads it, and no other one may have records of it in its log."""
        if self._storage.handovers.is_receiving(partition.stream_id):
            return False
        return {partition.leader, partition.owner} <= {self._node_id, -1}

    def _new_topic(self, info: TopicInfo) -> Topic:
        config = parse_topic_config(info.configs, self._defaults)
        return Topic(info, config, [None] * len(info.partitions))

    async def _open(self, partitions: Sequence[tuple[Topic, PartitionInfo]]) -> None:
        if not partitions:
            return
        streams = await self._storage.open_streams([info.stream_id for _, info in partitions])
        turns = Turns()
        for (topic, info), stream in zip(partitions, streams, strict=True):
            state = await replay_recovered(stream, turns, self._now_ms)
            topic.partitions[info.index] = self._new_partition(topic, info.index, stream, state)

    def _new_partition(
        self, topic: Topic, index: int, stream: Stream, state: PartitionReplay | None = None
    ) -> Partition:
        _apply_storage_configs(stream, topic.config)
        return Partition(topic.name, topic.topic_id, index, stream, topic.config, self._work, self._now_ms, state)
