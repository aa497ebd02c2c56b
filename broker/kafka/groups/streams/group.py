"""State of a streams group: members, topology, target assignment, holders of tasks, deadlines and records (KIP-1071).

Requests change it in `broker.kafka.groups.streams.machine`. Invariants: an active task is held by at most one member,
and this state differs from the log only by what `records.take_changes` returns. Lost with a coordinator, as in Kafka:
what members reported of their state's offsets, who asked to shut the application down, and the epoch of endpoint
information.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Self

from anabranch.broker.kafka.configs.streams import STANDBY_REPLICAS, StreamsConfigs, StreamsConfigsGetter
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.interface import UnusedSince
from anabranch.broker.kafka.groups.modern.group import ModernGroup
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now
from anabranch.broker.kafka.groups.streams import records
from anabranch.broker.kafka.groups.streams.assignor import StreamsMemberSpec, assign_sticky
from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredTopology, configure
from anabranch.broker.kafka.groups.streams.member import MemberState, StreamsMember
from anabranch.broker.kafka.groups.streams.reconciliation import TaskHolders, reconcile
from anabranch.broker.kafka.groups.streams.records import EpochMetadata
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import Topology
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode


class StreamsGroupState(StrEnum):
    """States of a streams group, with the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """The topology cannot run on the topics that exist."""
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the assignment epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsGroup(ModernGroup[StreamsMember, TaskAssignment]):
    """The state of one group and the steps that change it."""

    group_type = "streams"

    def __init__(self, group_id: str, settings: GroupSettings, configs: StreamsConfigsGetter) -> None:
        super().__init__(group_id, records.KINDS, members_max=settings.streams_members_max)
        self._settings = settings
        self._configs = configs
        self.recorded = EpochMetadata()
        self.topology: Topology | None = None
        self.configured: ConfiguredTopology | None = None
        """The topology on the topics of the last heartbeat; None until the first one since the group was loaded."""
        self.task_offsets: dict[str, Mapping[Task, int]] = {}
        self.task_end_offsets: dict[str, Mapping[Task, int]] = {}
        self.first_assignment_ms = NEVER_MS
        """Time on the steady clock of the first assignment of a group whose first member waits for others."""
        self.shutdown_member_id: str | None = None
        """The member that asked to shut the application down."""
        self.endpoint_epoch = 0
        """Epoch of the endpoint information of all members."""
        self._active_holders: dict[Task, str] = {}
        self._standby_holders: dict[Task, Counter[str]] = defaultdict(Counter)
        self._warmup_holders: dict[Task, Counter[str]] = defaultdict(Counter)

    # -- Views -------------------------------------------------------------------------------------------------------

    @property
    def configs(self) -> StreamsConfigs:
        """Current configs of the group."""
        return self._configs(self.group_id)

    @property
    def state(self) -> StreamsGroupState:
        """State of the group as clients see it."""
        if self.is_dead:
            return StreamsGroupState.DEAD
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.recorded.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.is_assignment_outdated:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def topology_epoch(self) -> int:
        """Epoch of the topology, NO_EPOCH without one."""
        return records.NO_EPOCH if self.topology is None else self.topology.epoch

    @property
    def wake_ms(self) -> int:
        """A lower bound of the next deadline."""
        return min(self.deadlines.wake_ms, self.first_assignment_ms)

    def check_commit(self, member_id: str, epoch: int, partitions: Collection[TopicPartition]) -> ErrorCode:
        """Return why this commit is refused, or NONE.

        A member may commit in its epoch, and in an older one for tasks that it has had since then, also while it is to
        revoke them: no other member can have committed for them since.
        """
        if self.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        if epoch > member.epoch or self.topology is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        readers = self.topology.input_topics()
        for topic, index in partitions:
            reader = readers.get(topic)
            if reader is None:
                return ErrorCode.STALE_MEMBER_EPOCH
            task = Task(reader.subtopology_id, index)
            since = member.assigned.active.get(task, member.revoking.active.get(task))
            if since is None or epoch < since:
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def topics_in_use(self) -> frozenset[str]:
        """Return the topics that tasks read."""
        if not self.members or self.topology is None:
            return frozenset()
        return frozenset(self.topology.input_topics())

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time of an offset's commit, or None if tasks read its topic."""
        in_use = self.topics_in_use()
        return lambda key, committed: None if key.topic in in_use else committed.commit_timestamp_ms

    # -- Records -----------------------------------------------------------------------------------------------------

    def _restore_other(self, key: RecordKey, value: bytes) -> None:
        match key.kind:
            case records.EPOCH:
                self.epoch, self.recorded = records.parse_epoch(value)
            case records.TOPOLOGY:
                self.topology = records.parse_topology(value)

    def _other_value(self, key: RecordKey) -> bytes | None:
        if key.kind == records.TOPOLOGY:
            return None if self.topology is None else records.topology_value(self.topology)
        return records.epoch_value(self.epoch, self.recorded)

    def _begin_deadlines(self, member: StreamsMember, now: Now) -> None:
        self.extend_session(member.member_id, now)
        self._time_reconciliation(member, now)

    def without_changes(self, now: Now) -> Self:
        """Return the group as `ModernGroup` says, with what is not in its records."""
        group = type(self)(self.group_id, self._settings, self._configs).restore(self.records.written, now)
        group.deadlines.keep(self.deadlines, ())
        group.first_assignment_ms = self.first_assignment_ms
        group.shutdown_member_id, group.endpoint_epoch = self.shutdown_member_id, self.endpoint_epoch
        group.task_offsets, group.task_end_offsets = self.task_offsets, self.task_end_offsets
        return group

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, and return the tombstones of its records."""
        self.first_assignment_ms = NEVER_MS
        return super().retire()

    # -- Members -----------------------------------------------------------------------------------------------------

    def remove(self, member_id: str) -> None:
        """Remove a member, and what belongs to it."""
        super().remove(member_id)
        self.task_offsets.pop(member_id, None)
        self.task_end_offsets.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def rename(self, former: StreamsMember, member_id: str) -> StreamsMember:
        """Let a static member that is back, under a new id, take the place of the former; return it."""
        target = self.targets.get(former.member_id, NO_ASSIGNMENT)
        shutdown_member_id = self.shutdown_member_id
        self.remove(former.member_id)
        self.shutdown_member_id = shutdown_member_id
        self.targets[member_id] = target
        self.records.mark_changed(records.TARGET, member_id)
        member = replace(former, member_id=member_id, epoch=0, previous_epoch=0)
        self.put(member)
        return member

    def _hold(self, member: StreamsMember) -> None:
        for held in (member.assigned, member.revoking):
            for task in held.active:
                assert task not in self._active_holders, "an active task is held by one member"
                self._active_holders[task] = member.process_id
            for task in held.standby:
                self._standby_holders[task][member.process_id] += 1
            for task in held.warmup:
                self._warmup_holders[task][member.process_id] += 1

    def _release(self, member: StreamsMember) -> None:
        for held in (member.assigned, member.revoking):
            for task in held.active:
                del self._active_holders[task]
            for holders, tasks in ((self._standby_holders, held.standby), (self._warmup_holders, held.warmup)):
                for task in tasks:
                    holders[task][member.process_id] -= 1
                    if not holders[task][member.process_id]:
                        del holders[task][member.process_id]
                    if not holders[task]:
                        del holders[task]

    def note_offsets(
        self, member_id: str, offsets: Mapping[Task, int] | None, end_offsets: Mapping[Task, int] | None
    ) -> None:
        """Note how far a member has restored the state of tasks. None: unchanged."""
        if offsets is not None:
            self.task_offsets[member_id] = offsets
        if end_offsets is not None:
            self.task_end_offsets[member_id] = end_offsets

    # -- Topology and targets ----------------------------------------------------------------------------------------

    def refresh(self, topology: Topology, topics: TopicImage) -> tuple[ConfiguredTopology, int]:
        """Return the topology on the topics that exist, and a hash of those that it needs.

        It is configured again when the group has none yet, or the topics that it needs have changed. Raises
        STREAMS_INVALID_TOPOLOGY, with nothing changed.
        """
        is_new = self.topology is None
        if self.configured is not None and not is_new and topics.version == self._topics_version:
            return self.configured, self.recorded.topics_hash
        found = topics.hash_of(topology.required_topics())
        if self.configured is None or is_new or found != self.recorded.topics_hash:
            return configure(topology, topics), found
        return self.configured, found

    def set_topology(self, topology: Topology, configured: ConfiguredTopology, topics: TopicImage) -> None:
        """Set the topology, as `refresh` has returned it."""
        self.configured = configured
        self._topics_version = topics.version
        if self.topology is None:
            self.topology = topology
            self.records.mark_changed(records.TOPOLOGY)

    def begin_epoch(self, **changes: Any) -> None:
        """Begin the next group epoch, with these changes of what is recorded with it."""
        self.recorded = replace(self.recorded, **changes)
        self.raise_epoch()

    @property
    def assignment_interval_ms(self) -> int:
        """Shortest time between two assignments."""
        return self.configs.assignment_interval_ms

    def assign(self, now: Now) -> None:
        """Compute the target assignment of the current group epoch; without tasks while the topology is not ready."""
        found = dict.fromkeys(self.members, NO_ASSIGNMENT)
        if self.configured is not None and self.configured.is_ready:
            specs = [
                StreamsMemberSpec(
                    member.member_id,
                    member.process_id,
                    self.targets.get(member.member_id, NO_ASSIGNMENT),
                    self.task_offsets.get(member.member_id, {}),
                )
                for member in self.members.values()
            ]
            replicas = int(self.recorded.assignment_configs.get(STANDBY_REPLICAS, "0"))
            found = assign_sticky(specs, self.configured.subtopologies or {}, replicas)
        self._set_targets(found, now)

    def reconcile(
        self, member: StreamsMember, target: TaskAssignment, owned: TaskAssignment | None, now: Now
    ) -> StreamsMember:
        """Bring a member one step closer to a target, and return it."""
        holders = TaskHolders(
            self._active_holders.get,
            lambda task: self._standby_holders.get(task, ()),
            lambda task: self._warmup_holders.get(task, ()),
        )
        reconciled = reconcile(member, target=target, target_epoch=self.assignment_epoch, owned=owned, holders=holders)
        if reconciled is not member:
            self.put(reconciled)
            self._time_reconciliation(reconciled, now)
        return reconciled

    # -- Time --------------------------------------------------------------------------------------------------------

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        self.deadlines.begin_session(member_id, self.configs.session_timeout_ms, now)

    def _time_reconciliation(self, member: StreamsMember, now: Now) -> None:
        """Set the deadline of a member that must revoke tasks."""
        if member.state is MemberState.UNREVOKED and not member.has_left_temporarily:
            self.deadlines.begin_rebalance(member, now)
        else:
            self.deadlines.end_rebalance(member.member_id)
