"""Streams groups (KIP-1071): heartbeats valid and invalid, topologies, internal topics, tasks, describing, deletion.

Scripts choose the member ids. They do not record which of two members has which task.
"""

from typing import Any

from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from anabranch.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from anabranch.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
)
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator
from tests.differential.scripts.share_groups import prepared_topic

GROUP = 32


def _topology(source: str, *, epoch: int = 1, log: str = "", repartition: str = "", partitions: int = 0) -> Topology:
    first = Subtopology(
        subtopology_id="0",
        source_topics=[source],
        state_changelog_topics=[TopicInfo(name=log, topic_configs=[KeyValue(key="cleanup.policy", value="compact")])]
        if log
        else (),
        repartition_sink_topics=[repartition] if repartition else (),
    )
    second = Subtopology(
        subtopology_id="1", repartition_source_topics=[TopicInfo(name=repartition, partitions=partitions)]
    )
    return Topology(epoch=epoch, subtopologies=[first, *([second] if repartition else [])])


def _beat(group: str, member: str, epoch: int = 0, **fields: Any) -> StreamsGroupHeartbeatRequest:
    wanted: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        wanted |= {
            "rebalance_timeout_ms": 10_000,
            "topology": _topology(group),
            "process_id": f"p-{member}",
            "active_tasks": (),
            "standby_tasks": (),
            "warmup_tasks": (),
            "client_tags": (),
        }
    return StreamsGroupHeartbeatRequest(**{**wanted, **fields})


def _owned(*partitions: int, subtopology: str = "0") -> dict[str, Any]:
    tasks = [TaskIds(subtopology_id=subtopology, partitions=list(partitions))] if partitions else ()
    return {"active_tasks": tasks, "standby_tasks": (), "warmup_tasks": ()}


def _no_delay(script: Script, group: str, **configs: str) -> None:
    """Let tasks be assigned at once. A coordinator that knows of a topic created later knows these configs, too."""
    values = {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0", **configs}
    altered = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in values.items()]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=altered)
    script.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)


def streams_heartbeats(script: Script) -> None:
    coordinator(script)
    group = "stg-beat"
    _no_delay(script, group)
    prepared_topic(script, "stg-beat", 2)
    tasks = [TaskIds(subtopology_id="0", partitions=[0])]
    invalid: dict[str, dict[str, Any]] = {
        "no member id": {"member_id": ""},
        "no group id": {"group_id": ""},
        "an empty instance id": {"instance_id": ""},
        "an empty rack": {"rack_id": ""},
        "no rebalance timeout": {"rebalance_timeout_ms": -1},
        "no topology": {"topology": None},
        "active tasks": {"active_tasks": tasks},
        "standby tasks": {"standby_tasks": tasks},
        "one kind of tasks": {"standby_tasks": None},
        "a pattern": {
            "topology": Topology(subtopologies=[Subtopology(subtopology_id="0", source_topic_regex=["a.*"])])
        },
        "internal topics": {"topology": _topology("__consumer_offsets")},
        "an invalid name": {"topology": _topology("a b")},
        "no topics": {"topology": Topology(subtopologies=[Subtopology(subtopology_id="0")])},
        "a changelog with partitions": {
            "topology": Topology(
                subtopologies=[
                    Subtopology(
                        subtopology_id="0",
                        source_topics=[group],
                        state_changelog_topics=[TopicInfo(name="stg-log", partitions=2)],
                    )
                ]
            )
        },
        "a repartition topic that nobody writes": {
            "topology": Topology(
                subtopologies=[Subtopology(subtopology_id="0", repartition_source_topics=[TopicInfo(name="stg-never")])]
            )
        },
    }
    for name, fields in invalid.items():
        script.call(name, _beat(group, "stb-m", **fields), 0, 1)
    for epoch in (-3, -2, -1, 1):
        script.call(f"unknown group, epoch {epoch}", _beat(group, "stb-m", epoch), 1)
    script.call("joined", _beat(group, "stb-m"), 1)
    script.call("joined again", _beat(group, "stb-m"), 1)
    for name, request in {
        "nothing new": _beat(group, "stb-m", 2),
        "an epoch ahead": _beat(group, "stb-m", 3),
        "an epoch behind": _beat(group, "stb-m", 1),
        "a topology": _beat(group, "stb-m", 2, topology=_topology(group)),
        "an unknown task": _beat(group, "stb-m", 2, **_owned(2)),
        "an unknown subtopology": _beat(group, "stb-m", 2, **_owned(0, subtopology="7")),
        "offsets": _beat(group, "stb-m", 2, task_offsets=[TaskOffset(subtopology_id="0", partition=0, offset=3)]),
        "offsets twice": _beat(
            group, "stb-m", 2, task_offsets=[TaskOffset(subtopology_id="0", partition=0, offset=3)] * 2
        ),
        "an unknown member": _beat(group, "stb-n", 2),
        "another topology": _beat(group, "stb-n", topology=_topology(group, epoch=2)),
        "a stale topology": _beat(group, "stb-n", topology=_topology(group, epoch=0)),
    }.items():
        script.call(name, request, 0, 1)
    script.call("described", StreamsGroupDescribeRequest(group_ids=[group, "", "stg-none"]), 0, 1)
    script.call("the second leaves", _beat(group, "stb-n", -1), 1)
    script.call("the first leaves", _beat(group, "stb-m", -1), 1)
    script.call("it left before", _beat(group, "stb-m", -1), 1)
    script.call("an empty group", StreamsGroupDescribeRequest(group_ids=[group]), 1)
    script.call("deleted", DeleteGroupsRequest(groups_names=[group]), 2)


