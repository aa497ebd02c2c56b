"""Changes of whole topics that Kafka's protocol does not have: a topic leaves the cluster, comes back, is cloned."""

from typing import Annotated

from pydantic import Field

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.protocol.ids import uuid_text


class MovedTopic(Model):
    """A topic that has left, that is back, or that is new."""

    topic: str
    id: str
    partitions: int


class DetachedTopic(Model):
    """A topic that can be attached."""

    topic: str
    """The name that it had."""
    id: str
    partitions: int
    detached_ms: int


class DetachedTopics(Model):
    """Topics that can be attached."""

    topics: list[DetachedTopic]


class AttachQuery(Model):
    """Parameters of an attachment."""

    name: str | None = None
    """Name of the topic; by default the one that it had."""


class CloneQuery(Model):
    """Parameters of a clone."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the new topic."""


class TopicMoveEndpoints:
    """Endpoints of whole topics. They upload what is in the log first, which takes as long as it takes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        topic, detached, attach = "/topics/{topic}", "/detached-topics", "/detached-topics/{topic}/attach"
        leave = "Upload a topic, and remove it from the cluster; its data stays."
        back = "Bring a detached topic back, by its name or id."
        clone = "Create a topic with the same records, independent from then on."
        self.endpoints = [
            Endpoint("POST", f"{topic}/detach", leave, self._detach, MovedTopic, is_limited=False),
            Endpoint("POST", f"{topic}/clone", clone, self._clone, MovedTopic, CloneQuery, is_limited=False),
            Endpoint("GET", detached, "Topics that can be attached.", self._list, DetachedTopics),
            Endpoint("POST", attach, back, self._attach, MovedTopic, AttachQuery, is_limited=False),
        ]

    async def _detach(self, call: Call) -> MovedTopic:
        return _moved(await self._node.moves.detach(call.path["topic"]))

    async def _attach(self, call: Call) -> MovedTopic:
        return _moved(await self._node.moves.attach(call.path["topic"], call.query.name))

    async def _clone(self, call: Call) -> MovedTopic:
        return _moved(await self._node.moves.clone(call.path["topic"], call.query.name))

    async def _list(self, _: Call) -> DetachedTopics:
        return DetachedTopics(
            topics=[
                DetachedTopic(
                    topic=topic.name,
                    id=uuid_text(topic.topic_id),
                    partitions=len(topic.stream_ids),
                    detached_ms=topic.detached_ms,
                )
                for topic in await self._node.moves.detached()
            ]
        )


def _moved(topic: Topic) -> MovedTopic:
    return MovedTopic(topic=topic.name, id=uuid_text(topic.topic_id), partitions=len(topic.partitions))
