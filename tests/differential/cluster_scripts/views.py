"""Views of the cluster by each broker: brokers, topics, leaders, coordinators, log directories, the quorum."""

from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from anabranch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.cluster_script import NODES, ClusterScript

GROUP, TRANSACTION = 0, 1


def metadata_by_each(script: ClusterScript) -> None:
    topic_id = script.place("cm-a", 1, 2, 3)
    script.place("cm-b", 3, 3)

    def named(*names: str, operations: bool = False) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=operations,
        )

    script.call_each("a topic", named("cm-a"), *range(4, 14))
    script.call_each("a topic in old versions", MetadataRequest(topics=[MetadataRequestTopic(name="cm-a")]), 0, 1, 2, 3)
    script.call_each("two topics and an unknown one", named("cm-b", "cm-x", "cm-a"), 4, 9, 12)
    script.call_each("with operations", named("cm-a", operations=True), 8, 13)
    script.call_each("no topics", MetadataRequest(topics=()), 1, 4, 9, 13)
    by_id = [MetadataRequestTopic(topic_id=topic_id, name=None), MetadataRequestTopic(topic_id=b"\1" * 16, name=None)]
    script.call_each("by id", MetadataRequest(topics=by_id), 12, 13)
    script.call_each("an internal topic", named("__consumer_offsets"), 9)


def describe_cluster_by_each(script: ClusterScript) -> None:
    script.call_each("cluster", DescribeClusterRequest(), 0, 1, 2)
    script.call_each("with operations", DescribeClusterRequest(include_cluster_authorized_operations=True), 2)
    script.call_each("with fenced brokers", DescribeClusterRequest(include_fenced_brokers=True), 2)


def expected_brokers(script: ClusterScript) -> None:
    """ApiVersions with the cluster and the broker that a client expects: only that broker answers (KIP-1242)."""
    cluster_id = script.ask(MetadataRequest(topics=()), 9).cluster_id
    for node_id in (*NODES, 4):
        wanted = ApiVersionsRequest(
            client_software_name="differential",
            client_software_version="1.0",
            cluster_id=cluster_id,
            node_id=node_id,
        )
        script.call_each(f"expecting {node_id}", wanted, 5)


def topic_partitions_by_each(script: ClusterScript) -> None:
    script.place("cp-a", 1, 2, 3)
    script.place("cp-b", 2, 3)

    def pages(limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in ("cp-b", "cp-a", "cp-x")],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )

    script.call_each("all", pages(), 0)
    for limit in (1, 2, 3, 4):
        script.call_each(f"limit {limit}", pages(limit), 0)
    script.call_each("from a cursor", pages(2, ("cp-a", 2)), 0)
    script.call_each("from a cursor in the last", pages(2, ("cp-b", 1)), 0)
    script.call_each("from a cursor past all", pages(2, ("cp-y", 0)), 0)


def find_coordinator_by_each(script: ClusterScript) -> None:
    groups = [script.key_at("cf-group", node_id) for node_id in NODES]
    ids = [script.key_at("cf-id", node_id) for node_id in NODES]
    for node_id in NODES:
        group, transactional_id = groups[node_id - 1], ids[node_id - 1]
        script.call_each(f"of a group of {node_id} in version 0", FindCoordinatorRequest(key=group), 0)
        script.call_each(f"of a group of {node_id}", FindCoordinatorRequest(key=group, key_type=GROUP), 1, 2, 3)
        request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
        script.call_each(f"of an id of {node_id}", request, 1, 3)
    script.call_each("of groups", FindCoordinatorRequest(coordinator_keys=groups, key_type=GROUP), 4, 5, 6)
    twice = FindCoordinatorRequest(coordinator_keys=[*ids, ids[0]], key_type=TRANSACTION)
    script.call_each("of ids, one twice", twice, 4, 6)
    script.call_each("of nothing", FindCoordinatorRequest(coordinator_keys=[]), 4)


def log_dirs_of_each(script: ClusterScript) -> None:
    script.place("cd-a", 1, 2, 3)
    script.place("cd-b", 2, 2)

    def describe(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
        wanted = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics]
        return DescribeLogDirsRequest(topics=wanted)

    script.call_each("all partitions", describe(("cd-a", [0, 1, 2]), ("cd-b", [0, 1])), 1, 2, 3, 4, 5)
    script.call_each("one partition", describe(("cd-a", [1])), 1, 5)
    script.call_each("an unknown topic", describe(("cd-x", [0])), 5)


def quorum_by_each(script: ClusterScript) -> None:
    partition = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    request = DescribeQuorumRequest(topics=[partition])

    def settled(answer: DescribeQuorumResponse) -> bool:
        """True if the leader knows the offsets of all voters: a follower that has not fetched yet has none."""
        voters = answer.topics[0].partitions[0].current_voters
        return all(voter.log_end_offset > 0 and voter.last_caught_up_timestamp > 0 for voter in voters)

    script.until(request, 2, settled)
    script.call_each("the quorum", request, 0, 1, 2)
    other = TopicData(topic_name="cq-x", partitions=[PartitionData(partition_index=0)])
    script.call_each("of another topic", DescribeQuorumRequest(topics=[other]), 2)


SCRIPTS = (
    metadata_by_each,
    describe_cluster_by_each,
    expected_brokers,
    topic_partitions_by_each,
    find_coordinator_by_each,
    log_dirs_of_each,
    quorum_by_each,
)
