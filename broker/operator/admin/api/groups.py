"""Groups: listed and described with their lag, wherever in the cluster they are coordinated."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from anabranch.broker.api.handlers.list_offsets import LATEST
from anabranch.broker.api.handlers.local import User
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.groups.consumer.embedded_protocol import assigned_partitions
from anabranch.broker.operator.admin.api.calls import Calls, Partition
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, check
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.streams_groups import (
    SubtopologyRow,
    TaskRows,
    read_by,
    subtopologies,
    tasks_of,
)
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from anabranch.protocol.messages import (
    consumer_group_describe,
    describe_groups,
    share_group_describe,
    streams_group_describe,
)
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponseGroup,
)
from anabranch.protocol.messages.internal.describe_shares import DescribeSharesRequest, LiveShare
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from anabranch.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from anabranch.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest

GROUPS_MAX: Final = 500
OFFSETS_MAX: Final = 5000
PIECE_GROUPS: Final = 100
"""Groups of one request."""

_MISSING: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""Errors of a group that is not of a kind; where the feature of the kind is off, there is none."""

GroupType = Literal["classic", "consumer", "share", "streams"]


class GroupRow(Model):
    """A group in a list."""

    group_id: str
    type: GroupType
    state: str
    coordinator: int
    members: int | None
    """Null if its coordinator has not described it."""
    topics: list[str]
    """Topics that it has committed offsets of, or that its members are assigned."""
    lag: int | None
    """Records past the committed offsets; null if the end of some partition is not known."""


class GroupList(Model):
    """All groups."""

    groups: list[GroupRow]
    more: bool
    unreachable: list[int]


class AssignedPartition(Model):
    """A partition that a member is assigned."""

    topic: str
    partition: int


class MemberRow(Model):
    """A member of a group."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignments: list[AssignedPartition]
    tasks: TaskRows | None
    """Tasks of a member of a streams group; null for others."""


class ShareRow(Model):
    """Records of a partition that are on their way through a share group."""

    in_flight: int
    """Records from the start offset on that were delivered."""
    acquired: int
    """Records that members have, without an acknowledgement."""
    archiving: int
    """Records that wait for their dead letters."""


class CommittedRow(Model):
    """A partition that a group has committed an offset of, or that a member is assigned.

    The committed offset of a share group is the first one that is not yet processed.
    """

    topic: str
    partition: int
    committed: int | None
    start_offset: int | None
    end_offset: int | None
    lag: int | None
    member_id: str | None
    metadata: str | None
    share: ShareRow | None
    """Null for other groups, and while no member of the group reads the partition."""


class GroupDescription(Model):
    """A group."""

    group_id: str
    type: GroupType
    state: str
    assignor: str
    """Assignor of the group; protocol that a classic group has agreed on."""
    coordinator: int
    members: list[MemberRow]
    topology: list[SubtopologyRow] | None
    """Subtopologies of a streams group; null for others."""
    offsets: list[CommittedRow]
    lag: int | None
    more: bool
    """True if there are more offsets than are shown."""
    unreachable: list[int]


class Committed(NamedTuple):
    """A committed offset, or the start offset of a share group's partition."""

    offset: int
    metadata: str | None = None
    lag: int | None = None
    """Lag of a share group, if its coordinator knows it: members process records in any order."""

    def lag_to(self, end_offset: int) -> int:
        """Return how many records are left before the end."""
        return max(end_offset - self.offset, 0) if self.lag is None else self.lag


class Listed(NamedTuple):
    """A group, and where it is."""

    group_id: str
    type: GroupType
    state: str
    coordinator: int


