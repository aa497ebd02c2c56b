"""The topics this node knows and the partitions it leads: loaded at start, changed by admin requests.

A topic appears here only when its streams are open, so that whoever finds it can use it, and Metadata never names a
leader that cannot serve. Changes run one at a time; the catalog decides, this map follows. A topic whose deletion was
asked for and not answered is neither here nor gone: `settle` asks the catalog again, and also about configs and added
partitions.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import structlog

from broker.configs.topic import TopicConfig, TopicDefaults, parse_topic_config
from broker.partitions.partition import Partition
from broker.partitions.record_work import RecordWork
from broker.settings.model import Settings
from broker.settings.stores import store_names
from protocol.errors import ErrorCode, KafkaError
from s3stream.append.stream import Stream
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NewTopic, PartitionInfo, TopicInfo
from s3stream.engine import S3Stream
from s3stream.errors import AlreadyExists, CatalogError, CatalogUnavailable, NotFound, StorageError, StorageStopped

NAME_LENGTH_MAX = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The log of Kafka's controllers. There is none here, and what clients find under this name must not be a user's."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(slots=True)
class Topic:
    """A topic and its partitions, by index; None where another node leads."""

    info: TopicInfo
    config: TopicConfig
    partitions: list[Partition | None] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.info.name

    @property
    def topic_id(self) -> bytes:
        """Its uuid, 16 bytes."""
        return self.info.topic_id

    @property
    def streams(self) -> Sequence[Stream]:
        """Streams of the partitions this node leads."""
        return [partition.stream for partition in self.partitions if partition is not None]


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic to be created."""

    name: str
    partitions: int
    configs: Mapping[str, str]
    internal: bool = False


class Batch:
    """Topics to be created together: each was checked against those there are, and against those before it."""

    def __init__(self) -> None:
        self.topics: list[WantedTopic] = []
        self.partitions = 0
        self._names: dict[str, str] = {}

    def add(self, topic: WantedTopic) -> None:
        """Take a topic that was checked."""
        self.topics.append(topic)
        self.partitions += topic.partitions
        self._names[_collision_key(topic.name)] = topic.name

    def collision(self, name: str) -> str | None:
        """The topic that one of that name would collide with."""
        return self._names.get(_collision_key(name))


class TopicLeaving(StorageStopped):
    """The topic is on its way out of the cluster and takes no appends."""


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, in Kafka's words, for a name Kafka refuses."""
    problem = ""
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


@contextmanager
def _unknown_if_gone() -> Iterator[None]:
    """Another node has deleted the topic: for the client it is unknown."""
    try:
        yield
    except NotFound:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None


def _place(stream: Stream, config: TopicConfig) -> None:
    """Tell a stream into what objects its data goes."""
    stream.store = config.store
    stream.uploads_alone = config.uploads_alone


def _collision_key(name: str) -> str:
    return name.replace(".", "_")  # as in the names of Kafka's metrics


