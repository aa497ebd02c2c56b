"""Records of a streams group in `__consumer_offsets`, byte for byte as Apache Kafka writes them (KIP-1071).

A group has several records: its epoch (key version 17), the epoch of its target assignment (20) and its topology (23);
for each member its metadata (19), target (21) and current assignment (22). A null value deletes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.broker.kafka.groups.modern.records import RecordKinds
from anabranch.broker.kafka.groups.streams.member import MemberState, StreamsMember
from anabranch.broker.kafka.groups.streams.requests import Endpoint
from anabranch.broker.kafka.groups.streams.tasks import (
    HeldTasks,
    Task,
    TaskAssignment,
    Tasks,
    by_subtopology,
    tasks_of,
)
from anabranch.broker.kafka.groups.streams.topology import (
    Copartition,
    Subtopology,
    TopicDescription,
    Topology,
    topology_of,
)
from anabranch.protocol.codec import decode_versioned, encode_versioned
from anabranch.protocol.messages.embedded import streams_groups as messages

EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
NO_EPOCH = -1
"""Epoch of a topology that there is none of."""


@dataclass(frozen=True, slots=True)
class EpochMetadata:
    """Facts recorded with a group's epoch: mostly what the target assignment depends on beside the members."""

    topics_hash: int = 0
    validated_topology_epoch: int = NO_EPOCH
    """Epoch of the topology if it was ready."""
    assignment_configs: Mapping[str, str] = field(default_factory=dict)
    stored_description_epoch: int = NO_EPOCH
    """Epoch of the topology whose description is stored (KIP-1331)."""
    failed_description_epoch: int = NO_EPOCH
    """Epoch of the topology whose description was refused."""


# -- Values ----------------------------------------------------------------------------------------------------------


def epoch_value(epoch: int, metadata: EpochMetadata) -> bytes:
    """Encode a group's epoch."""
    configs = metadata.assignment_configs.items()
    value = messages.StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata.topics_hash,
        validated_topology_epoch=metadata.validated_topology_epoch,
        last_assignment_configs=[messages.LastAssignmentConfig(key=key, value=value) for key, value in configs],
        stored_description_topology_epoch=metadata.stored_description_epoch,
        failed_description_topology_epoch=metadata.failed_description_epoch,
    )
    return encode_versioned(value, 0)


def parse_epoch(value: bytes) -> tuple[int, EpochMetadata]:
    """Decode a group's epoch, and what is recorded with it."""
    found = decode_versioned(messages.StreamsGroupMetadataValue, value)
    return found.epoch, EpochMetadata(
        found.metadata_hash,
        found.validated_topology_epoch,
        {each.key: each.value for each in found.last_assignment_configs or ()},
        found.stored_description_topology_epoch,
        found.failed_description_topology_epoch,
    )


def target_value(target: TaskAssignment) -> bytes:
    """Encode a member's target assignment."""
    value = messages.StreamsGroupTargetAssignmentMemberValue(
        active_tasks=_targets(target.active),
        standby_tasks=_targets(target.standby),
        warmup_tasks=_targets(target.warmup),
    )
    return encode_versioned(value, 0)


def parse_target(value: bytes) -> TaskAssignment:
    """Decode a member's target assignment."""
    found = decode_versioned(messages.StreamsGroupTargetAssignmentMemberValue, value)
    return TaskAssignment(tasks_of(found.active_tasks), tasks_of(found.standby_tasks), tasks_of(found.warmup_tasks))


def _targets(tasks: Tasks) -> list[messages.TaskIds]:
    return [messages.TaskIds(subtopology_id=name, partitions=found) for name, found in by_subtopology(tasks)]


# -- Members ---------------------------------------------------------------------------------------------------------


def member_value(member: StreamsMember) -> bytes:
    """Encode a member's metadata."""
    endpoint = member.endpoint
    value = messages.StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else messages.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[messages.KeyValue(key=key, value=tag) for key, tag in sorted(member.client_tags.items())],
    )
    return encode_versioned(value, 0)


def current_value(member: StreamsMember) -> bytes:
    """Encode a member's current assignment."""
    value = messages.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        active_tasks=_active(member.assigned.active),
        standby_tasks=_replicas(member.assigned.standby),
        warmup_tasks=_replicas(member.assigned.warmup),
        active_tasks_pending_revocation=_active(member.revoking.active),
        standby_tasks_pending_revocation=_replicas(member.revoking.standby),
        warmup_tasks_pending_revocation=_replicas(member.revoking.warmup),
    )
    return encode_versioned(value, 0)