def streams_internal_topics(script: Script) -> None:
    coordinator(script)
    group = "stg-topics"
    _no_delay(script, group)
    prepared_topic(script, "stg-topics", 3)
    topology = _topology(group, log="stg-topics-log", repartition="stg-topics-mid")
    script.call("missing source topic", _beat(group, "sti-m", topology=_topology("stg-topics-none", epoch=1)), 1)
    script.call("it leaves", _beat(group, "sti-m", -1), 1)
    script.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    script.call("missing internal topics", _beat(group, "sti-m", topology=topology), 1)
    script.until(_beat(group, "sti-m", topology=topology), 1, lambda answer: not answer.status)
    wanted = [MetadataRequestTopic(name=name) for name in ("stg-topics-log", "stg-topics-mid")]
    answer = script.ask(MetadataRequest(topics=wanted), 12)
    script.note("partitions", sorted((topic.name, len(topic.partitions)) for topic in answer.topics))
    script.call("ready", StreamsGroupDescribeRequest(group_ids=[group], include_topology_description=True), 1)
    script.call("left", _beat(group, "sti-m", -1), 1)


def streams_tasks(script: Script) -> None:
    coordinator(script)
    group = "stg-tasks"
    _no_delay(script, group)
    prepared_topic(script, "stg-tasks", 2)
    script.call("the first", _beat(group, "stt-a", user_endpoint=Endpoint(host="h", port=1)), 1)
    second = script.ask(_beat(group, "stt-b"), 1)
    script.note("nothing is free", [second.member_epoch, second.active_tasks])
    first = script.ask(_beat(group, "stt-a", 2, **_owned(0, 1)), 1)
    [kept] = first.active_tasks
    script.note("one is revoked", [first.member_epoch, len(kept.partitions)])
    script.note("not yet", script.ask(_beat(group, "stt-b", 3), 1).active_tasks)
    script.note("revoked", script.ask(_beat(group, "stt-a", 2, **_owned(*kept.partitions)), 1).member_epoch)
    answer = script.ask(_beat(group, "stt-b", 3), 1)
    script.note("given", [len(each.partitions) for each in answer.active_tasks])
    partition = OffsetCommitRequestPartition(partition_index=kept.partitions[0], committed_offset=0)
    for epoch in (1, 2, 3, 4):
        commit = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id="stt-a",
            topics=[OffsetCommitRequestTopic(name=group, partitions=[partition])],
        )
        script.call(f"commit in epoch {epoch}", commit, 8, 9)
    script.call("shut down", _beat(group, "stt-b", 3, shutdown_application=True), 1)
    script.call("told", _beat(group, "stt-a", 3), 1)
    script.call("listed", ListGroupsRequest(types_filter=["streams"]), 5, own=group)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="x", rebalance_timeout_ms=1_000, subscribed_topic_names=[group], topic_partitions=()
    )
    script.call("a consumer", consumer, 1)
    script.call("the second leaves", _beat(group, "stt-b", -1), 1)
    script.call("the first leaves", _beat(group, "stt-a", -1), 1)


def streams_static_members(script: Script) -> None:
    coordinator(script)
    group = "stg-static"
    _no_delay(script, group)
    prepared_topic(script, "stg-static", 1)
    script.call("joined", _beat(group, "sts-a", instance_id="i", process_id="p"), 1)
    script.call("owned", _beat(group, "sts-b", instance_id="i", process_id="p"), 1)
    script.call("left for a while", _beat(group, "sts-a", -2, instance_id="i"), 1)
    script.call("is back", _beat(group, "sts-b", instance_id="i", process_id="p"), 1)
    script.call("fenced", _beat(group, "sts-a", 2, instance_id="i"), 1)
    script.call("unknown", _beat(group, "sts-a", 2, instance_id="j"), 1)
    script.call("left", _beat(group, "sts-b", -1, instance_id="i"), 1)


def streams_copartitioning(script: Script) -> None:
    coordinator(script)
    group = "stg-co"
    _no_delay(script, group)
    prepared_topic(script, "stg-two", 2)
    prepared_topic(script, "stg-three", 3)
    both = Subtopology(
        subtopology_id="0",
        source_topics=["stg-two", "stg-three"],
        copartition_groups=[CopartitionGroup(source_topics=[0, 1])],
    )
    script.call("not copartitioned", _beat(group, "stc-m", topology=Topology(subtopologies=[both])), 1)
    script.call("left", _beat(group, "stc-m", -1), 1)


def streams_descriptions(script: Script) -> None:
    coordinator(script)
    description = TopologyDescription()
    request = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id="stg-desc", member_id="m", topology_epoch=1, topology_description=description
    )
    script.call("no plug-in", request, 0)


SCRIPTS = (
    streams_heartbeats,
    streams_internal_topics,
    streams_tasks,
    streams_static_members,
    streams_copartitioning,
    streams_descriptions,
)
