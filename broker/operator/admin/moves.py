"""Requests of the admin port on moves of partitions, and on nodes that are drained.

    GET  /moves                                       orders of all moves that are not carried out, failed ones included
    POST /moves/request?to=NODE&topic=T&partitions=I,J  order that the node leads partitions (default: all of the topic)
    GET  /moves/progress?to=NODE&topic=T&partitions=I,J  how far such moves are
    POST /nodes/drain?node=ID                         let a node get no partitions, and move those that it leads
    POST /nodes/drain/cancel?node=ID                  end that
    GET  /nodes/drain/progress?node=ID                how far it is

A refused request gets 409 with the reason in one line, one without a parameter 400.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.operator.admin.responses import Query, Response, Route, json_response, text_response
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import NodeUnavailable, NotFound, StorageError


class MoveRoutes:
    """Handlers of requests on moves and drains."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.routes: Mapping[str, Route] = {
            "/moves": ("GET", lambda query: _answer(query, (), self._list)),
            "/moves/request": ("POST", lambda query: _answer(query, ("to", "topic"), self._request)),
            "/moves/progress": ("GET", lambda query: _answer(query, ("to", "topic"), self._progress)),
            "/nodes/drain": ("POST", lambda query: _answer(query, ("node",), self._drain)),
            "/nodes/drain/cancel": ("POST", lambda query: _answer(query, ("node",), self._cancel_drain)),
            "/nodes/drain/progress": ("GET", lambda query: _answer(query, ("node",), self._drain_progress)),
        }

    async def _list(self, _: Query) -> Any:
        return [
            {
                "topic": topic.name,
                "partition": each.index,
                "from": each.leader,
                "to": each.order.to_node,
                "reason": each.order.reason.name.lower(),
                "asked_ms": each.order.asked_ms,
                "failure": each.order.failure,
            }
            for topic in self._node.topics
            for each in topic.info.partitions
            if each.order is not None
        ]

    async def _request(self, query: Query) -> Any:
        node_id = _number(query["to"])
        if self._node.members.get(node_id) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not running.")
        places = self._places(query)
        await self._node.move_requests.request(dict.fromkeys(places, node_id), MoveReason.OPERATOR)
        return {"to": node_id, "topic": query["topic"], "partitions": [place.partition for place in places]}

    async def _progress(self, query: Query) -> Any:
        progress = self._node.move_requests.progress(dict.fromkeys(self._places(query), _number(query["to"])))
        return {
            "done": [place.partition for place in progress.done],
            "moving": [place.partition for place in progress.moving],
            "failed": {place.partition: reason for place, reason in progress.failed.items()},
        }

    def _places(self, query: Query) -> Sequence[Place]:
        name = query["topic"]
        topic = self._node.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        wanted = query.get("partitions", "")
        indexes = [_number(each) for each in wanted.split(",")] if wanted else range(len(topic.info.partitions))
        places = [Place(name, index) for index in dict.fromkeys(indexes)]
        for place in places:
            self._node.move_requests.info(place)
        return places

    async def _drain(self, query: Query) -> Any:
        node_id = _number(query["node"])
        members = self._node.members
        if members.get(node_id) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not running: it has nothing to be moved.")
        others = [each for each in members.living() if each.node_id != node_id and each.node_id not in members.draining]
        if not others:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"No other node could lead the partitions of node {node_id}.")
        await self._node.move_requests.set_draining(node_id, draining=True)
        return await self._drain_progress(query)

    async def _cancel_drain(self, query: Query) -> Any:
        await self._node.move_requests.set_draining(_number(query["node"]), draining=False)
        return await self._drain_progress(query)

    async def _drain_progress(self, query: Query) -> Any:
        node_id = _number(query["node"])
        led = self._node.move_requests.led_by(node_id)
        return {
            "node": node_id,
            "draining": node_id in self._node.members.draining,
            "lives": self._node.members.get(node_id) is not None,
            "leads": len(led),
            "failed": {
                str(place): info.order.failure
                for place, info in led.items()
                if info.order is not None and info.order.failure
            },
        }


def _number(text: str) -> int:
    if not text.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"expected a number, found {text!r}")
    return int(text)


async def _answer(query: Query, wanted: tuple[str, ...], work: Callable[[Query], Awaitable[Any]]) -> Response:
    missing = [name for name in wanted if not query.get(name)]
    if missing:
        return text_response(HTTPStatus.BAD_REQUEST, f"missing: {', '.join(missing)}")
    try:
        return json_response(await work(query))
    except KafkaError as error:
        return text_response(HTTPStatus.CONFLICT, error.message or error.code.name)
    except (NodeUnavailable, NotFound) as error:
        return text_response(HTTPStatus.CONFLICT, str(error))
    except StorageError as error:
        return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