def _active(tasks: Mapping[Task, int]) -> list[messages.CurrentTaskIds]:
    return [
        messages.CurrentTaskIds(
            subtopology_id=name, partitions=found, assignment_epochs=[tasks[Task(name, index)] for index in found]
        )
        for name, found in by_subtopology(tasks)
    ]


def _replicas(tasks: Tasks) -> list[messages.CurrentTaskIds]:
    return [messages.CurrentTaskIds(subtopology_id=name, partitions=found) for name, found in by_subtopology(tasks)]


def parse_member(member_id: str, value: bytes, current: bytes | None) -> StreamsMember:
    """Decode a member from its metadata, and its current assignment if there is one. Raises MalformedMessage."""
    found = decode_versioned(messages.StreamsGroupMemberMetadataValue, value)
    endpoint = found.user_endpoint
    member = StreamsMember(
        member_id=member_id,
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        topology_epoch=found.topology_epoch,
        process_id=found.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags={each.key: each.value for each in found.client_tags},
    )
    if current is None:
        return member
    have = decode_versioned(messages.StreamsGroupCurrentMemberAssignmentValue, current)
    return replace(
        member,
        epoch=have.member_epoch,
        previous_epoch=have.previous_member_epoch,
        state=MemberState(have.state) if have.state in set(MemberState) else MemberState.UNKNOWN,
        assigned=HeldTasks(
            _parse_active(have.active_tasks, have.member_epoch),
            tasks_of(have.standby_tasks),
            tasks_of(have.warmup_tasks),
        ),
        revoking=HeldTasks(
            _parse_active(have.active_tasks_pending_revocation, have.member_epoch),
            tasks_of(have.standby_tasks_pending_revocation),
            tasks_of(have.warmup_tasks_pending_revocation),
        ),
    )


def _parse_active(listed: Iterable[messages.CurrentTaskIds], member_epoch: int) -> dict[Task, int]:
    found: dict[Task, int] = {}
    for each in listed:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [member_epoch] * len(each.partitions)  # the safe choice, as in Kafka
        found.update(zip((Task(each.subtopology_id, index) for index in each.partitions), epochs, strict=True))
    return found


# -- Topology --------------------------------------------------------------------------------------------------------


def topology_value(topology: Topology) -> bytes:
    """Encode the topology."""
    value = messages.StreamsGroupTopologyValue(
        epoch=topology.epoch, subtopologies=list(map(_subtopology, topology.subtopologies))
    )
    return encode_versioned(value, 0)


def parse_topology(value: bytes) -> Topology:
    """Decode the topology."""
    return topology_of(decode_versioned(messages.StreamsGroupTopologyValue, value))


def _subtopology(subtopology: Subtopology) -> messages.Subtopology:
    return messages.Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=subtopology.source_topics,
        source_topic_regex=subtopology.source_topic_regex,
        state_changelog_topics=list(map(_topic, subtopology.changelogs)),
        repartition_sink_topics=subtopology.repartition_sinks,
        repartition_source_topics=list(map(_topic, subtopology.repartition_sources)),
        copartition_groups=list(map(_copartition, subtopology.copartitions)),
    )


def _topic(topic: TopicDescription) -> messages.TopicInfo:
    return messages.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[messages.TopicConfig(key=key, value=value) for key, value in topic.configs],
    )


def _copartition(group: Copartition) -> messages.CopartitionGroup:
    return messages.CopartitionGroup(
        source_topics=group.source_topics,
        source_topic_regex=group.source_topic_regex,
        repartition_source_topics=group.repartition_source_topics,
    )


KINDS = RecordKinds(
    key_types={
        EPOCH: messages.StreamsGroupMetadataKey,
        MEMBER: messages.StreamsGroupMemberMetadataKey,
        TARGET_EPOCH: messages.StreamsGroupTargetAssignmentMetadataKey,
        TARGET: messages.StreamsGroupTargetAssignmentMemberKey,
        CURRENT: messages.StreamsGroupCurrentMemberAssignmentKey,
        TOPOLOGY: messages.StreamsGroupTopologyKey,
    },
    write_order=(MEMBER, TOPOLOGY, EPOCH, TARGET, TARGET_EPOCH, CURRENT),
    deletion_order=(CURRENT, TARGET, TARGET_EPOCH, MEMBER, EPOCH, TOPOLOGY),
    epoch=EPOCH,
    target_epoch=TARGET_EPOCH,
    target_epoch_type=messages.StreamsGroupTargetAssignmentMetadataValue,
    target=TARGET,
    target_value=target_value,
    parse_target=parse_target,
    member=MEMBER,
    member_value=member_value,
    current=CURRENT,
    current_value=current_value,
    parse_member=parse_member,
)
