"""Commands that change topics: create, grow, alter, delete. The catalog decides, and this node's topics follow."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.kafka.topics.turns import ChangeTurns
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NewTopic, PartitionInfo, TopicInfo
from anabranch.s3stream.errors import AlreadyExists, NotFound

OPENED_ELSEWHERE_S: Final = 5.0
"""Longest wait for other nodes to open partitions that were created here."""


@contextmanager
def _unknown_if_gone() -> Iterator[None]:
    """Raise UNKNOWN_TOPIC_OR_PARTITION if another node has deleted the topic."""
    try:
        yield
    except NotFound:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None


class TopicCommands:
    """Changes to the topics of the cluster, each in a turn."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: TopicManager,
        turns: ChangeTurns,
        members: Members,
        settings: Settings,
        now_ms: Callable[[], int],
        new_topic_id: Callable[[], bytes],
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._turns = turns
        self._members = members
        self._settings = settings
        self._node_id = settings.node.node_id
        self._now_ms = now_ms
        self._new_topic_id = new_topic_id

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str], internal: bool = False) -> Topic:
        """Create a topic and open it. Raises KafkaError."""
        factor = 1 if internal else self._settings.topic.replication_factor
        (created,) = await self.create_all([TopicSpec(name, partitions, configs, internal, factor=factor)])
        if isinstance(created, KafkaError):
            raise created
        return created

    async def create_all(self, specs: Sequence[TopicSpec]) -> Sequence[Topic | KafkaError]:
        """Create topics with distinct names and open them, all in two transactions of the catalog.

        Returns a KafkaError in place of each topic that is refused. A StorageError concerns all the others: the
        catalog has then none or all of them. It opens them when they are created again, or at the next start.
        """
        async with self._turns.changing():
            errors: dict[str, KafkaError] = {}
            creation = self._topics.new_creation()
            for spec in specs:
                try:
                    creation.check_name(spec.name)
                    creation.check_room(spec.partitions)
                except KafkaError as error:
                    errors[spec.name] = error
                else:
                    creation.add(spec)
            opened = {topic.name: topic for topic in await self._create_all(creation.specs, errors)}
        await self._until_served(opened.values())
        return [errors.get(spec.name) or opened[spec.name] for spec in specs]

    async def _create_all(self, specs: Sequence[TopicSpec], errors: dict[str, KafkaError]) -> Sequence[Topic]:
        if not specs:
            return ()
        answers = await self._catalog.create_topics(
            [
                NewTopic(
                    spec.name,
                    self._new_topic_id(),
                    spec.partitions,
                    spec.configs,
                    spec.internal,
                    spec.leaders,
                    spec.replicas,
                    spec.factor,
                )
                for spec in specs
            ],
            leader=self._node_id,
            others=self._topics.other_leaders(),
        )
        taken = [spec.name for spec, answer in zip(specs, answers, strict=True) if isinstance(answer, AlreadyExists)]
        for name in taken:
            errors[name] = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        opened = await self._topics.open_topics(*(answer for answer in answers if isinstance(answer, TopicInfo)))
        if taken:
            await self._topics.open_existing(*taken)
        return opened

    async def ensure(self, name: str, *, partitions: int, configs: Mapping[str, str], internal: bool = False) -> Topic:
        """Return the topic, and create it if it does not exist."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        try:
            return await self.create(name, partitions=partitions, configs=configs, internal=internal)
        except KafkaError as error:
            found = self._topics.get(name)
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or found is None:
                raise
            return found

    async def grow(
        self,
        name: str,
        total: int,
        leaders: Sequence[int] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Add partitions until there are `total`, with `leaders` and `replicas` in order, or placed over the nodes.

        Raises KafkaError.
        """
        async with self._turns.changing():
            topic = self._topics.require(name)
            before = len(topic.partitions)
            if total <= before:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {name} currently has {before} partition(s); {total} would not be an increase.",
                )
            if leaders is not None and len(leaders) != total - before:  # others have changed the topic meanwhile
                message = f"{total - before} partition(s) are to be added, but {len(leaders)} leader(s) were given."
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
            self._topics.new_creation().check_room(total - before)
            self._topics.expect_growth(topic)
            with _unknown_if_gone():
                info = await self._catalog.add_partitions(
                    topic.topic_id,
                    total,
                    leader=self._node_id,
                    others=self._topics.other_leaders(),
                    leaders=leaders,
                    replicas=replicas,
                )
            await self._topics.open_added(topic, info)
        await self._until_served([topic])
        return topic

    async def alter(self, name: str, change: Callable[[dict[str, str]], Mapping[str, str]]) -> Topic:
        """Give a topic the configs that `change` makes of its own ones: see `Catalog.alter_topic`.

        They are effective from the next request on.
        """
        async with self._turns.changing():
            topic = self._topics.require(name)
            with self._topics.altering(), _unknown_if_gone():
                info = await self._catalog.alter_topic(topic.topic_id, change)
            self._topics.apply_configs(topic, info.configs)
            return topic

    async def delete(self, *names: str, ids: Mapping[str, bytes] | None = None) -> Sequence[str]:
        """Delete topics in one transaction of the catalog, and notify readers that wait on them.

        `ids` has the intended topic ids by name: another topic of that name is left alone.
        Returns the names of those that existed. After CatalogUnavailable either all or none are deleted: the request
        may be repeated, and `TopicManager.resolve_outcomes` finds the outcome.
        """
        async with self._turns.changing():
            found = [topic for name in dict.fromkeys(names) if (topic := self._topics.get(name)) is not None]
            if ids is not None:
                found = [topic for topic in found if ids.get(topic.name, topic.topic_id) == topic.topic_id]
            if not found:
                return ()
            gone = [topic.name for topic in found]
            now_ms = self._now_ms()
            delete_after_ms = now_ms + self._settings.storage.delete_delay_ms
            async with self._topics.removing(*found):
                gone_ids = [topic.topic_id for topic in found]
                await self._catalog.delete_topics(gone_ids, now_ms=now_ms, delete_after_ms=delete_after_ms)
            return gone

    async def _until_served(self, topics: Collection[Topic]) -> None:
        """Wait for other living nodes to open their new partitions: the client may send to them at once.

        The wait is short. Clients find out by themselves when a partition has a leader.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENED_ELSEWHERE_S):
                while any(self._is_awaited(topic, each) for topic in topics for each in topic.info.partitions):
                    await self._topics.changed()

    def _is_awaited(self, topic: Topic, partition: PartitionInfo) -> bool:
        leads_elsewhere = partition.leader != self._node_id and self._members.get(partition.leader) is not None
        return leads_elsewhere and partition.owner != partition.leader and self._topics.get(topic.topic_id) is topic
