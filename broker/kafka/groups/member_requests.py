"""Membership of the groups of one shard: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and ConsumerGroupHeartbeat.

The state machines decide; this module carries out what they decide: it sends responses, writes records, and converts a
group from one protocol to the other when a member of the other protocol joins (`broker.kafka.groups.migration`).

Invariant: no member gets a response before the state that it reports is durable.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from anabranch.broker.kafka.coordination.log import BATCH_BYTES_MAX, LogWriter
from anabranch.broker.kafka.groups.classic.effects import Effect, Respond, StoreSnapshot
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.records import group_record
from anabranch.broker.kafka.groups.consumer.durable_group import DurableConsumerGroup, HeartbeatDone
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.group_base import SessionTimeout
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat
from anabranch.broker.kafka.groups.consumer.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.group_table import GroupTable
from anabranch.broker.kafka.groups.migration import to_classic_group, to_consumer_group
from anabranch.broker.kafka.groups.requests import (
    JoinRequest,
    JoinResponse,
    LeavingMember,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.kafka.groups.shard_group import ShardGroup
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError


class MembershipManager:
    """Requests and deadlines of members. Methods raise KafkaError with the code for the whole request."""

    def __init__(
        self,
        groups: GroupTable,
        writer: LogWriter,
        settings: GroupSettings,
        *,
        topics: TopicImageGetter,
        session_timeout_ms: SessionTimeout | None = None,
    ) -> None:
        self._groups = groups
        self._writer = writer
        self._settings = settings
        self._topics = topics
        self._session_timeout_ms = session_timeout_ms

    def join(self, group_id: str, request: JoinRequest) -> None:
        """Handle JoinGroup. The request's ticket must be a future of a JoinResponse."""
        entry = self._groups.get(group_id)
        if entry is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry = self._groups.create(group_id)
        group = entry.state_machine
        if isinstance(entry.group, DurableConsumerGroup) and group.members:
            entry.group.join(request, self._topics(), self._groups.now(), partial(_respond, request.ticket))
            # A static member may have replaced the last member that used the consumer protocol.
            self._write_changes(entry, rebalance=entry.group.state_machine.is_assignment_outdated)
            return
        if isinstance(group, ConsumerGroup):
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            entry, group = self._replace_empty(entry, group)
        self._apply(entry, group.join(request, self._groups.now()))

    def sync(self, group_id: str, request: SyncRequest) -> None:
        """Handle SyncGroup. The request's ticket must be a future of a SyncResponse."""
        entry = self._groups.require(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(entry.group, DurableConsumerGroup):
            entry.group.sync(request, self._topics(), self._groups.now(), partial(_respond, request.ticket))
            self._groups.schedule(entry)
        else:
            self._apply(entry, entry.group.sync(request, self._groups.now()))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """Handle Heartbeat."""
        entry = self._groups.get(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        group = entry.state_machine
        if isinstance(group, ConsumerGroup):
            error = group.heartbeat_classic_member(member_id, group_instance_id, generation, self._groups.now())
        else:
            error = group.heartbeat(member_id, group_instance_id, generation, self._groups.now())
        self._groups.schedule(entry)
        return error

    def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup: return an error code for each. Administrators may remove members of any group."""
        entry = self._groups.get(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        group = entry.state_machine
        if isinstance(group, ConsumerGroup):
            errors = group.remove(leavers)
            self._write_changes(entry, rebalance=True)
            return errors
        errors, effects = group.leave(leavers, self._groups.now())
        self._apply(entry, effects)
        return errors

    def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat, done: HeartbeatDone) -> None:
        """Handle ConsumerGroupHeartbeat: call `done` with the response once its state is durable, or with an error."""
        entry = self._groups.get(group_id)
        if entry is None or isinstance(entry.group, ClassicGroup):
            self._groups.schedule(self._join_as_consumer(group_id, entry, request, done))
        else:
            entry.group.heartbeat(request, self._topics(), self._groups.now(), done)
            self._write_changes(entry, rebalance=True)

    def deadline_reached(self, entry: ShardGroup, now: Now) -> None:
        """Let a group do what is due."""
        group = entry.state_machine
        if isinstance(group, ConsumerGroup):
            group.tick(now)
            self._write_changes(entry, rebalance=True)
        else:
            self._apply(entry, group.tick(now))

    def restore_consumer_group(self, group_id: str, stored: Mapping[bytes, bytes]) -> DurableConsumerGroup:
        """Return a consumer group as its records describe it. Raises MalformedMessage."""
        restored = self._new_consumer_group(group_id, stored)
        restored.restore(self._groups.now())
        return restored

    def resign(self, entry: ShardGroup) -> None:
        """Respond NOT_COORDINATOR to a classic group's waiting requests; those of other groups wait for the log."""
        if isinstance(entry.group, ClassicGroup):
            self._apply(entry, entry.group.resign(self._groups.now()))

    # -- Effects -----------------------------------------------------------------------------------------------------

    def _apply(self, entry: ShardGroup, effects: Iterable[Effect]) -> None:
        """Carry out the effects of a classic group's state machine."""
        for effect in effects:
            match effect:
                case Respond(ticket, response):
                    _respond(ticket, response)
                case StoreSnapshot(snapshot, _):
                    record = group_record(entry.group_id, snapshot)
                    self._writer.write([record], partial(self._stored, entry, effect))
        self._groups.schedule(entry)

    def _stored(self, entry: ShardGroup, write: StoreSnapshot, error: ErrorCode) -> None:
        if not error:
            entry.stored = write.snapshot
        if error == ErrorCode.MESSAGE_TOO_LARGE:
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code for members of a group that is too large to store
        if write.then is not None and isinstance(entry.group, ClassicGroup):
            self._apply(entry, entry.group.snapshot_stored(write.then, error, self._groups.now()))

    def _write_changes(self, entry: ShardGroup, *, rebalance: bool) -> None:
        """Write the changes of a consumer group; convert it to a classic one when only classic members are left."""
        assert isinstance(entry.group, DurableConsumerGroup), "classic groups return what they write as effects"
        entry.group.write()
        if entry.group.state_machine.should_downgrade and self._downgrade(
            entry, entry.group.state_machine, rebalance=rebalance
        ):
            return
        self._groups.schedule(entry)

    # -- Conversion between the protocols ----------------------------------------------------------------------------

    def _new_consumer_group(self, group_id: str, stored: Mapping[bytes, bytes] | None = None) -> DurableConsumerGroup:
        return DurableConsumerGroup(group_id, self._settings, self._writer, stored, self._session_timeout_ms)

    def _join_as_consumer(
        self, group_id: str, entry: ShardGroup | None, request: ConsumerHeartbeat, done: HeartbeatDone
    ) -> ShardGroup:
        """Create a consumer group, or convert a classic one with its members, if the heartbeat joins the group."""
        if request.epoch != 0:
            problem = f"{'Group' if request.epoch < 0 else 'Consumer group'} {group_id} not found."
            if entry is not None:
                problem = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        if entry is None:
            self._groups.check_room()
        consumer = self._new_consumer_group(group_id)
        now = self._groups.now()
        classic = entry.group if entry is not None and entry.state_machine.members else None
        if isinstance(classic, ClassicGroup):
            consumer.state_machine = to_consumer_group(
                classic, self._settings, self._topics(), now, self._session_timeout_ms
            )
        before = [] if entry is None else [group_record(group_id, None)]
        consumer.heartbeat(request, self._topics(), now, done, before=before)
        # The heartbeat was accepted: from here on this is a consumer group.
        if isinstance(classic, ClassicGroup) and entry is not None:
            self._apply(entry, classic.resign(now, ErrorCode.REBALANCE_IN_PROGRESS))
        created = self._groups.replace(entry, consumer)
        if isinstance(classic, ClassicGroup) and entry is not None:
            consumer.on_creation_failed = partial(self._undo_conversion, created, entry)
        return created

    def _downgrade(self, entry: ShardGroup, group: ConsumerGroup, *, rebalance: bool) -> bool:
        """Convert a consumer group of classic members to a classic group; False if that is too large to store."""
        now = self._groups.now()
        classic = to_classic_group(group, self._settings, self._topics(), now)
        snapshot = classic.snapshot()
        record = group_record(group.group_id, snapshot)
        if record.size_bytes > BATCH_BYTES_MAX:
            return False
        created = self._groups.replace(entry, classic)

        def written(error: ErrorCode) -> None:
            if error:
                self._undo_conversion(created, entry)
            else:
                created.stored = snapshot

        self._writer.write([*group.retire(), record], written)
        self._apply(created, classic.rebalance(now) if rebalance else ())
        return True

    def _undo_conversion(self, entry: ShardGroup, former: ShardGroup) -> None:
        """Restore a group as it was before its conversion, whose records could not be written."""
        if self._groups.get(entry.group_id) is not entry:
            return
        now, machine = self._groups.now(), former.group
        if isinstance(machine, DurableConsumerGroup):
            machine.restore(now)
        elif former.stored is not None:
            machine = ClassicGroup.restore(machine.group_id, self._settings, former.stored, now)
        else:
            machine = ClassicGroup(machine.group_id, self._settings)
        restored = self._groups.replace(entry, machine)
        restored.stored = former.stored
        self._groups.schedule(restored)

    def _replace_empty(self, entry: ShardGroup, group: ConsumerGroup) -> tuple[ShardGroup, ClassicGroup]:
        """Replace an empty consumer group by a classic one."""
        self._writer.write(group.delete())
        classic = ClassicGroup(group.group_id, self._settings)
        return self._groups.replace(entry, classic), classic


def _respond(ticket: object, response: JoinResponse | SyncResponse) -> None:
    assert isinstance(ticket, asyncio.Future), "tickets are futures"
    if not ticket.done():  # its connection may have been closed
        ticket.set_result(response)