@dataclass(slots=True)
class GroupState:
    """State and members of a group."""

    type: GroupType
    state: str
    assignor: str
    members: list[MemberRow] = field(default_factory=list)
    topology: list[SubtopologyRow] | None = None
    """Subtopologies of a streams group."""

    @property
    def assigned(self) -> dict[Partition, str]:
        """Members by the partitions that they are assigned."""
        return {
            (each.topic, each.partition): member.member_id for member in self.members for each in member.assignments
        }

    @property
    def sources(self) -> frozenset[str]:
        """Topics that a streams group reads and does not write itself."""
        return frozenset(name for each in self.topology or () for name in each.sources)


class Groups:
    """Asks the coordinators of groups."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls

    async def find_all(self, user: User) -> tuple[list[Listed], frozenset[int]]:
        """Return all groups by id, and the nodes that have not answered."""
        if self._serving.topics.get(OFFSETS_TOPIC) is None:
            return [], frozenset()
        answers, unreachable = await self._calls.call_each(self._calls.living(), lambda _: ListGroupsRequest(), user)
        unreachable += [node_id for node_id, answer in answers.items() if answer.error_code]  # it still loads them
        found = [
            Listed(each.group_id, _type(each.group_type), each.group_state, node_id)
            for node_id, answer in answers.items()
            for each in answer.groups
        ]
        return sorted(found), frozenset(unreachable)

    async def find(self, group_id: str, user: User) -> tuple[int, GroupState]:
        """Return coordinator and state of a group. Raises KafkaError if there is none, and as `Calls.call`."""
        coordinator = self._calls.coordinator_of(group_id)
        answer = await self._calls.call(coordinator, DescribeGroupsRequest(groups=[group_id]), user)
        (classic,) = answer.groups
        if classic.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(classic.error_code, classic.error_message)
            return coordinator, _classic(classic)
        answer = await self._calls.call(coordinator, ConsumerGroupDescribeRequest(group_ids=[group_id]), user)
        (group,) = answer.groups
        if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(group.error_code, group.error_message)
            return coordinator, _consumer(group)
        answer = await self._calls.call(coordinator, ShareGroupDescribeRequest(group_ids=[group_id]), user)
        (shared,) = answer.groups
        if shared.error_code not in _MISSING:
            check(shared.error_code, shared.error_message)
            return coordinator, _share(shared)
        answer = await self._calls.call(coordinator, StreamsGroupDescribeRequest(group_ids=[group_id]), user)
        (streams,) = answer.groups
        if streams.error_code in _MISSING:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist")
        check(streams.error_code, streams.error_message)
        return coordinator, self._streams(streams)

    async def describe(self, groups: Sequence[Listed], user: User) -> Mapping[str, GroupState]:
        """Return the state of each group that its coordinator describes."""
        classic, _ = await self._ask(
            [each for each in groups if each.type == "classic"], lambda ids: DescribeGroupsRequest(groups=ids), user
        )
        consumer, _ = await self._ask(
            [each for each in groups if each.type == "consumer"],
            lambda ids: ConsumerGroupDescribeRequest(group_ids=ids),
            user,
        )
        share, _ = await self._ask(
            [each for each in groups if each.type == "share"],
            lambda ids: ShareGroupDescribeRequest(group_ids=ids),
            user,
        )
        streams, _ = await self._ask(
            [each for each in groups if each.type == "streams"],
            lambda ids: StreamsGroupDescribeRequest(group_ids=ids),
            user,
        )
        found = {each.group_id: _classic(each) for answer in classic for each in answer.groups if not each.error_code}
        found |= {
            each.group_id: _consumer(each) for answer in consumer for each in answer.groups if not each.error_code
        }
        found |= {each.group_id: _share(each) for answer in share for each in answer.groups if not each.error_code}
        found |= {
            each.group_id: self._streams(each) for answer in streams for each in answer.groups if not each.error_code
        }
        return found

    def _streams(self, group: streams_group_describe.DescribedGroup) -> GroupState:
        topology = subtopologies(group)
        members = [
            MemberRow(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host,
                instance_id=each.instance_id,
                assignments=[
                    AssignedPartition(topic=topic, partition=index)
                    for topic, index in read_by(each, topology, self._serving.topics)
                ],
                tasks=tasks_of(each),
            )
            for each in group.members
        ]
        return GroupState("streams", group.group_state, group.assignor_name or "", members, topology)

    async def committed(
        self, groups: Sequence[Listed], user: User
    ) -> tuple[Mapping[str, Mapping[Partition, Committed]], frozenset[int]]:
        """Return the committed offsets of each group whose coordinator answers, and the nodes that have not."""
        answers, unreachable = await self._ask(
            [each for each in groups if each.type != "share"],
            lambda ids: OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=each, topics=None) for each in ids]
            ),
            user,
        )
        shared, more_unreachable = await self._ask(
            [each for each in groups if each.type == "share"],
            lambda ids: DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in ids]
            ),
            user,
        )
        found = {each.group_id: _offsets(each) for answer in answers for each in answer.groups if not each.error_code}
        found |= {
            each.group_id: _share_offsets(each) for answer in shared for each in answer.groups if not each.error_code
        }
        return found, unreachable | more_unreachable

    async def shares(
        self, listed: Listed, partitions: Collection[Partition], user: User
    ) -> tuple[Mapping[Partition, LiveShare], frozenset[int]]:
        """Return the figures of a share group's partitions from their leaders, and the nodes that have not answered."""
        if listed.type != "share":
            return {}, frozenset()
        answers, unreachable = await self._calls.call_each(
            self._calls.by_leader(partitions), lambda _: DescribeSharesRequest(group_id=listed.group_id), user
        )
        found = {(each.topic, each.partition): each for answer in answers.values() for each in answer.shares}
        return found, frozenset(unreachable)

    async def _ask(
        self, groups: Sequence[Listed], make: Callable[[Sequence[str]], Any], user: User
    ) -> tuple[Sequence[Any], frozenset[int]]:
        by_node: dict[int, list[str]] = {}
        for each in groups:
            by_node.setdefault(each.coordinator, []).append(each.group_id)
        return await self._calls.ask_in_pieces(by_node, make, PIECE_GROUPS, user)


