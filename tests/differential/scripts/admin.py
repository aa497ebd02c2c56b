"""Administrators' requests to a cluster: log directories, elections, reassignments, quorum, features, brokers."""

from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from anabranch.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.differential.script import Script

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
PREFERRED, UNCLEAN = 0, 1


def log_dirs(script: Script) -> None:
    script.topic("ld-a", 2)

    def describe(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics]
        )

    for version in range(1, 6):
        script.call("a topic", describe(("ld-a", [0, 1])), version)
    script.call("one partition", describe(("ld-a", [1])), 1, 5)
    script.call("a partition there is not", describe(("ld-a", [0, 7])), 1, 5)
    script.call("an unknown topic", describe(("ld-x", [0])), 1, 5)
    script.call("a topic without partitions", describe(("ld-a", [])), 1, 5)
    script.call("a partition twice", describe(("ld-a", [0, 0]), ("ld-a", [0])), 5)
    script.call("a negative partition", describe(("ld-a", [-1])), 5)
    script.call("no topics", describe(), 1, 5)
    own = script.ask(describe(("ld-a", [0])), 5).results[0].log_dir
    assert script.ask(DescribeLogDirsRequest(topics=None), 5).results[0].topics, "null is all"

    def move(path: str, *topics: tuple[str, list[int]]) -> AlterReplicaLogDirsRequest:
        wanted = [AlterReplicaLogDirTopic(name=name, partitions=indexes) for name, indexes in topics]
        return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=wanted)])

    for version in (1, 2):
        script.call("moved to where it is", move(own, ("ld-a", [0, 1])), version)
        script.call("moved to a directory there is not", move("/no/such/directory", ("ld-a", [0])), version)
        script.call("moved to a relative path", move("relative", ("ld-a", [0])), version)
        script.call("moved to nowhere", move("", ("ld-a", [0])), version)
        script.call("an unknown topic moved", move(own, ("ld-x", [0])), version)
        script.call("an invalid topic moved", move(own, ("ld/x", [0])), version)
        script.call("an unknown partition moved", move(own, ("ld-a", [0, 7])), version)
        script.call("an unknown topic moved nowhere", move("/no/such/directory", ("ld-x", [0])), version)
        script.call("nothing moved", AlterReplicaLogDirsRequest(), version)
    twice = [AlterReplicaLogDir(path=own, topics=[AlterReplicaLogDirTopic(name="ld-a", partitions=[0])])] * 2
    script.call("moved twice", AlterReplicaLogDirsRequest(dirs=twice), 2)
    script.call("still there", describe(("ld-a", [0, 1])), 5)


def elect_leaders(script: Script) -> None:
    script.topic("el-a", 2)

    def elect(*topics: tuple[str, list[int]], kind: int = PREFERRED) -> ElectLeadersRequest:
        wanted = [TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics]
        return ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=30_000)

    script.call("preferred", elect(("el-a", [0, 1])), 0, 1, 2)
    script.call("unclean", elect(("el-a", [0, 1]), kind=UNCLEAN), 1, 2)
    script.call("an unknown partition", elect(("el-a", [0, 7])), 0, 1, 2)
    script.call("a negative partition", elect(("el-a", [-1])), 2)
    script.call("unclean of an unknown partition", elect(("el-a", [7]), kind=UNCLEAN), 2)
    script.call("an unknown topic", elect(("el-x", [0])), 0, 1, 2)
    script.call("an invalid topic", elect(("el/x", [0])), 2)
    script.call("a partition twice", elect(("el-a", [0, 0])), 2)
    script.call("a topic twice", elect(("el-a", [0]), ("el-a", [1])), 2)
    script.call("no partitions", elect(("el-a", [])), 0, 2)
    script.call("nothing", elect(), 0, 1, 2)
    script.call("an unknown type", elect(("el-a", [0]), kind=9), 1, 2)
    every = ElectLeadersRequest(topic_partitions=None, timeout_ms=30_000)
    script.call("all", every, 0, 1, 2, own="el-")
    unclean = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None, timeout_ms=30_000)
    script.call("all, unclean", unclean, 1, 2, own="el-")


