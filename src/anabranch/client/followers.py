"""Replicas that follow partitions, and how far behind they are."""

from collections.abc import Iterable

from anabranch.client.cluster import Cluster, Place
from anabranch.client.errors import ClientError
from anabranch.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from anabranch.protocol.messages.metadata import MetadataResponseTopic


def follower_lags(cluster: Cluster, topics: Iterable[MetadataResponseTopic]) -> dict[Place, dict[int, int]]:
    """Return the offsets that replicas lack, by node, of those that follow a partition.

    Nodes that do not answer, or not to this user, are left out.
    """
    by_node: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for partition in topic.partitions:
            for node_id in partition.replica_nodes:
                if node_id != partition.leader_id:
                    of_topic = by_node.setdefault(node_id, {}).setdefault(topic.name or "", [])
                    of_topic.append(partition.partition_index)
    found: dict[Place, dict[int, int]] = {}
    for node_id, wanted in by_node.items():
        request = DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in wanted.items()]
        )
        try:
            answer: DescribeLogDirsResponse = cluster.node(node_id).call(request)
        except ClientError:
            continue
        for topic_answer in (each for result in answer.results for each in result.topics):
            for each in topic_answer.partitions:
                found.setdefault((topic_answer.name, each.partition_index), {})[node_id] = each.offset_lag
    return found