class GroupEndpoints:
    """Endpoints that read groups."""

    def __init__(self, groups: Groups, offsets: Offsets) -> None:
        self._groups = groups
        self._offsets = offsets
        self.endpoints = [
            Endpoint("GET", "/groups", "All groups, with their lag.", self._list, GroupList),
            Endpoint("GET", "/groups/{group}", "One group.", self._describe, GroupDescription),
        ]

    async def _list(self, call: Call) -> GroupList:
        found, unreachable = await self._groups.find_all(call.user)
        shown = found[:GROUPS_MAX]
        states = await self._groups.describe(shown, call.user)
        committed, more_unreachable = await self._groups.committed(shown, call.user)
        ends = await self._offsets.at({key for each in committed.values() for key in each}, LATEST, call.user)
        rows = []
        for each in shown:
            state, offsets = states.get(each.group_id), committed.get(each.group_id)
            topics = {topic for topic, _ in offsets or ()}
            topics.update(topic for topic, _ in (() if state is None else state.assigned))
            rows.append(
                GroupRow(
                    group_id=each.group_id,
                    type=each.type,
                    state=each.state,
                    coordinator=each.coordinator,
                    members=None if state is None else len(state.members),
                    topics=sorted(topics),
                    lag=None if offsets is None else total_lag(offsets, ends.offsets),
                )
            )
        unreachable |= more_unreachable | ends.unreachable
        return GroupList(groups=rows, more=len(found) > len(shown), unreachable=sorted(unreachable))

    async def _describe(self, call: Call) -> GroupDescription:
        group_id = call.path["group"]
        coordinator, state = await self._groups.find(group_id, call.user)
        listed = Listed(group_id, state.type, state.state, coordinator)
        committed, unreachable = await self._groups.committed([listed], call.user)
        offsets, assigned = committed.get(group_id, {}), state.assigned
        partitions = sorted(offsets.keys() | assigned.keys())
        shown = partitions[:OFFSETS_MAX]
        ends, more_unreachable = await self._offsets.ends(shown, call.user)
        shares, silent = await self._groups.shares(listed, shown, call.user)
        rows = []
        for topic, index in shown:
            known, place = offsets.get((topic, index)), ends.get((topic, index))
            share = shares.get((topic, index))
            rows.append(
                CommittedRow(
                    topic=topic,
                    partition=index,
                    committed=None if known is None else known.offset,
                    start_offset=None if place is None else place.start,
                    end_offset=None if place is None else place.high_watermark,
                    lag=None if known is None or place is None else known.lag_to(place.high_watermark),
                    member_id=assigned.get((topic, index)),
                    metadata=None if known is None else known.metadata,
                    share=None if share is None else _share_row(share),
                )
            )
        lag = total_lag(offsets, {key: each.high_watermark for key, each in ends.items()})
        return GroupDescription(
            group_id=group_id,
            type=state.type,
            state=state.state,
            assignor=state.assignor,
            coordinator=coordinator,
            members=state.members,
            topology=state.topology,
            offsets=rows,
            lag=None if unreachable else lag,
            more=len(partitions) > len(shown),
            unreachable=sorted(unreachable | more_unreachable | silent),
        )


