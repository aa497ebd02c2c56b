"""Detaches topics from the cluster, attaches and clones them, while the node serves. No data is copied.

Only the node that leads all partitions of a topic can do this, since it alone can upload what is still in its log: the
catalog detaches or clones all records that there are. So partitions that other nodes lead are moved here first, and
stay. A topic with an open transaction is refused, because it would never end in the detached topic or the clone. Each
step is one transaction of the catalog. If the node crashes
before the commit, nothing has changed; after it, all of the topic's records are in objects.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from anabranch.broker.kafka.partitions.snapshot import decode_snapshot
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests, Place
from anabranch.broker.kafka.topics.topic import Topic, TopicLeaving
from anabranch.broker.kafka.topics.turns import ChangeTurns
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import store_names
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import DetachedTopic, MoveReason, TopicInfo
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import AlreadyExists, EndMoved, NodeUnavailable
from anabranch.s3stream.model import NodeIdentity, StreamInfo

CLONE_ATTEMPTS: Final = 10
"""An upload may be committed between reading the end offsets and cloning up to them; both are then repeated."""


class TopicMoves:
    """Detach, attach, clone. A refusal is a KafkaError, a failure of catalog or store a StorageError."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        storage: S3Stream,
        topics: TopicManager,
        turns: ChangeTurns,
        requests: MoveRequests,
        members: Members,
        settings: Settings,
        node: NodeIdentity,
        now_ms: Callable[[], int],
        new_topic_id: Callable[[], bytes],
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._topics = topics
        self._turns = turns
        self._requests = requests
        self._members = members
        self._settings = settings
        self._node = node
        self._now_ms = now_ms
        self._new_topic_id = new_topic_id
        self._attaching: tuple[bytes, str] | None = None
        """Id and new name of the topic whose attachment was begun last, until its outcome is known."""

    async def detach(self, name: str) -> Topic:
        """Upload all of a topic and remove it from the cluster. Its objects stay until it is attached and deleted."""
        await self._gather(name)
        async with self._turns.changing():
            self._movable(name)
            await self._flush()  # uploads most of it while the topic still accepts appends
            topic = self._movable(name)  # which may have moved to another node meanwhile
            for partition in topic.partitions:
                assert partition is not None, "a movable topic is led by this node"
                _refuse_open(str(partition), partition.transactions.open)
            for stream in topic.streams:
                stream.refuse(TopicLeaving(f"topic {name} is being detached"))
            try:
                await self._flush()
            except BaseException:
                for stream in topic.streams:
                    stream.accept(TopicLeaving)
                raise
            async with self._topics.removing(topic):
                await self._catalog.detach_topic(
                    name,
                    topic.topic_id,
                    ends={stream.stream_id: stream.next_offset for stream in topic.streams},
                    node=self._node,
                    now_ms=self._now_ms(),
                )
            return topic

    async def attach(self, which: str, name: str | None = None) -> Topic:
        """Attach a detached topic, given by name or by its id in hex, under `name` or its former name."""
        async with self._turns.changing():
            found = _choose(await self._catalog.list_detached(), which)
            if found is None:
                return self._attached_before(which, name or which)
            new_name = name or found.name
            self._check_new(new_name, len(found.stream_ids), found.configs)
            self._attaching = found.topic_id, new_name
            try:
                info = await self._catalog.attach_topic(found.topic_id, new_name, node=self._node)
            except AlreadyExists as error:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, str(error)) from None
            self._attaching = None
            return await self._opened(info)

    async def _opened(self, info: TopicInfo) -> Topic:
        (topic,) = await self._topics.open_topics(info)
        return topic

    def _attached_before(self, which: str, name: str) -> Topic:
        """Return a topic whose attachment took effect although its answer was lost."""
        topic = self._topics.get(name)
        if topic is not None and self._attaching == (topic.topic_id, name) and which in {name, *_ids(topic.topic_id)}:
            return topic
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No topic {which!r} is detached.")

    async def clone(self, name: str, new_name: str) -> Topic:
        """Create a topic with the records that `name` has now. Later changes to one do not affect the other."""
        await self._gather(name)
        async with self._turns.changing():
            topic = self._movable(name)
            self._check_new(new_name, len(topic.partitions), topic.info.configs)
            topic_id = self._new_topic_id()
            for _ in range(CLONE_ATTEMPTS):
                try:
                    info = await self._clone_once(topic, new_name, topic_id)
                except EndMoved:
                    continue
                except AlreadyExists:
                    await self._topics.open_existing(new_name)
                    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new_name}' already exists.") from None
                return await self._opened(info)
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Topic {name} was uploaded {CLONE_ATTEMPTS} times during the clone; try again.",
            )

    async def _clone_once(self, topic: Topic, new_name: str, topic_id: bytes) -> TopicInfo:
        await self._flush()
        self._movable(topic.name)  # it may have moved to another node meanwhile
        infos = await self._catalog.get_streams([stream.stream_id for stream in topic.streams])
        _check_snapshots(topic, infos)
        return await self._catalog.clone_topic(
            topic.name,
            new_name,
            topic_id,
            ends={key: info.end_offset for key, info in infos.items()},
            node=self._node,
        )

    async def detached(self) -> Sequence[DetachedTopic]:
        """Return the topics that can be attached."""
        return await self._catalog.list_detached()

    async def _flush(self) -> None:
        """Upload everything. Raises REQUEST_TIMED_OUT after a limit, since other changes of topics have to wait."""
        limit_ms = self._settings.node.stop_upload_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._storage.flush()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"What is in the log could not be uploaded within {limit_ms} ms."
            ) from None

    async def _gather(self, name: str) -> None:
        """Let this node lead all partitions of a topic. Raises KafkaError if it does not within a limit."""
        topic = self._topics.get(name)
        elsewhere = (
            {}
            if topic is None
            else {
                Place(name, info.index): self._node.node_id
                for info, partition in zip(topic.info.partitions, topic.partitions, strict=True)
                if partition is None and info.leader != self._node.node_id
            }
        )
        if topic is None or topic.info.internal or not elsewhere:
            return
        for place in elsewhere:
            leader = topic.info.partitions[place.partition].leader
            if self._members.get(leader) is None:
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"Partition {place} is led by node {leader}, which is not running: try again when it is led.",
                )
        limit_ms = self._settings.node.stop_upload_timeout_ms
        try:
            await self._requests.request(elsewhere, MoveReason.GATHERING)
        except NodeUnavailable as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{error}. Send the request to another node.") from None
        progress = await self._requests.wait(elsewhere, limit_ms / 1000)
        if progress.moving:
            await self._requests.cancel(progress.moving)
            progress = self._requests.progress(elsewhere)
        for place, reason in progress.failed.items():
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Partition {place} could not be moved to node {self._node.node_id} within {limit_ms} ms: {reason}",
            )
        with suppress(TimeoutError):  # it leads them before it has opened them
            async with asyncio.timeout(limit_ms / 1000):
                while any(self._topics.is_opening(topic, place.partition) for place in elsewhere):
                    await self._topics.changed()

    # checks

    def _movable(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        if topic.info.internal:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic {name} is internal.")
        for partition, info in zip(topic.partitions, topic.info.partitions, strict=True):
            if partition is None:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"Partition {name}-{info.index} is not open here: node {info.leader} leads it. Try again.",
                )
            if partition.stream.is_sealed:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Partition {name}-{info.index} is being moved; try again."
                )
            if partition.stream.error is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Partition {name}-{info.index} is stopped: {partition.stream.error}"
                )
        return topic

    def _check_new(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        creation = self._topics.new_creation()
        creation.check_name(name)
        creation.check_room(partitions)
        policy = configs.get("storage.policy") or self._settings.objects.store
        if policy not in store_names(self._settings):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"The topic has storage.policy={policy}, and no such store is configured."
            )


def _ids(topic_id: bytes) -> tuple[str, str]:
    """Return the forms in which a topic's id may be given: as commands show it, and as the admin port does."""
    return uuid_text(topic_id), topic_id.hex()


def _choose(found: Sequence[DetachedTopic], which: str) -> DetachedTopic | None:
    named = [topic for topic in found if topic.name == which] or [t for t in found if which in _ids(t.topic_id)]
    if len(named) > 1:
        ids = ", ".join(uuid_text(topic.topic_id) for topic in named)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Several topics {which!r} are detached; name one by its id: {ids}")
    return named[0] if named else None


def _check_snapshots(topic: Topic, infos: Mapping[int, StreamInfo]) -> None:
    for partition in topic.info.partitions:
        info = infos.get(partition.stream_id)
        if info is None:
            message = f"Topic {topic.name} has been deleted or changed through another node."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        transactions = decode_snapshot(info.stream_id, info.snapshot).transactions
        _refuse_open(f"{topic.name}-{partition.index}", transactions.open)


def _refuse_open(partition: str, transactions: Mapping[int, object]) -> None:
    if transactions:
        producers = ", ".join(map(str, sorted(transactions)))
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"Partition {partition} has open transactions (producer ids {producers}): try again when they have ended.",
        )
