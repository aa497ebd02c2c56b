"""Requests of the admin port on whole topics, which Kafka's protocol does not have.

    POST /topics/detach?topic=NAME              upload the topic and remove it from the cluster; its data stays
    POST /topics/attach?topic=NAME-OR-ID&as=NEW bring a detached topic back (`as` is optional)
    POST /topics/clone?topic=NAME&as=NEW        create a topic with the same records, independent from then on
    GET  /topics/detached                       list the topics that can be attached

The response is the topic as JSON. A refused request gets 409 with the reason in one line, one without a parameter 400.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from anabranch.broker.kafka.topics.moves import TopicMoves
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.responses import Query, Response, Route, json_response, text_response
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.errors import StorageError


class TopicRoutes:
    """Handlers of requests on whole topics."""

    def __init__(self, moves: TopicMoves) -> None:
        self._moves = moves
        self.routes: Mapping[str, Route] = {
            "/topics/detach": ("POST", self._detach),
            "/topics/attach": ("POST", self._attach),
            "/topics/clone": ("POST", self._clone),
            "/topics/detached": ("GET", self._detached),
        }

    async def _detach(self, query: Query) -> Response:
        return await _apply(query, ("topic",), lambda: self._moves.detach(query["topic"]))

    async def _attach(self, query: Query) -> Response:
        return await _apply(query, ("topic",), lambda: self._moves.attach(query["topic"], query.get("as")))

    async def _clone(self, query: Query) -> Response:
        return await _apply(query, ("topic", "as"), lambda: self._moves.clone(query["topic"], query["as"]))

    async def _detached(self, _: Query) -> Response:
        try:
            found = await self._moves.detached()
        except StorageError as error:
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return json_response(
            [
                {
                    "topic": topic.name,
                    "id": uuid_text(topic.topic_id),
                    "partitions": len(topic.stream_ids),
                    "detached_ms": topic.detached_ms,
                }
                for topic in found
            ]
        )


async def _apply(query: Query, wanted: tuple[str, ...], change: Callable[[], Awaitable[Topic]]) -> Response:
    missing = [name for name in wanted if not query.get(name)]
    if missing:
        return text_response(HTTPStatus.BAD_REQUEST, f"missing: {', '.join(missing)}")
    try:
        topic = await change()
    except KafkaError as error:
        return text_response(HTTPStatus.CONFLICT, error.message or error.code.name)
    except StorageError as error:
        return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    return json_response({"topic": topic.name, "id": uuid_text(topic.topic_id), "partitions": len(topic.partitions)})