def total_lag(committed: Mapping[Partition, Committed], ends: Mapping[Partition, int]) -> int | None:
    """Return the records between committed offsets and the ends of their partitions; None if an end is not known."""
    if not committed.keys() <= ends.keys():
        return None
    return sum(each.lag_to(ends[key]) for key, each in committed.items())


def _type(group_type: str) -> GroupType:
    return cast("GroupType", group_type) if group_type in get_args(GroupType) else "classic"


def _classic(group: describe_groups.DescribedGroup) -> GroupState:
    members = [
        MemberRow(
            member_id=each.member_id,
            client_id=each.client_id,
            host=each.client_host,
            instance_id=each.group_instance_id,
            assignments=_assigned(each.member_assignment) if group.protocol_type == "consumer" else [],
            tasks=None,
        )
        for each in group.members
    ]
    return GroupState("classic", group.group_state, group.protocol_data, members)


def _assigned(assignment: bytes) -> list[AssignedPartition]:
    try:
        found = assigned_partitions(assignment)
    except MalformedMessage:
        return []  # a client's own format
    return [AssignedPartition(topic=topic, partition=index) for topic, index in found]


def _consumer(group: consumer_group_describe.DescribedGroup) -> GroupState:
    members = [_member(each, each.instance_id) for each in group.members]
    return GroupState("consumer", group.group_state, group.assignor_name, members)


def _share_row(share: LiveShare) -> ShareRow:
    return ShareRow(in_flight=share.in_flight, acquired=share.acquired, archiving=share.archiving)


def _share(group: share_group_describe.DescribedGroup) -> GroupState:
    members = [_member(each, None) for each in group.members]
    return GroupState("share", group.group_state, group.assignor_name, members)


def _member(member: consumer_group_describe.Member | share_group_describe.Member, instance_id: str | None) -> MemberRow:
    return MemberRow(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        instance_id=instance_id,
        assignments=[
            AssignedPartition(topic=topic.topic_name, partition=index)
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ],
        tasks=None,
    )


def _offsets(group: OffsetFetchResponseGroup) -> dict[Partition, Committed]:
    return {
        (topic.name, each.partition_index): Committed(each.committed_offset, each.metadata or None)
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code and each.committed_offset >= 0
    }


def _share_offsets(group: DescribeShareGroupOffsetsResponseGroup) -> dict[Partition, Committed]:
    return {
        (topic.topic_name, each.partition_index): Committed(each.start_offset, lag=each.lag if each.lag >= 0 else None)
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code and each.start_offset >= 0
    }
