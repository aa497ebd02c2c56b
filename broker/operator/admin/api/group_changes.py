"""Changes of groups: committed offsets that are reset, and groups that are deleted.

Both are for groups without members: those that have some would overwrite what is set, or come back.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.calls import Calls, Partition
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, ValidationQuery, check
from anabranch.broker.operator.admin.api.groups import Committed, Groups, GroupState, Listed
from anabranch.broker.operator.admin.api.offsets import Ends, Offsets
from anabranch.broker.operator.admin.api.topics import partition_index, partitions_of, topic_named
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

PARTITIONS_MAX: Final = 5000
OFFSET_MAX: Final = 2**63 - 1


class OffsetReset(Model):
    """New offsets of a group."""

    topic: str | None = None
    """By default all partitions that the group has committed offsets of; of a streams group, those of its sources."""
    partitions: Annotated[list[int], Field(max_length=PARTITIONS_MAX)] | None = None
    """Partitions of the topic, by default all."""
    to: Literal["earliest", "latest", "offset", "time", "shift"]
    value: Annotated[int, Field(ge=-OFFSET_MAX, le=OFFSET_MAX)] | None = None
    """An offset, a time in ms, or a number of records by which committed offsets are shifted."""
    validate_only: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.to in {"earliest", "latest"}:
            if self.value is not None:
                raise ValueError(f"`to` is {self.to!r}: there is no `value`")
        elif self.value is None:
            raise ValueError(f"`to` is {self.to!r}: a `value` is needed")
        elif self.value < 0 and self.to != "shift":
            raise ValueError("`value` is negative")
        if self.partitions is not None and self.topic is None:
            raise ValueError("`partitions` needs a `topic`")
        return self


class OffsetChange(Model):
    """New offset of a partition."""

    topic: str
    partition: int
    before: Annotated[int | None, Field(serialization_alias="from")]
    """Null: none was committed."""
    after: Annotated[int, Field(serialization_alias="to")]
    lag: int
    """Lag after the change."""


class OffsetChanges(Model):
    """Changes that were made, or that would be."""

    changes: list[OffsetChange]


class DeletedGroup(Model):
    """Contents that are deleted with a group, or that would be."""

    offsets: int
    """Number of committed offsets."""


class GroupChangeEndpoints:
    """Endpoints that change groups."""

    def __init__(self, serving: Serving, calls: Calls, groups: Groups, offsets: Offsets) -> None:
        self._serving = serving
        self._calls = calls
        self._groups = groups
        self._offsets = offsets
        path = "/groups/{group}"
        self.endpoints = [
            Endpoint("POST", f"{path}/reset", "Reset offsets.", self._reset, OffsetChanges, body=OffsetReset),
            Endpoint("DELETE", path, "Delete a group.", self._delete, DeletedGroup, query=ValidationQuery),
        ]

    async def _reset(self, call: Call) -> OffsetChanges:
        wanted: OffsetReset = call.body
        group_id = call.path["group"]
        coordinator, state = await self._find_empty(call)
        committed = await self._committed(call, coordinator, state)
        partitions = self._wanted(wanted, committed, state)
        ends, unreachable = await self._offsets.ends(partitions, call.user)
        for topic, index in partitions:
            if (topic, index) not in ends:
                nodes = f" (no answer of nodes {sorted(unreachable)})" if unreachable else ""
                raise ApiError(
                    HTTPStatus.SERVICE_UNAVAILABLE, f"the ends of partition {index} of {topic!r} are not known{nodes}"
                )
        targets = await self._targets(call, wanted, committed, ends)
        changes = [
            OffsetChange(
                topic=topic,
                partition=index,
                before=committed[topic, index].offset if (topic, index) in committed else None,
                after=after,
                lag=ends[topic, index].high_watermark - after,
            )
            for (topic, index), after in sorted(targets.items())
        ]
        changes = [each for each in changes if each.before != each.after]
        if changes and not wanted.validate_only:
            await self._commit(call, coordinator, group_id, changes)
        return OffsetChanges(changes=changes)

    async def _find_empty(self, call: Call) -> tuple[int, GroupState]:
        """Return coordinator and state of a group. Raises ApiError if it has members."""
        group_id = call.path["group"]
        coordinator, state = await self._groups.find(group_id, call.user)
        if state.members:
            members = f"{len(state.members)} member{'s' if len(state.members) > 1 else ''}"
            raise ApiError(HTTPStatus.CONFLICT, f"the group {group_id!r} has {members}: stop its consumers first")
        return coordinator, state

    async def _committed(self, call: Call, coordinator: int, state: GroupState) -> Mapping[Partition, Committed]:
        group_id = call.path["group"]
        listed = Listed(group_id, state.type, state.state, coordinator)
        found, _ = await self._groups.committed([listed], call.user)
        if group_id not in found:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the coordinator of {group_id!r}, node {coordinator}, does not answer"
            )
        return found[group_id]

    def _wanted(
        self, wanted: OffsetReset, committed: Mapping[Partition, Committed], state: GroupState
    ) -> Sequence[Partition]:
        """Return the partitions to reset. Raises KafkaError for those that do not exist."""
        if wanted.topic is None:
            found = sorted(each for each in committed if state.topology is None or each[0] in state.sources)
        else:
            topic = topic_named(self._serving, wanted.topic)
            found = partitions_of(topic)
            if wanted.partitions is not None:
                found = [(topic.name, partition_index(topic, str(index))) for index in sorted(set(wanted.partitions))]
        if wanted.to == "shift":
            found = [each for each in found if each in committed]
        if len(found) > PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{len(found)} partitions at once, {PARTITIONS_MAX} are allowed: name some."
            )
        return found

    async def _targets(
        self,
        call: Call,
        wanted: OffsetReset,
        committed: Mapping[Partition, Committed],
        ends: Mapping[Partition, Ends],
    ) -> Mapping[Partition, int]:
        """Return the new offset of each partition, between its start and its end."""
        if wanted.to == "earliest":
            return {key: each.start for key, each in ends.items()}
        if wanted.to == "latest":
            return {key: each.high_watermark for key, each in ends.items()}
        value = wanted.value or 0
        if wanted.to == "time":
            found = (await self._offsets.at(ends, value, call.user)).offsets
            if len(found) < len(ends):
                raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "not all leaders have answered: try again")
            return {
                key: found[key] if found[key] >= 0 else each.high_watermark  # all records are older
                for key, each in ends.items()
            }
        base = {key: committed[key].offset for key in ends} if wanted.to == "shift" else dict.fromkeys(ends, 0)
        return {key: min(max(base[key] + value, each.start), each.high_watermark) for key, each in ends.items()}

    async def _commit(self, call: Call, coordinator: int, group_id: str, changes: Sequence[OffsetChange]) -> None:
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for each in changes:
            partition = OffsetCommitRequestPartition(
                partition_index=each.partition, committed_offset=each.after, committed_metadata=None
            )
            by_topic.setdefault(each.topic, []).append(partition)
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in by_topic.items()],
        )
        answer = await self._calls.call(coordinator, request, call.user)
        for topic in answer.topics:
            for result in topic.partitions:
                check(result.error_code)

    async def _delete(self, call: Call) -> DeletedGroup:
        group_id = call.path["group"]
        coordinator, state = await self._find_empty(call)
        committed = await self._committed(call, coordinator, state)
        if not call.query.validate_only:
            answer = await self._calls.call(coordinator, DeleteGroupsRequest(groups_names=[group_id]), call.user)
            check(answer.results[0].error_code)
        return DeletedGroup(offsets=len(committed))
