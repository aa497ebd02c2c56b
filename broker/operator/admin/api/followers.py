"""Replicas of partitions, asked whether they follow, and how far behind they are."""

from collections.abc import Iterable, Mapping

from anabranch.broker.api.handlers.local import User
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Model
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest


class ReplicaRow(Model):
    """A node that serves reads of a partition, besides the leader."""

    node: int
    lag: int | None
    """Offsets that it lacks of those that the leader has; null: it does not follow, and serves what is in objects."""


async def replicas_of(calls: Calls, topic: Topic, indexes: Iterable[int], user: User) -> Mapping[int, list[ReplicaRow]]:
    """Return the replicas of partitions of a topic, without leaders. Those that do not answer seem not to follow."""
    replicas = {
        index: [each for each in info.replicas if each != info.leader]
        for index in indexes
        if (info := topic.info.partitions[index]).replicas
    }
    asked: dict[int, list[int]] = {}
    for index, nodes in replicas.items():
        for node_id in nodes:
            asked.setdefault(node_id, []).append(index)

    def make(node_id: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic.name, partitions=asked[node_id])])

    living = set(calls.living())
    answers, _ = await calls.call_each([each for each in asked if each in living], make, user)
    lags = {
        (node_id, each.partition_index): each.offset_lag
        for node_id, answer in answers.items()
        for result in answer.results
        for found in result.topics
        for each in found.partitions
    }
    return {
        index: [ReplicaRow(node=node_id, lag=lags.get((node_id, index))) for node_id in nodes]
        for index, nodes in replicas.items()
    }