class TopicManager:
    """Topics by name and by id."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        storage: S3Stream,
        settings: Settings,
        work: RecordWork,
        defaults: TopicDefaults,
        now_ms: Callable[[], int],
        new_topic_id: Callable[[], bytes],
    ) -> None:
        self._work = work
        self._catalog = catalog
        self._storage = storage
        self._settings = settings
        self._defaults = defaults
        self._node_id = settings.node.node_id
        self._now_ms = now_ms
        self._new_topic_id = new_topic_id
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._collisions: dict[str, str] = {}
        self._leaving: dict[bytes, Topic] = {}
        """By id: the catalog was asked to let go of them, and its answer was lost."""
        self._configs_in_doubt = False
        """The catalog was asked to change a topic's configs, and its answer was lost."""
        self._growth_in_doubt: set[bytes] = set()
        """Ids of topics that the catalog was asked to give more partitions, which are not served yet."""
        self._changes = asyncio.Lock()
        self._log = structlog.get_logger("topics")
        self.version = 0
        """Goes up whenever a topic appears, goes, or gets more partitions."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        """All topics, by name."""
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(len(topic.info.partitions) for topic in self._by_name.values())

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def get_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic of that id."""
        return self._by_id.get(topic_id)

    def is_leaving(self, name: str) -> bool:
        """Whether a topic of that name is being deleted or detached, or nobody knows yet whether it was."""
        return any(topic.name == name for topic in self._leaving.values())

    def partition(self, name: str, index: int) -> Partition:
        """A partition this node leads. Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partition_of(topic, index)

    @staticmethod
    def partition_of(topic: Topic, index: int) -> Partition:
        """The same for a topic found before."""
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[index]
        if partition is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def led_partitions(self) -> Iterator[Partition]:
        """All partitions this node leads."""
        for topic in self._by_name.values():
            for partition in topic.partitions:
                if partition is not None:
                    yield partition

    def check_new_name(self, name: str, batch: Batch | None = None) -> None:
        """Raise what Kafka raises when a topic of that name cannot be created, those of `batch` being there."""
        check_topic_name(name)
        if name == CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        other = self._collisions.get(_collision_key(name))
        if other is None and batch is not None:
            other = batch.collision(name)
        if name == other or name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def check_room(self, partitions: int, batch: Batch | None = None) -> None:
        """Raise POLICY_VIOLATION when `partitions` more, beside those of `batch`, would be too many."""
        limit = self._settings.topic.partitions_max
        there = self.partition_count + (0 if batch is None else batch.partitions)
        if there + partitions > limit:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions more than the {there} there are would exceed the limit of "
                f"{limit} (topic.partitions_max)",
            )

    # changes

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """One change at a time, and none before it is known what became of those before. Raises CatalogError."""
        async with self._changes:
            await self._settle()
            yield

    async def load(self) -> None:
        """Open everything this node leads. Once, at the start."""
        topics = await self._catalog.list_topics()
        self._check_policies(topics)
        await self.open_new(*topics)

    def _check_policies(self, topics: Sequence[TopicInfo]) -> None:
        """Raise StorageError when a topic's data should go to a store that is not configured (any more)."""
        known = store_names(self._settings)
        for info in topics:
            policy = parse_topic_config(info.configs, self._defaults).store
            if policy not in known:
                raise StorageError(
                    f"topic {info.name!r} has storage.policy={policy}, but no such store is configured here: add the "
                    f"table [stores.{policy}] (configured: {', '.join(known)})"
                )

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str], internal: bool = False) -> Topic:
        """Create a topic and open it. Raises KafkaError."""
        (created,) = await self.create_all([WantedTopic(name, partitions, configs, internal)])
        if isinstance(created, KafkaError):
            raise created
        return created

    async def create_all(self, wanted: Sequence[WantedTopic]) -> Sequence[Topic | KafkaError]:
        """Create topics, no two of one name, and open them, all in two transactions of the catalog.

        The error stands in the place of a topic that cannot be. A StorageError is of all that could: the catalog has
        none of them then, or all of them, and those are adopted when they are asked for again, or at the next start.
        """
        async with self.changing():
            errors: dict[str, KafkaError] = {}
            batch = Batch()
            for topic in wanted:
                try:
                    self.check_new_name(topic.name, batch)
                    self.check_room(topic.partitions, batch)
                except KafkaError as error:
                    errors[topic.name] = error
                else:
                    batch.add(topic)
            opened = {topic.name: topic for topic in await self._create_all(batch.topics, errors)}
            return [errors.get(topic.name) or opened[topic.name] for topic in wanted]

    async def _create_all(self, wanted: Sequence[WantedTopic], errors: dict[str, KafkaError]) -> Sequence[Topic]:
        if not wanted:
            return ()
        answers = await self._catalog.create_topics(
            [
                NewTopic(topic.name, self._new_topic_id(), topic.partitions, topic.configs, topic.internal)
                for topic in wanted
            ],
            leader=self._node_id,
        )
        taken = [topic.name for topic, answer in zip(wanted, answers, strict=True) if isinstance(answer, AlreadyExists)]
        for name in taken:
            errors[name] = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        opened = await self.open_new(*(answer for answer in answers if isinstance(answer, TopicInfo)))
        if taken:
            await self.adopt(*taken)
        return opened

    async def ensure(self, name: str, *, partitions: int, configs: Mapping[str, str], internal: bool = False) -> Topic:
        """The topic, created if it is not there yet."""
        topic = self._by_name.get(name)
        if topic is not None:
            return topic
        try:
            return await self.create(name, partitions=partitions, configs=configs, internal=internal)
        except KafkaError as error:
            found = self._by_name.get(name)
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or found is None:
                raise
            return found

    async def grow(self, name: str, total: int) -> Topic:
        """Add partitions until there are `total`. Raises KafkaError."""
        async with self.changing():
            topic = self._by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            before = len(topic.partitions)
            if total <= before:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} currently has {before} partition(s); {total} would not be an increase.",
                )
            self.check_room(total - before)
            self._growth_in_doubt.add(topic.topic_id)  # until they are served
            with _unknown_if_gone():
                info = await self._catalog.add_partitions(topic.topic_id, total, leader=self._node_id)
            await self._take_partitions(topic, info)
            return topic

    async def _take_partitions(self, topic: Topic, info: TopicInfo) -> None:
        """Open and serve what the catalog has beyond the topic's partitions."""
        if info.configs != topic.info.configs:
            self._take_configs(topic, info.configs)
        added = info.partitions[len(topic.partitions) :]
        if added:
            grown = Topic(info, topic.config, [*topic.partitions, *(None for _ in added)])
            await self._open([(grown, each) for each in added if self._leads(each)])
            topic.info, topic.partitions = replace(info, configs=topic.info.configs), grown.partitions
            self.version += 1
        self._growth_in_doubt.discard(topic.topic_id)

    async def alter(self, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str]) -> Topic:
        """Change a topic's own configs; they hold from the next request on."""
        async with self.changing():
            topic = self._by_name.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._configs_in_doubt = True  # until the answer is here
            with _unknown_if_gone():
                info = await self._catalog.alter_topic(topic.topic_id, set_configs=set_configs, unset=unset)
            self._configs_in_doubt = False
            self._take_configs(topic, info.configs)
            return topic

    async def refresh_configs(self) -> None:
        """Take what was set for topics through other nodes. Raises CatalogError."""
        async with self._changes:
            await self._refresh_configs()

    async def _refresh_configs(self) -> None:
        found = await self._catalog.list_topic_configs()
        self._configs_in_doubt = False
        for topic in self:
            configs = found.get(topic.topic_id, {})
            if configs != topic.info.configs:
                self._take_configs(topic, configs)

    def take_defaults(self) -> None:
        """Have topics follow defaults that have changed, where they have no value of their own."""
        for topic in (*self._by_name.values(), *self._leaving.values()):
            self._take_configs(topic, topic.info.configs)

    def _take_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        try:
            config = parse_topic_config(configs, self._defaults)
        except (KeyError, ValueError) as error:
            # Accepted by a node of another version. What was set before holds on.
            self._log.error("a topic's configs are not understood here", topic=topic.name, reason=repr(error))
            return
        topic.info = replace(topic.info, configs=configs)
        if config.store not in store_names(self._settings):
            # Accepted by a node that has the store. Data goes on to the store before, which this node has.
            self._log.error(
                "a topic's storage.policy names a store that is not configured here",
                topic=topic.name,
                policy=config.store,
                used=topic.config.store,
            )
            config = replace(config, store=topic.config.store)
        topic.config = config
        for partition in topic.partitions:
            if partition is not None:
                partition.config = config
                _place(partition.stream, config)

    async def delete(self, *names: str) -> Sequence[str]:
        """Delete topics in one transaction of the catalog; readers that wait on them learn at once.

        Returns the names of those that were there. CatalogUnavailable leaves open whether they are deleted, all of
        them or none: asking again is right, and `settle` finds out.
        """
        async with self.changing():
            found = [self._by_name[name] for name in dict.fromkeys(names) if name in self._by_name]
            if not found:
                return ()
            gone = [topic.name for topic in found]
            now_ms = self._now_ms()
            delete_after_ms = now_ms + self._settings.storage.delete_delay_ms
            async with self.leaving(*found):
                ids = [topic.topic_id for topic in found]
                await self._catalog.delete_topics(ids, now_ms=now_ms, delete_after_ms=delete_after_ms)
            return gone

    async def settle(self) -> Sequence[str]:
        """Ask what became of changes whose answers were lost; returns the names of topics gone. Raises CatalogError."""
        async with self._changes:
            return await self._settle()

    async def _settle(self) -> Sequence[str]:
        if self._configs_in_doubt:
            await self._refresh_configs()
        if not self._leaving and not self._growth_in_doubt:
            return ()
        known = {info.topic_id: info for info in await self._catalog.list_topics()}
        held = await self._held([topic for topic_id, topic in self._leaving.items() if topic_id in known])
        gone = []
        for topic_id, topic in list(self._leaving.items()):
            if topic_id in held:
                self.add(topic)
            else:
                await self.forget(topic)
                if topic_id not in known:
                    gone.append(topic.name)
            del self._leaving[topic_id]
        await self._settle_growth(known)
        return gone

    async def _held(self, topics: Sequence[Topic]) -> set[bytes]:
        """Those topics whose streams nobody has opened since. What was detached, and attached elsewhere, is not."""
        if not topics:
            return set()
        infos = await self._catalog.get_streams([stream.stream_id for topic in topics for stream in topic.streams])
        epochs = {stream_id: info.epoch for stream_id, info in infos.items()}
        return {
            topic.topic_id
            for topic in topics
            if all(epochs.get(stream.stream_id) == stream.epoch for stream in topic.streams)
        }

    async def _settle_growth(self, known: Mapping[bytes, TopicInfo]) -> None:
        for topic_id in list(self._growth_in_doubt):
            topic = self._by_id.get(topic_id)
            if topic is not None and topic_id in known:
                try:
                    await self._take_partitions(topic, known[topic_id])
                except StorageError as error:
                    self._log.warning("added partitions cannot be opened yet", topic=topic.name, reason=str(error))
                    continue
            self._growth_in_doubt.discard(topic_id)

    # steps of changes

    def remove(self, topic: Topic) -> None:
        """Serve it no more."""
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self.version += 1
        self._collisions.pop(_collision_key(topic.name), None)

    def add(self, topic: Topic) -> None:
        """Serve it, its streams being open; one that was leaving takes appends again."""
        for stream in topic.streams:
            stream.accept(TopicLeaving)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self.version += 1
        self._collisions[_collision_key(topic.name)] = topic.name

    @asynccontextmanager
    async def leaving(self, *topics: Topic) -> AsyncIterator[None]:
        """Serve the topics no more while the body has the catalog let them go; forget them then.

        When the catalog refuses they are served again. When its answer is lost, or nobody waits for it any longer, the
        topics are left to `settle`.
        """
        for topic in topics:
            self.remove(topic)
            self._leaving[topic.topic_id] = topic
        try:
            yield
        except CatalogUnavailable:
            raise
        except (CatalogError, KafkaError):
            for topic in topics:
                del self._leaving[topic.topic_id]
                self.add(topic)
            raise
        for topic in topics:
            await self.forget(topic)
            del self._leaving[topic.topic_id]

    async def forget(self, topic: Topic) -> None:
        """Let go of a removed topic's streams; readers that wait on it learn at once."""
        for partition in topic.partitions:
            if partition is not None:
                partition.wake_all()
                await self._storage.close_stream(partition.stream, discard=True)

    async def open_new(self, *infos: TopicInfo) -> Sequence[Topic]:
        """Open and serve topics that the catalog has, in one transaction of it."""
        if not infos:
            return ()
        topics = [self._new_topic(info) for info in infos]
        await self._open([(topic, each) for topic in topics for each in topic.info.partitions if self._leads(each)])
        for topic in topics:
            self.add(topic)
        return topics

    async def adopt(self, *names: str) -> Sequence[Topic]:
        """Open topics that only the catalog knows, those it has: an attempt to create them got no further."""
        return await self.open_new(*(info for info in await self._catalog.list_topics() if info.name in names))

    def _leads(self, partition: PartitionInfo) -> bool:
        """Whether to open it here: what another node leads has records in that node's log only."""
        return partition.leader in {self._node_id, -1}

    def _new_topic(self, info: TopicInfo) -> Topic:
        config = parse_topic_config(info.configs, self._defaults)
        return Topic(info, config, [None] * len(info.partitions))

    async def _open(self, wanted: Sequence[tuple[Topic, PartitionInfo]]) -> None:
        streams = await self._storage.open_streams([info.stream_id for _, info in wanted])
        for (topic, info), stream in zip(wanted, streams, strict=True):
            topic.partitions[info.index] = self._new_partition(topic, info.index, stream)

    def _new_partition(self, topic: Topic, index: int, stream: Stream) -> Partition:
        _place(stream, topic.config)
        return Partition(topic.name, topic.topic_id, index, stream, topic.config, self._work, self._now_ms)
