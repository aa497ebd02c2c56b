"""Requests and deadlines of the members of one shard's groups, of whatever kind the groups are.

State machines decide. This module carries out their outcomes: it sends responses, writes records, and wakes groups.

Invariant: no member gets a response before the state that it reports is durable.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from anabranch.broker.kafka.coordination.log import JointWrites, LogWriter, WriteDone
from anabranch.broker.kafka.groups.group_table import GroupTable
from anabranch.broker.kafka.groups.interface import Outcome, Response
from anabranch.broker.kafka.groups.kinds import GroupKinds
from anabranch.broker.kafka.groups.requests import Answer, GroupRequest, Now
from anabranch.broker.kafka.groups.shard_group import PendingWrite, ShardGroup
from anabranch.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")


class MembershipManager:
    """Requests and deadlines of members. Methods raise KafkaError with the code for the whole request."""

    def __init__(self, groups: GroupTable, writer: LogWriter, kinds: GroupKinds) -> None:
        self._groups = groups
        self._writer = writer
        self._kinds = kinds

    def handle(self, group_id: str, request: GroupRequest[Answer]) -> Answer:
        """Handle a request: return its answer, None if the response is sent to the request's ticket."""
        entry = self._groups.get(group_id)
        now = self._groups.now()
        machine = None if entry is None else entry.machine
        try:
            if machine is not None and request.group_type in machine.serves:
                outcome = machine.handle(request, now)
            else:
                outcome = self._kinds[request.group_type].begin(group_id, request, machine, now)
        except KafkaError:
            if entry is not None:
                self._groups.schedule(entry)
            raise
        if entry is None and outcome.successor is not None:
            self._groups.check_room()
            entry = self._groups.add(ShardGroup(outcome.successor))
        if entry is not None:
            self._carry_out(entry, outcome)
        answer: Answer = outcome.answer
        return answer

    def deadline_reached(self, entry: ShardGroup, now: Now) -> None:
        """Let a group do what is due."""
        self._carry_out(entry, entry.machine.tick(now))

    def resign(self, entry: ShardGroup) -> None:
        """Respond NOT_COORDINATOR to requests that wait for other members; others wait for the log."""
        _send(entry.machine.resign(self._groups.now()).responses)

    # -- Outcomes ----------------------------------------------------------------------------------------------------

    def forget_topics(self, is_deleted: Callable[[str], bool], done: WriteDone) -> None:
        """Have groups forget deleted topics; call `done` when that is durable, or has failed."""
        now = self._groups.now()
        changed = [
            (entry, outcome)
            for entry in self._groups
            if (outcome := entry.machine.forget_topics(is_deleted, now)).records
        ]
        writes = JointWrites(len(changed), done)

        def forgotten(response: KafkaError | None) -> None:
            writes.ended(ErrorCode.NONE if response is None else response.code)

        for entry, outcome in changed:
            outcome.when_durable = [Response(forgotten, None)]
            self._carry_out(entry, outcome)

    def _carry_out(self, entry: ShardGroup, outcome: Outcome) -> None:
        if outcome.responses:
            _send(outcome.responses)
        former = entry.machine
        if outcome.successor is not None:
            entry.cancel_timer()
            entry.machine = outcome.successor
        if outcome.records:
            write = PendingWrite(entry.machine, former, outcome.records, outcome.then, list(outcome.when_durable))
            entry.writes.append(write)
            self._writer.write(outcome.records, partial(self._written, entry, write))
        elif entry.writes:
            entry.writes[-1].waiting.extend(outcome.when_durable)
        elif outcome.when_durable:
            _send(outcome.when_durable)
        self._groups.schedule(entry)

    def _written(self, entry: ShardGroup, write: PendingWrite, error: ErrorCode) -> None:
        earlier = entry.end_write(write)
        if not error:
            entry.store(write.records)
        elif error == ErrorCode.MESSAGE_TOO_LARGE:
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code for members of a group that is too large to store
        if entry.machine is write.machine:
            if write.then is not None:
                self._carry_out(entry, write.then(error, self._groups.now()))
            elif error and self._groups.get(entry.group_id) is entry:
                self._restore(entry, write.former.group.group_type, earlier)
        _send((ticket, KafkaError(error) if error else response) for ticket, response in write.waiting)

    def _restore(self, entry: ShardGroup, former_type: str, earlier: Sequence[PendingWrite]) -> None:
        """Restore a group from its records in the log, because those by which it was ahead could not be written.

        `earlier` writes are still on their way: the group stays ahead of the log by them, whichever machine made them.
        """
        now = self._groups.now()
        _send(entry.machine.resign(now).responses)
        entry.machine = self._kinds.restore(entry.group_id, entry.stored_after(earlier), now, former_type)
        for write in earlier:
            write.machine, write.then = entry.machine, None
        self._groups.schedule(entry)


def _send(responses: Iterable[tuple[object, object]]) -> None:
    for ticket, response in responses:
        assert callable(ticket), "tickets are functions"
        ticket(response)


def respond_to(future: asyncio.Future[T]) -> "partial[None]":
    """Return a ticket that ends a future with the response, or with the KafkaError that was sent instead."""
    return partial(_resolve, future)


def _resolve(future: asyncio.Future[T], response: T | KafkaError) -> None:
    if future.done():  # its connection may have been closed
        return
    if isinstance(response, KafkaError):
        future.set_exception(response)
    else:
        future.set_result(response)
