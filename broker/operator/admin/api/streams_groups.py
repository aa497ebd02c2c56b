"""Groups of Kafka Streams applications (KIP-1071): subtopologies, tasks, and the partitions that tasks read."""

from collections.abc import Iterator, Sequence

from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.operator.admin.api.calls import Partition
from anabranch.broker.operator.admin.api.endpoints import Model
from anabranch.protocol.messages.streams_group_describe import DescribedGroup, Member, TaskIds


class TaskRows(Model):
    """Tasks of a member, named as Kafka Streams does: `0_1` is partition 1 of subtopology 0."""

    active: list[str]
    standby: list[str]
    warmup: list[str]


class SubtopologyRow(Model):
    """A part of a Kafka Streams application, by its topics."""

    subtopology: str
    sources: list[str]
    """Topics that it reads, which the application does not write itself."""
    repartition_sources: list[str]
    repartition_sinks: list[str]
    changelogs: list[str]


def subtopologies(group: DescribedGroup) -> list[SubtopologyRow]:
    """Return the subtopologies of a group, none before a member has sent them."""
    found = group.topology.subtopologies if group.topology is not None else None
    return [
        SubtopologyRow(
            subtopology=each.subtopology_id,
            sources=list(each.source_topics),
            repartition_sources=[topic.name for topic in each.repartition_source_topics],
            repartition_sinks=list(each.repartition_sink_topics),
            changelogs=[topic.name for topic in each.state_changelog_topics],
        )
        for each in found or ()
    ]


def tasks_of(member: Member) -> TaskRows:
    """Return the current tasks of a member."""
    current = member.assignment
    return TaskRows(
        active=_names(current.active_tasks), standby=_names(current.standby_tasks), warmup=_names(current.warmup_tasks)
    )


def read_by(member: Member, topology: Sequence[SubtopologyRow], topics: TopicManager) -> Iterator[Partition]:
    """Yield the partitions that the active tasks of a member read."""
    for tasks in member.assignment.active_tasks:
        for each in topology:
            if each.subtopology != tasks.subtopology_id:
                continue
            for name in (*each.sources, *each.repartition_sources):
                topic = topics.get(name)
                # Topics that a subtopology only merges may have fewer partitions than it has tasks.
                count = 0 if topic is None else len(topic.info.partitions)
                yield from ((name, index) for index in tasks.partitions if index < count)


def _names(tasks: Sequence[TaskIds]) -> list[str]:
    return [f"{each.subtopology_id}_{index}" for each in tasks for index in each.partitions]
