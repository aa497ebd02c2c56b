"""Stored bytes of partitions. Every failure is a ClientError."""

from collections.abc import Iterable

from anabranch.client.cluster import Cluster, Place
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from anabranch.protocol.messages.metadata import MetadataResponseTopic


def partition_sizes(cluster: Cluster, topics: Iterable[MetadataResponseTopic]) -> dict[Place, int]:
    """Return the bytes of partitions at their leaders. Those without a leader are left out."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                led = by_leader.setdefault(partition.leader_id, {})
                led.setdefault(topic.name or "", []).append(partition.partition_index)
    found: dict[Place, int] = {}
    for leader, led in by_leader.items():
        wanted = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in led.items()]
        node = cluster.node(leader)
        answer: DescribeLogDirsResponse = node.call(DescribeLogDirsRequest(topics=wanted))
        for code in (answer.error_code, *(result.error_code for result in answer.results)):
            if code:
                raise ClientError(f"{node.where}, DescribeLogDirs: {error_text(code)}")
        found |= {
            (topic.name, each.partition_index): each.partition_size
            for result in answer.results
            for topic in result.topics
            for each in topic.partitions
            if not each.is_future_key
        }
    return found
