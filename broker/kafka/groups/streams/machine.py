"""The state machine of a streams group (KIP-1071): takes requests and the time; returns outcomes.

Theory
------
The first member that joins brings the topology of the application. The group is *ready* when all topics that it needs
exist; until then members have no tasks. Internal topics that are missing are created on behalf of the member whose
heartbeat finds them missing, outside of this machine: the response names them.

The *group epoch* goes up whenever the input of the assignment changes: members, topics, whether the topology is ready,
configs. The *assignment epoch* is that of the target, and the *member epoch* the one that a member has reached. The
first assignment of an empty group waits for more members, and each further one an interval; members are told.

Invariants:

- An active task is given to a member only when no other holds it, also not one that is to revoke it.
- A refused request changes nothing but deadlines.
- The group is ahead of its log by the records of its outcomes only, and a response waits for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.broker.kafka.groups.classic.kind import ClassicKind
from anabranch.broker.kafka.groups.interface import Outcome, Response
from anabranch.broker.kafka.groups.modern.machine import ModernMachine
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage, TopicImageGetter
from anabranch.broker.kafka.groups.requests import NEVER_MS, CommitRequest, GroupRequest, Now
from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredTopology, Status, StatusCode
from anabranch.broker.kafka.groups.streams.endpoints import endpoints_of
from anabranch.broker.kafka.groups.streams.group import StreamsGroup
from anabranch.broker.kafka.groups.streams.member import StreamsMember
from anabranch.broker.kafka.groups.streams.reconciliation import check_state
from anabranch.broker.kafka.groups.streams.records import NO_EPOCH
from anabranch.broker.kafka.groups.streams.requests import (
    EndpointPartitions,
    StreamsHeartbeat,
    StreamsHeartbeatResponse,
)
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, NO_HELD, Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import Topology
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError


class StreamsMachine(ModernMachine[StreamsGroup]):
    """The state machine of one group."""

    serves = frozenset({"classic", "streams"})

    def __init__(self, group: StreamsGroup, settings: GroupSettings, topics: TopicImageGetter) -> None:
        super().__init__(group, topics)
        self._settings = settings

    # -- Requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a heartbeat, or a request of the classic protocol, which only an empty group accepts."""
        if not isinstance(request, StreamsHeartbeat):
            return self._handle_classic(request, now)
        if request.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
            response = self._leave(request)
        else:
            response = self._heartbeat(request, now)
        return self._write_changes(now, [Response(request.ticket, response)])

    def _handle_classic(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a request of the classic protocol. An empty group becomes a classic one."""
        former = self if self.group.members else None
        outcome = ClassicKind(self._settings).begin(self.group.group_id, request, former, now)
        if outcome.successor is not None:
            outcome.records = [*self.retire(), *outcome.records]
        return outcome

    def _heartbeat(self, request: StreamsHeartbeat, now: Now) -> StreamsHeartbeatResponse:
        """Handle a member's heartbeat. Raises KafkaError, with nothing changed."""
        group, topics = self.group, self._topics()
        joins = request.epoch == 0
        former = self._find(request)
        is_back = joins and former is not None and former.has_left_temporarily
        if former is not None and not is_back:
            check_epoch(former, request.epoch, request.owned)
            check_state(former, request.owned)
        topology = self._topology_after(request)
        configured, topics_hash = group.refresh(topology, topics)
        if configured.is_ready and request.owned is not None:
            check_tasks(configured, request.owned)
        # -- no error is raised from here on
        was_empty, is_stale = not group.members, self._is_stale(former, request)
        if former is not None and is_back:
            former = group.rename(former, request.member_id)
        before = former or StreamsMember(request.member_id)
        member = updated(before, request)
        group.put(member)
        group.extend_session(member.member_id, now)
        group.set_topology(topology, configured, topics)
        group.note_offsets(member.member_id, request.task_offsets, request.task_end_offsets)
        self._update_epoch(
            topics_hash,
            topology.epoch if configured.is_ready else NO_EPOCH,
            changed=is_relevant_change(before, member, is_static=request.instance_id is not None),
        )
        statuses = [self._stale_status(member)] if is_stale else []
        if was_empty and group.configs.initial_rebalance_delay_ms:
            group.first_assignment_ms = min(
                group.first_assignment_ms, now.steady_ms + group.configs.initial_rebalance_delay_ms
            )
        target = self._target(member.member_id, statuses, now)
        member = group.reconcile(member, target, request.owned, now)
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = member.member_id
        changed = member.assigned != before.assigned
        statuses += self._other_statuses(configured, member, request)
        endpoints = self._endpoints(before, member, request, topics, changed=changed)
        if was_empty and group.epoch == 2:
            group.endpoint_epoch = 0  # as in Kafka, which does not keep what a group began with
        return StreamsHeartbeatResponse(
            member.member_id,
            member.epoch,
            member.assigned.assignment if joins or changed else None,
            statuses,
            group.endpoint_epoch,
            endpoints,
            configured.missing_topics,
        )

    def _find(self, request: StreamsHeartbeat) -> StreamsMember | None:
        """Return the member that the heartbeat is of, or that it takes the place of; None if it joins as a new one.

        Raises KafkaError.
        """
        group, instance_id = self.group, request.instance_id
        if request.epoch != 0:
            if instance_id is None:
                return group.require(request.member_id)
            return group.require_static(instance_id, request.member_id)
        group.check_room(request.member_id, instance_id)
        if instance_id is None or instance_id not in group.static:
            return group.members.get(request.member_id)
        former = group.members[group.static[instance_id]]
        if not former.has_left_temporarily:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {former.member_id} member.",
            )
        return former

    def _topology_after(self, request: StreamsHeartbeat) -> Topology:
        """Return the topology of the group after a heartbeat. Raises INVALID_REQUEST for another one."""
        known, sent = self.group.topology, request.topology
        if known is None:
            assert sent is not None, "the first member sends the topology"
            return sent
        if sent is not None and sent.epoch >= known.epoch and not sent.is_same(known):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return known

    def _update_epoch(self, topics_hash: int, validated_topology_epoch: int, *, changed: bool) -> None:
        """Begin the next group epoch if the input of the assignment has changed."""
        group = self.group
        found: Mapping[str, Any] = {
            "topics_hash": topics_hash,
            "validated_topology_epoch": validated_topology_epoch,
            "assignment_configs": group.configs.of_assignment,
        }
        if changed or any(getattr(group.recorded, name) != value for name, value in found.items()):
            group.begin_epoch(**found)

    def _target(self, member_id: str, statuses: list[Status], now: Now) -> TaskAssignment:
        """Return the current target of a member, after an assignment if it is time for one."""
        group = self.group
        if group.first_assignment_ms != NEVER_MS:
            detail = "Assignment delayed due to the configured initial rebalance delay."
            statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))
            return NO_ASSIGNMENT
        if group.is_assignment_outdated:
            if group.may_assign(now):
                group.assign(now)
            else:
                detail = "Assignment delayed due to the configured assignment interval."
                statuses.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))
        return group.targets.get(member_id, NO_ASSIGNMENT)

    # -- Responses ---------------------------------------------------------------------------------------------------

    def _is_stale(self, former: StreamsMember | None, request: StreamsHeartbeat) -> bool:
        """Return whether the member runs an older topology than the group."""
        known = self.group.topology
        if known is None:
            return False
        epoch = NO_EPOCH if former is None else former.topology_epoch
        return (epoch if request.topology is None else request.topology.epoch) < known.epoch

    def _stale_status(self, member: StreamsMember) -> Status:
        return Status(
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{self.group.topology_epoch}.",
        )

    def _other_statuses(
        self, configured: ConfiguredTopology, member: StreamsMember, request: StreamsHeartbeat
    ) -> Iterable[Status]:
        if configured.problem is not None:
            yield configured.problem
        if self.group.shutdown_member_id is not None:
            yield Status(
                StatusCode.SHUTDOWN_APPLICATION,
                f"Streams group member {self.group.shutdown_member_id} encountered a fatal error and requested a "
                "shutdown for the entire application.",
            )
        missing = [tag for tag in self.group.configs.rack_tags if tag not in member.client_tags]
        if missing and request.knows_missing_tags:
            yield Status(
                StatusCode.MISSING_CLIENT_TAGS,
                f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure "
                "them via 'client.tag.<tagKey>' in your Streams config.",
            )

    def _endpoints(
        self,
        before: StreamsMember,
        member: StreamsMember,
        request: StreamsHeartbeat,
        topics: TopicImage,
        *,
        changed: bool,
    ) -> Sequence[EndpointPartitions] | None:
        """Return the endpoints of all members, None if the member knows them."""
        group = self.group
        if member.endpoint != before.endpoint or (changed and member.endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch == request.endpoint_epoch or group.configured is None:
            return None
        others = [each for each in group.members.values() if each.member_id != member.member_id]
        return list(endpoints_of([*others, member], group.configured, topics))

    # -- Leaving -----------------------------------------------------------------------------------------------------

    def _leave(self, request: StreamsHeartbeat) -> StreamsHeartbeatResponse:
        """Handle the heartbeat of a member that leaves, perhaps for a short time. Raises KafkaError."""
        group = self.group
        if request.instance_id is None:
            member = group.require(request.member_id)
        else:
            member = group.require_static(request.instance_id, request.member_id)
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = request.member_id
        if request.instance_id is not None and request.epoch == LEAVE_STATIC_EPOCH:
            # Commits of the process that leaves are refused, but those in the epochs of its tasks are not.
            held = member.assigned._replace(active=dict.fromkeys(member.assigned.active, 0))
            group.put(replace(member, epoch=LEAVE_STATIC_EPOCH, assigned=held, revoking=NO_HELD))
            group.deadlines.end_rebalance(member.member_id)
        else:
            self._remove([member.member_id])
        return StreamsHeartbeatResponse(request.member_id, request.epoch)

    def _after_removal(self) -> None:
        self.group.raise_epoch()
        self.group.settle_empty()

    # -- Others ------------------------------------------------------------------------------------------------------

    def check_commit(self, commit: CommitRequest, _now: Now, /) -> ErrorCode:
        """Return why this commit is refused, or NONE."""
        if commit.transactional:
            if commit.generation < 0 and not commit.member_id and commit.group_instance_id is None:
                return ErrorCode.NONE  # before KIP-447: only the transaction fences
        elif not commit.knows_member_epochs and commit.member_id in self.group.members:
            return ErrorCode.UNSUPPORTED_VERSION
        return self.group.check_commit(commit.member_id, commit.generation, commit.partitions)

    def tick(self, now: Now) -> Outcome:
        """Remove members whose time is up, and compute the first assignment of a group once it is due."""
        self._remove_silent(now)
        group = self.group
        if group.first_assignment_ms <= now.steady_ms:
            group.first_assignment_ms = NEVER_MS
            if group.members and group.configured is not None and group.is_assignment_outdated:
                group.assign(now)
        return self._write_changes(now)


def updated(member: StreamsMember, request: StreamsHeartbeat) -> StreamsMember:
    """Return the member with the fields of its heartbeat; the same object if none has changed."""
    found = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if request.endpoint is None and request.epoch != 0 else request.endpoint,
        client_tags=member.client_tags if request.client_tags is None else request.client_tags,
    )
    return member if found == member else found


