"""What the admin port does to whole topics, which Kafka's protocol has no requests for.

    POST /topics/detach?topic=NAME              upload all of it and take it out of the cluster
    POST /topics/attach?topic=NAME-OR-ID&as=NEW bring it back (`as` may be left out)
    POST /topics/clone?topic=NAME&as=NEW        a topic with the same records, which then goes its own way
    GET  /topics/detached                       what can be attached

Each answers with the topic as JSON; what is refused is 409 with the reason in one line, what lacks something 400.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias

from broker.topics.moves import TopicMoves
from broker.topics.topic import Topic
from protocol.errors import KafkaError
from s3stream.errors import StorageError

Answer: TypeAlias = tuple[int, str, str]
"""Status, content type, body."""
Query: TypeAlias = Mapping[str, str]


class TopicRoutes:
    """Answers requests about whole topics."""

    def __init__(self, moves: TopicMoves) -> None:
        self._moves = moves
        self.routes: Mapping[str, tuple[str, Callable[[Query], Awaitable[Answer]]]] = {
            "/topics/detach": ("POST", self._detach),
            "/topics/attach": ("POST", self._attach),
            "/topics/clone": ("POST", self._clone),
            "/topics/detached": ("GET", self._detached),
        }

    async def _detach(self, query: Query) -> Answer:
        return await _answer(query, ("topic",), lambda: self._moves.detach(query["topic"]))

    async def _attach(self, query: Query) -> Answer:
        return await _answer(query, ("topic",), lambda: self._moves.attach(query["topic"], query.get("as")))

    async def _clone(self, query: Query) -> Answer:
        return await _answer(query, ("topic", "as"), lambda: self._moves.clone(query["topic"], query["as"]))

    async def _detached(self, _: Query) -> Answer:
        try:
            found = await self._moves.detached()
        except StorageError as error:
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return _json(
            [
                {
                    "topic": topic.name,
                    "id": topic.topic_id.hex(),
                    "partitions": len(topic.stream_ids),
                    "detached_ms": topic.detached_ms,
                }
                for topic in found
            ]
        )


async def _answer(query: Query, wanted: tuple[str, ...], change: Callable[[], Awaitable[Topic]]) -> Answer:
    missing = [name for name in wanted if not query.get(name)]
    if missing:
        return _text(HTTPStatus.BAD_REQUEST, f"missing: {', '.join(missing)}")
    try:
        topic = await change()
    except KafkaError as error:
        return _text(HTTPStatus.CONFLICT, error.message or error.code.name)
    except StorageError as error:
        return _text(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    return _json({"topic": topic.name, "id": topic.topic_id.hex(), "partitions": len(topic.partitions)})


def _json(value: Any) -> Answer:
    return HTTPStatus.OK, "application/json", json.dumps(value, indent=2) + "\n"


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain", f"{text}\n"
