"""Topics in a cluster: places and factors, growth, deletion, elections, reassignments; asked of any broker."""

from collections.abc import Sequence
from functools import partial

from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.differential.cluster_script import NODES, ClusterScript

PREFERRED, UNCLEAN = 0, 1


def _known(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)


def _create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)


def _assigned(name: str, *replicas: list[int]) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)
    ]
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)


def _has_replicas(replicas: Sequence[int], answer: MetadataResponse) -> bool:
    """True if the second partition has these replicas, and all of them are in sync."""
    partition = answer.topics[0].partitions[1]
    return list(partition.replica_nodes) == replicas and set(partition.isr_nodes) == set(replicas)


def _gone(script: ClusterScript, *names: str) -> None:
    for name in names:
        script.until_each(_known(name), 9, lambda answer: bool(answer.topics[0].error_code))


def places_of_topics(script: ClusterScript) -> None:
    for node_id in NODES:
        on = str(node_id)
        request = _create(_assigned(f"ct-{node_id}", [3], [1], [2], [1]))
        script.call(f"assigned, at {node_id}", request, 7, on=on)
        script.led_by(f"ct-{node_id}", 3, 1, 2, 1)
        script.call(f"again, at {node_id}", request, 4, on=str(node_id % len(NODES) + 1))
        script.call_each(f"assigned at {node_id}, described", _known(f"ct-{node_id}"), 12)
    for what, topic in {
        "an unknown broker": _assigned("ct-x", [1], [4]),
        "a broker twice": _assigned("ct-x", [2, 2]),
        "one replica here, two there": _assigned("ct-x", [1], [2, 3]),
        "nobody": _assigned("ct-x", [1], []),
        "a negative broker": _assigned("ct-x", [-1]),
    }.items():
        script.call_each(f"assigned to {what}", _create(topic, validate_only=True), 3, 7)
    script.call("assigned to all brokers", _create(_assigned("ct-all", [2, 3, 1])), 7)
    script.until_each(_known("ct-all"), 9, lambda answer: answer.topics[0].partitions[:1] and _serves(answer))
    script.call_each("all brokers, described", _known("ct-all"), 12)
    for factor in (2, 3, 4):
        topic = CreatableTopic(name="ct-factor", num_partitions=2, replication_factor=factor)
        script.call_each(f"factor {factor}", _create(topic, validate_only=True), 3, 7)


def _serves(answer: MetadataResponse) -> bool:
    return not any(part.error_code for topic in answer.topics for part in topic.partitions)


def growth_of_topics(script: ClusterScript) -> None:
    script.place("cg-a", 1)

    def grow(count: int, *assignments: list[int], validate_only: bool = False) -> CreatePartitionsRequest:
        given = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments] or None
        topic = CreatePartitionsTopic(name="cg-a", count=count, assignments=given)
        return CreatePartitionsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only)

    leaders = [1]
    for version, new in enumerate((2, 3, 1, 3)):
        leaders.append(new)
        at = NODES[version % len(NODES)]
        script.call(f"grown at {at} onto {new}", grow(len(leaders), [new]), version, on=str(at))
        script.led_by("cg-a", *leaders)
    script.call_each("described", _known("cg-a"), 12)
    for what, replicas in {
        "an unknown broker": [4],
        "a broker twice": [2, 2],
        "nobody": [],
        "a negative": [-1],
    }.items():
        script.call_each(f"onto {what}", grow(6, replicas, validate_only=True), 0, 3)
    script.call_each("onto one and onto two", grow(7, [2], [1, 3], validate_only=True), 3)
    script.call_each("onto two where there was one", grow(6, [1, 3], validate_only=True), 3)
    script.call_each("too few assignments", grow(7, [2], validate_only=True), 3)
    script.call_each("not an increase", grow(5, [2], validate_only=True), 3)


def deletion_of_topics(script: ClusterScript) -> None:
    for node_id in NODES:
        topic_id = script.place(f"cx-{node_id}", 1, 2, 3)
        request = DeleteTopicsRequest(topic_names=[f"cx-{node_id}", "cx-missing"], timeout_ms=30_000)
        script.call(f"by name, at {node_id}", request, 5, on=str(node_id))
        _gone(script, f"cx-{node_id}")
        script.call_each(f"gone at {node_id}", _known(f"cx-{node_id}"), 12)
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        script.call_each(f"gone at {node_id} by id", by_id, 12)
        topic_id = script.place(f"cx-{node_id}", 3, 2)
        script.call_each(f"created anew after {node_id}", _known(f"cx-{node_id}"), 12)
        states = [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=b"\1" * 16)]
        request = DeleteTopicsRequest(topics=states, timeout_ms=30_000)
        script.call(f"by id, at {node_id}", request, 6, on=str(node_id))
        _gone(script, f"cx-{node_id}")


def elections_by_each(script: ClusterScript) -> None:
    script.place("ce-a", 1, 2, 3)

    def elect(name: str, *indexes: int, kind: int = PREFERRED) -> ElectLeadersRequest:
        wanted = [TopicPartitions(topic=name, partitions=indexes)]
        return ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=30_000)

    script.call_each("preferred", elect("ce-a", 0, 1, 2), 0, 1, 2)
    script.call_each("unclean", elect("ce-a", 0, 1, 2, kind=UNCLEAN), 1, 2)
    script.call_each("an unknown partition", elect("ce-a", 0, 7), 2)
    script.call_each("an unknown topic", elect("ce-x", 0), 2)
    every = ElectLeadersRequest(topic_partitions=None, timeout_ms=30_000)
    script.call_each("all", every, 2, own="ce-")


def reassignments_by_each(script: ClusterScript) -> None:
    script.place("cr-a", 1, 2)

    def move(
        index: int, replicas: list[int] | None, *, topic: str = "cr-a", factor_may_change: bool = True
    ) -> AlterPartitionReassignmentsRequest:
        moved = [ReassignablePartition(partition_index=index, replicas=replicas)]
        return AlterPartitionReassignmentsRequest(
            timeout_ms=30_000,
            allow_replication_factor_change=factor_may_change,
            topics=[ReassignableTopic(name=topic, partitions=moved)],
        )

    script.call_each("to where it is", move(1, [2]), 0, 1)
    script.call_each("to an unknown broker", move(1, [4]), 0, 1)
    script.call_each("to a broker twice", move(1, [3, 3]), 1)
    script.call_each("to no broker", move(1, []), 1)
    script.call_each("the factor changed", move(1, [2, 3], factor_may_change=False), 1)
    script.call_each("cancelled", move(1, None), 1)
    script.call_each("an unknown partition", move(7, [2]), 1)
    script.call_each("an unknown topic", move(0, [2], topic="cr-x"), 1)
    listed = [ListPartitionReassignmentsTopics(name="cr-a", partition_indexes=[0, 1])]
    script.call_each("under way", ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=listed), 0)
    for what, replicas, leader in (
        ("to two more", [2, 1, 3], 2),
        ("in another order", [1, 3, 2], 2),
        ("one less", [3, 2], 2),
        ("without the leader", [3, 1], 3),
    ):
        script.call(what, move(1, replicas), 1, on="3")
        script.until_each(_known("cr-a"), 9, partial(_has_replicas, replicas))
        script.led_by("cr-a", 1, leader)
        script.call_each(f"{what}, described", _known("cr-a"), 12)
    script.call_each("the factor changed again", move(1, [2], factor_may_change=False), 1)


SCRIPTS = (
    places_of_topics,
    growth_of_topics,
    deletion_of_topics,
    elections_by_each,
    reassignments_by_each,
)