def reassignments(script: Script) -> None:
    script.topic("ra-a", 2)

    def move(
        *partitions: tuple[int, list[int] | None], topic: str = "ra-a", factor_may_change: bool = True
    ) -> AlterPartitionReassignmentsRequest:
        moved = [ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in partitions]
        return AlterPartitionReassignmentsRequest(
            timeout_ms=30_000,
            allow_replication_factor_change=factor_may_change,
            topics=[ReassignableTopic(name=topic, partitions=moved)],
        )

    def ongoing(*topics: tuple[str, list[int]]) -> ListPartitionReassignmentsRequest:
        named = [ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes) for name, indexes in topics]
        return ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=named)

    script.call("to where it is", move((0, [1]), (1, [1])), 0, 1)
    script.call("to an unknown broker", move((0, [99])), 0, 1)
    script.call("to it and an unknown broker", move((0, [1, 99])), 0, 1)
    script.call("to a broker twice", move((0, [1, 1])), 0, 1)
    script.call("to no broker", move((0, [])), 0, 1)
    script.call("to a negative broker", move((0, [-1])), 0, 1)
    script.call("cancelled", move((0, None)), 0, 1)
    script.call("an unknown partition", move((7, [1])), 0, 1)
    script.call("a negative partition", move((-1, [1])), 1)
    script.call("an unknown partition cancelled", move((7, None)), 0, 1)
    script.call("an unknown topic", move((0, [1]), topic="ra-x"), 0, 1)
    script.call("an invalid topic", move((0, [1]), topic="ra/x"), 1)
    script.call("an unknown topic cancelled", move((0, None), topic="ra-x"), 0, 1)
    script.call("one good, one bad", move((0, [1]), (1, [99])), 0, 1)
    script.call("a partition twice", move((0, [1]), (0, [99])), 1)
    script.call("the factor kept", move((0, [1]), factor_may_change=False), 1)
    script.call("the factor changed", move((0, [1, 99]), factor_may_change=False), 1)
    script.call("the factor kept, an unknown broker", move((0, [99]), factor_may_change=False), 1)
    script.call("the factor kept, cancelled", move((0, None), factor_may_change=False), 1)
    script.call("no partitions", move(), 0, 1)
    script.call("nothing", AlterPartitionReassignmentsRequest(timeout_ms=30_000), 0, 1)
    script.call("under way", ongoing(("ra-a", [0, 1])), 0)
    script.call("under way of an unknown partition", ongoing(("ra-a", [7])), 0)
    script.call("under way of an unknown topic", ongoing(("ra-x", [0])), 0)
    script.call("under way of no topics", ongoing(), 0)
    script.call("all under way", ListPartitionReassignmentsRequest(timeout_ms=30_000), 0)


def describe_quorum(script: Script) -> None:
    def quorum(*partitions: int, topic: str = "__cluster_metadata") -> DescribeQuorumRequest:
        wanted = [PartitionData(partition_index=index) for index in partitions]
        return DescribeQuorumRequest(topics=[TopicData(topic_name=topic, partitions=wanted)])

    script.call("the quorum", quorum(0), 0, 1, 2)
    script.call("of another partition", quorum(1), 0, 1, 2)
    script.call("of two partitions", quorum(0, 1), 0, 2)
    script.call("of no partition", quorum(), 0, 2)
    script.call("of another topic", quorum(0, topic="dq-x"), 0, 1, 2)
    script.call("of a topic without name", quorum(0, topic=""), 2)
    script.call("of nothing", DescribeQuorumRequest(), 0, 1, 2)
    both = [TopicData(topic_name=name, partitions=[PartitionData()]) for name in ("__cluster_metadata", "dq-x")]
    script.call("of two topics", DescribeQuorumRequest(topics=both), 2)