def is_relevant_change(before: StreamsMember, after: StreamsMember, *, is_static: bool) -> bool:
    """Return whether a change of a member asks for another assignment.

    Of a static member only what an assignor looks at does: a restart changes nothing else.
    """
    if before == after:
        return False
    return not is_static or any(
        getattr(before, name) != getattr(after, name)
        for name in ("topology_epoch", "rack_id", "client_tags", "process_id")
    )


def check_epoch(member: StreamsMember, epoch: int, owned: TaskAssignment | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member joins, is current, or has missed only the last response."""
    if epoch in {0, member.epoch}:
        return
    if epoch > member.epoch:
        problem = "greater"
    elif epoch == member.previous_epoch and _is_held(member, owned):
        return
    else:
        problem = "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {problem} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_held(member: StreamsMember, owned: TaskAssignment | None) -> bool:
    """Return whether a member owns no other tasks than those that are assigned to it."""
    held = member.assigned
    return (
        owned is not None
        and owned.active <= held.active.keys()
        and owned.standby <= held.standby
        and owned.warmup <= held.warmup
    )


def check_tasks(configured: ConfiguredTopology, owned: TaskAssignment) -> None:
    """Raise INVALID_REQUEST for a task that the topology has not got."""
    for tasks in owned:
        for task in sorted(tasks):
            check_task(configured, task)


def check_task(configured: ConfiguredTopology, task: Task) -> None:
    """Raise INVALID_REQUEST if the topology has not got this task."""
    subtopology = (configured.subtopologies or {}).get(task.subtopology_id)
    if subtopology is None:
        problem = f"Subtopology {task.subtopology_id} does not exist in the topology."
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if not 0 <= task.partition < subtopology.task_count:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Task {task.partition} for subtopology {task.subtopology_id} is invalid. Number of tasks for this "
            f"subtopology: {subtopology.task_count}",
        )
