"""Answers of the other brokers when one was killed. Its partitions had one replica each.

Apache Kafka's stay without a leader until the broker returns. Here another node takes them over.
"""

from typing import Any

from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.differential.cluster_script import ClusterScript
from tests.differential.cluster_scripts.leaders import fetch, part, produce

DEAD = 3
LIVING = ("1", "2")
PLACES = (1, 2, 3, 3)
NAME = "od-a"
PREFERRED, UNCLEAN = 0, 1


def _topic() -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=NAME)])


def _coordinators(script: ClusterScript) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(coordinator_keys=[script.key_at("od", node_id) for node_id in (1, 2, DEAD)])


def before_the_outage(script: ClusterScript) -> None:
    script.place(NAME, *PLACES)
    for index, node_id in enumerate(PLACES):
        script.call(f"produced to partition {index}", produce(NAME, index), 9, on=str(node_id))
    script.call_each("coordinators", _coordinators(script), 4)


def after_the_outage(script: ClusterScript) -> None:
    """Broker 3 was killed. The script begins when the others know it."""
    _wait(script)

    def ask(name: str, request: object, *versions: int) -> None:
        for on in LIVING:
            script.call(f"{name}, by {on}", request, *versions, on=on)

    ask("brokers", MetadataRequest(topics=()), 1, 9, 13)
    ask("the cluster", DescribeClusterRequest(), 0, 2)
    ask("the cluster with fenced brokers", DescribeClusterRequest(include_fenced_brokers=True), 2)
    ask("the topic", _topic(), 1, 4, 9, 12)
    ask("its partitions", DescribeTopicPartitionsRequest(topics=[TopicRequest(name=NAME)]), 0)
    ask("partitions of the living produced to", produce(NAME, 0, 1), 9, 12)
    ask("partitions of the living fetched", fetch(NAME, part(0), part(1)), 11)
    ask("partitions of the dead produced to", produce(NAME, 2), 9, 12)
    ask("partitions of the dead fetched", fetch(NAME, part(2)), 11)
    ask("coordinators", _coordinators(script), 4)
    wanted = [DescribableLogDirTopic(topic=NAME, partitions=[0, 1, 2, 3])]
    ask("log directories", DescribeLogDirsRequest(topics=wanted), 5)
    quorum = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    ask("the quorum", DescribeQuorumRequest(topics=[quorum]), 2)
    for kind, word in ((PREFERRED, "preferred"), (UNCLEAN, "unclean")):
        elected = [TopicPartitions(topic=NAME, partitions=[0, 2])]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=elected, timeout_ms=30_000)
        ask(f"{word} election", request, 2)
    assigned = CreatableTopic(
        name="od-b",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[DEAD])],
    )
    ask("a topic on the dead one", CreateTopicsRequest(topics=[assigned], timeout_ms=30_000, validate_only=True), 4)
    three = CreatableTopic(name="od-c", num_partitions=1, replication_factor=3)
    ask("a topic of factor 3", CreateTopicsRequest(topics=[three], timeout_ms=30_000, validate_only=True), 4)
    onto = CreatePartitionsTopic(name=NAME, count=5, assignments=[CreatePartitionsAssignment(broker_ids=[DEAD])])
    ask("growth onto the dead one", CreatePartitionsRequest(topics=[onto], timeout_ms=30_000, validate_only=True), 3)
    script.call("a living broker unregistered", UnregisterBrokerRequest(broker_id=2), 0, on="1")
    script.call("the dead broker unregistered", UnregisterBrokerRequest(broker_id=DEAD), 0, on="1")


def _wait(script: ClusterScript) -> None:
    """Wait until the living brokers agree that the dead one leads nothing, and that others do if they ever will."""

    def settled(answer: Any) -> bool:
        leaders = {partition.leader_id for topic in answer.topics for partition in topic.partitions}
        return DEAD not in leaders and not (script.takes_over and -1 in leaders)

    for on in LIVING:
        script.until(MetadataRequest(topics=()), 9, lambda answer: len(answer.brokers) == len(LIVING), on=on)
    everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    for on in LIVING:
        script.until(everything, 9, settled, on=on)