def update_features(script: Script) -> None:
    def update(
        *features: tuple[str, int], kind: int = UPGRADE, validate_only: bool = False, may_fall: bool = False
    ) -> UpdateFeaturesRequest:
        updates = [
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=may_fall)
            for name, level in features
        ]
        return UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=updates, validate_only=validate_only)

    for name, level in (("group.version", 1), ("transaction.version", 2)):
        script.call(f"{name} as it is", update((name, level)), 0, 1, 2)
        script.call(f"{name} beyond what there is", update((name, level + 7)), 0, 1, 2)
        script.call(f"{name} negative", update((name, -1)), 0, 1, 2)
        script.call(f"{name} down by an upgrade", update((name, level - 1)), 0, 1, 2)
        script.call(f"{name} as it is by a downgrade", update((name, level), kind=SAFE_DOWNGRADE), 1, 2)
        script.call(f"{name} up by a downgrade", update((name, level + 1), kind=SAFE_DOWNGRADE), 1, 2)
        script.call(f"{name} as it is by an unsafe downgrade", update((name, level), kind=UNSAFE_DOWNGRADE), 1, 2)
        script.call(f"{name} as it is, validated", update((name, level), validate_only=True), 1, 2)
        script.call(f"{name} as it is by type 9", update((name, level), kind=9), 1, 2)
        script.call(f"{name} as it is by type 0", update((name, level), kind=0), 1, 2)
        script.call(f"{name} down, validated", update((name, level - 1), kind=SAFE_DOWNGRADE, validate_only=True), 1, 2)
        downgrade = update((name, level - 1), kind=UNSAFE_DOWNGRADE, validate_only=True)
        script.call(f"{name} down unsafely, validated", downgrade, 1, 2)
        script.call(f"{name} off, validated", update((name, 0), kind=SAFE_DOWNGRADE, validate_only=True), 1, 2)
        script.call(f"{name} off by an upgrade", update((name, 0)), 0, 1, 2)
    script.call("metadata.version as it is", update(("metadata.version", 33)), 0, 1, 2)
    script.call("metadata.version as it is by a downgrade", update(("metadata.version", 33), kind=SAFE_DOWNGRADE), 1, 2)
    script.call("metadata.version beyond what there is", update(("metadata.version", 34)), 0, 1, 2)
    for kind in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        lower = update(("metadata.version", 32), kind=kind, validate_only=True)
        script.call(f"metadata.version down by type {kind}", lower, 1, 2)
    script.call("metadata.version negative", update(("metadata.version", -1)), 0, 1, 2)
    script.call("an unknown feature", update(("no.such.feature", 1)), 0, 1, 2)
    script.call("a feature without name", update(("", 1)), 0, 1, 2)
    script.call("an unknown feature off", update(("no.such.feature", 0), kind=SAFE_DOWNGRADE), 1, 2)
    script.call("a feature twice", update(("group.version", 1), ("group.version", 0)), 0, 1, 2)
    script.call("one good, one bad", update(("group.version", 1), ("no.such.feature", 1)), 0, 1, 2)
    script.call("an unknown feature off by an upgrade", update(("no.such.feature", 0)), 0, 2)
    script.call("nothing", update(), 0, 1, 2)
    script.call("nothing, validated", update(validate_only=True), 1, 2)


def lower_features(script: Script) -> None:
    def level(name: str, wanted: int) -> None:
        request = ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
        script.until(request, 4, lambda answer: wanted == _level(answer, name))

    def update(name: str, level: int, kind: int, *, may_fall: bool = False) -> UpdateFeaturesRequest:
        key = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=may_fall)
        return UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[key])

    beat = ConsumerGroupHeartbeatRequest(
        group_id="lf-group",
        member_id="lf-member",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["lf-x"],
        topic_partitions=[],
    )
    script.call("group.version lowered", update("group.version", 0, SAFE_DOWNGRADE), 1)
    level("group.version", 0)
    script.call("a consumer's heartbeat", beat, 1)
    script.call("a consumer group described", ConsumerGroupDescribeRequest(group_ids=["lf-group"]), 1)
    script.call("group.version raised by a downgrade", update("group.version", 1, SAFE_DOWNGRADE), 1)
    script.call("group.version raised", update("group.version", 1, UPGRADE), 2)
    level("group.version", 1)
    script.call("transaction.version lowered", update("transaction.version", 1, UPGRADE, may_fall=True), 0)
    script.call("transaction.version lowered", update("transaction.version", 1, UNSAFE_DOWNGRADE), 2)
    level("transaction.version", 1)
    script.call("transaction.version raised by a downgrade", update("transaction.version", 2, UNSAFE_DOWNGRADE), 1)
    script.call("transaction.version raised", update("transaction.version", 2, UPGRADE), 1)
    level("transaction.version", 2)


def _level(answer: ApiVersionsResponse, name: str) -> int:
    return next((each.max_version_level for each in answer.finalized_features if each.name == name), 0)


def unregister_broker(script: Script) -> None:
    script.call("an unknown broker", UnregisterBrokerRequest(broker_id=99), 0)
    script.call("a negative broker", UnregisterBrokerRequest(broker_id=-1), 0)


SCRIPTS = (log_dirs, elect_leaders, reassignments, describe_quorum, update_features, lower_features, unregister_broker)
