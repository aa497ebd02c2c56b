"""Moves of partitions to a node or to their preferred leaders: ordered, and followed.

`GET /cluster/status` lists those that are not carried out.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

from pydantic import Field

from anabranch.broker.api.handlers.elect_leaders import PREFERRED, preferred_moves
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, ValidationQuery, check
from anabranch.broker.operator.admin.api.topics import topic_named
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.s3stream.catalog.values import MoveReason

ELECTED_MAX: Final = 1000
"""Moves of an election that are shown."""


class MoveQuery(ValidationQuery):
    """Partitions, and the node that shall lead them."""

    to: Annotated[int, Field(ge=0)]
    """Id of the node."""
    partitions: Annotated[str, Field(pattern=r"^[0-9]{1,9}(,[0-9]{1,9})*$")] | None = None
    """Indexes with commas between them; by default all of the topic."""


class MoveOrder(Model):
    """Moves that were ordered, or that would be."""

    to: int
    topic: str
    partitions: list[int]


class MoveProgress(Model):
    """Progress of moves, by partition."""

    done: list[int]
    moving: list[int]
    failed: dict[int, str]
    """Reasons."""


class ElectedPartition(Model):
    """A partition that another node than its preferred leader leads."""

    topic: str
    partition: int
    leader: Annotated[int, Field(serialization_alias="from")]
    preferred: Annotated[int, Field(serialization_alias="to")]


class Election(Model):
    """Partitions that a preferred election moves."""

    moves: list[ElectedPartition]
    more: bool
    """True if there are more than are shown. An election moves them all."""


class PartitionMoveEndpoints:
    """Endpoints of moves."""

    def __init__(self, serving: Serving, local: LocalRequests) -> None:
        self._serving = serving
        self._local = local
        path, election = "/topics/{topic}/moves", "/cluster/election"
        order, follow = "Order that a node leads partitions of a topic.", "How far such moves are."
        self.endpoints = [
            Endpoint("POST", path, order, self._order, MoveOrder, MoveQuery, is_limited=False),
            Endpoint("GET", path, follow, self._progress, MoveProgress, MoveQuery),
            Endpoint("GET", election, "What a preferred election of all partitions moves.", self._plan, Election),
            Endpoint("POST", election, "Move partitions to their preferred leaders.", self._elect, Election),
        ]

    async def _order(self, call: Call) -> MoveOrder:
        node_id = call.query.to
        if self._serving.members.get(node_id) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not running.")
        places = self._places(call)
        if not call.query.validate_only:
            await self._serving.move_requests.request(dict.fromkeys(places, node_id), MoveReason.OPERATOR)
        return MoveOrder(to=node_id, topic=call.path["topic"], partitions=[place.partition for place in places])

    async def _progress(self, call: Call) -> MoveProgress:
        progress = self._serving.move_requests.progress(dict.fromkeys(self._places(call), call.query.to))
        return MoveProgress(
            done=[place.partition for place in progress.done],
            moving=[place.partition for place in progress.moving],
            failed={place.partition: reason for place, reason in progress.failed.items()},
        )

    async def _plan(self, _: Call) -> Election:
        return self._election(preferred_moves(self._serving))

    async def _elect(self, call: Call) -> Election:
        """Order the moves, as the handler of clients' elections does, and do not wait for them."""
        moves = preferred_moves(self._serving)
        plan = self._election(moves)
        by_topic: dict[str, list[int]] = {}
        for place in moves:
            by_topic.setdefault(place.topic, []).append(place.partition)
        wanted = [TopicPartitions(topic=topic, partitions=partitions) for topic, partitions in by_topic.items()]
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=wanted, timeout_ms=0)
        for topic in (await self._local.call(request, call.user)).replica_election_results:
            for each in topic.partition_result:
                if each.error_code not in {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.ELECTION_NOT_NEEDED}:  # on its way
                    check(each.error_code, f"{topic.topic}-{each.partition_id}: {each.error_message}")
        return plan

    def _election(self, moves: Mapping[Place, int]) -> Election:
        shown = [
            ElectedPartition(
                topic=place.topic,
                partition=place.partition,
                leader=self._serving.move_requests.info(place).leader,
                preferred=preferred,
            )
            for place, preferred in islice(moves.items(), ELECTED_MAX)
        ]
        return Election(moves=shown, more=len(moves) > len(shown))

    def _places(self, call: Call) -> Sequence[Place]:
        topic, wanted = topic_named(self._serving, call.path["topic"]), call.query.partitions
        indexes = map(int, wanted.split(",")) if wanted else range(len(topic.info.partitions))
        places = [Place(topic.name, index) for index in dict.fromkeys(indexes)]
        for place in places:
            self._serving.move_requests.info(place)
        return places
