"""Requests of Kafka's protocol to this node and to others: to a partition's leader, a coordinator, or all nodes."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from anabranch.broker.api.handlers.leadership import NO_LEADER, find_leadership
from anabranch.broker.api.handlers.local import LocalRefusal, LocalRequests, User
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.relay import RelayRefused, relay
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

SILENCE_S = 5.0
"""Time for which a node that has not answered is left out, so that later answers do not wait for it."""
CALL_TIMEOUT_S: Final = 10.0
"""Time limit of a request to one node."""
INTERNAL_VERSION: Final = 0
"""Version of requests of the internal port."""
T = TypeVar("T")
Partition = tuple[str, int]
"""Name of a topic, and index."""
PIECE_PARTITIONS: Final = 1000
"""Partitions that one request asks a node about: a few ms of its time."""


class Calls:
    """Sends requests to the nodes that can answer them."""

    def __init__(self, serving: Serving, local: LocalRequests) -> None:
        self._serving = serving
        self._local = local
        self._silent_until_s: dict[int, float] = {}
        """Time until which nodes are not asked in groups, since they have not answered a moment ago."""

    async def call(self, node_id: int, request: Any, user: User, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Return the response of a node. Raises PeerUnavailable, LocalRefusal, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            if node_id == self._serving.node_id:
                return await self._local.call(request, user)
            handler = self._local.handler_of(request)
            try:
                return await relay(
                    self._serving.links,
                    node_id,
                    request,
                    handler.local_version,
                    principal=user.principal,
                    host=user.host,
                )
            except RelayRefused as error:
                raise LocalRefusal(str(error)) from error

    async def ask_node(self, node_id: int, request: Any) -> Any | None:
        """Return another node's response to a request of the internal port; None if it does not answer."""
        try:
            return await self._serving.links.call(node_id, request, INTERNAL_VERSION)
        except PeerUnavailable:
            return None

    async def call_each(
        self, node_ids: Iterable[int], make: Callable[[int], Any], user: User, timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[Mapping[int, Any], list[int]]:
        """Ask several nodes at once. Return the responses by node, and the nodes that have not answered in time."""
        answers: dict[int, Any] = {}
        unreachable: list[int] = []
        clock = asyncio.get_running_loop().time

        async def ask(node_id: int) -> None:
            try:
                if clock() < self._silent_until_s.get(node_id, 0.0):
                    unreachable.append(node_id)
                else:
                    answers[node_id] = await self.call(node_id, make(node_id), user, timeout_s)
            except (PeerUnavailable, TimeoutError):
                self._silent_until_s[node_id] = clock() + SILENCE_S
                unreachable.append(node_id)
            except (LocalRefusal, KafkaError, StorageError):
                unreachable.append(node_id)

        async with asyncio.TaskGroup() as group:
            for node_id in node_ids:
                group.create_task(ask(node_id))
        return answers, sorted(unreachable)

    async def ask_in_pieces(
        self, wanted: Mapping[int, Sequence[T]], make: Callable[[Sequence[T]], Any], size: int, user: User
    ) -> tuple[list[Any], frozenset[int]]:
        """Ask each node about many things, `size` of them at a time. Return all responses, and who has not answered."""
        answers: list[Any] = []
        unreachable: set[int] = set()
        left = {node_id: things for node_id, things in wanted.items() if things}
        while left:
            turn = {node_id: make(things[:size]) for node_id, things in left.items()}
            found, missing = await self.call_each(turn, turn.__getitem__, user)
            answers += found.values()
            unreachable.update(missing)
            left = {key: things[size:] for key, things in left.items() if len(things) > size and key not in missing}
        return answers, frozenset(unreachable)

    def by_leader(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        """Group partitions by their leaders. Partitions that are deleted, or have no leader, are left out."""
        led: dict[int, list[Partition]] = {}
        for topic, index in partitions:
            try:
                leader = self.leader_of(topic, index)
            except KafkaError:
                continue  # the topic has gone
            if leader != NO_LEADER:
                led.setdefault(leader, []).append((topic, index))
        return led

    def living(self) -> list[int]:
        """Return the ids of all living nodes."""
        return [member.node_id for member in self._serving.members.living()]

    def leader_of(self, topic: str, index: int) -> int:
        """Return the node that leads a partition; -1 if none does. Raises KafkaError for an unknown partition."""
        found = find_leadership(self._serving, topic, index)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {index} of topic {topic} does not exist")
        return NO_LEADER if found.leader is None else found.leader.node_id

    def needed_leader(self, topic: str, index: int) -> int:
        """Return the node that leads a partition. Raises KafkaError if none does."""
        leader = self.leader_of(topic, index)
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"No node leads partition {index} of {topic!r}.")
        return leader

    def coordinator_of(self, group_id: str) -> int:
        """Return the node that coordinates a group. Raises KafkaError if there is none."""
        topic = self._serving.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist")
        return self.needed_leader(OFFSETS_TOPIC, partition_of(group_id, len(topic.info.partitions)))

    def transaction_coordinator_of(self, transactional_id: str) -> int:
        """Return the node that coordinates a transactional id. Raises KafkaError if there is none."""
        topic = self._serving.topics.get(TRANSACTION_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {transactional_id} does not exist"
            )
        return self.needed_leader(TRANSACTION_TOPIC, partition_of(transactional_id, len(topic.info.partitions)))
