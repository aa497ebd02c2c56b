"""Moves of partitions to a node: ordered, and followed. `GET /cluster/status` lists those that are not carried out."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.broker.operator.admin.api.topics import topic_named
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.values import MoveReason


class MoveQuery(Model):
    """Partitions, and the node that shall lead them."""

    to: Annotated[int, Field(ge=0)]
    """Id of the node."""
    partitions: Annotated[str, Field(pattern=r"^[0-9]{1,9}(,[0-9]{1,9})*$")] | None = None
    """Indexes with commas between them; by default all of the topic."""


class MoveOrder(Model):
    """Moves that were ordered."""

    to: int
    topic: str
    partitions: list[int]


class MoveProgress(Model):
    """Progress of moves, by partition."""

    done: list[int]
    moving: list[int]
    failed: dict[int, str]
    """Reasons."""


class PartitionMoveEndpoints:
    """Endpoints of moves."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        path = "/topics/{topic}/moves"
        order, follow = "Order that a node leads partitions of a topic.", "How far such moves are."
        self.endpoints = [
            Endpoint("POST", path, order, self._order, MoveOrder, MoveQuery, is_limited=False),
            Endpoint("GET", path, follow, self._progress, MoveProgress, MoveQuery),
        ]

    async def _order(self, call: Call) -> MoveOrder:
        node_id = call.query.to
        if self._serving.members.get(node_id) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not running.")
        places = self._places(call)
        await self._serving.move_requests.request(dict.fromkeys(places, node_id), MoveReason.OPERATOR)
        return MoveOrder(to=node_id, topic=call.path["topic"], partitions=[place.partition for place in places])

    async def _progress(self, call: Call) -> MoveProgress:
        progress = self._serving.move_requests.progress(dict.fromkeys(self._places(call), call.query.to))
        return MoveProgress(
            done=[place.partition for place in progress.done],
            moving=[place.partition for place in progress.moving],
            failed={place.partition: reason for place, reason in progress.failed.items()},
        )

    def _places(self, call: Call) -> Sequence[Place]:
        topic, wanted = topic_named(self._serving, call.path["topic"]), call.query.partitions
        indexes = map(int, wanted.split(",")) if wanted else range(len(topic.info.partitions))
        places = [Place(topic.name, index) for index in dict.fromkeys(indexes)]
        for place in places:
            self._serving.move_requests.info(place)
        return places
