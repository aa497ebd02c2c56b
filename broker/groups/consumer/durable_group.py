"""The thin shell of one consumer group: writes what its state machine has changed, and answers when that is durable.

The machine moves on at once, ahead of the log; the shell keeps what is durable beside it. An answer leaves only when
all that the machine knew when it was made is in the log, and a write that fails puts the machine back to what is; a
group of which nothing is durable yet is `unborn`, and its owner puts back what was there before it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from broker.coordination.log import BATCH_BYTES_MAX, KeyValue, LogWriter
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.group_base import SessionTimeout
from broker.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from broker.groups.consumer.topic_image import TopicImage
from broker.groups.requests import JoinRequest, JoinResponse, Now, SyncRequest, SyncResponse
from broker.settings.client_areas import GroupSettings
from protocol.errors import ErrorCode, KafkaError

HeartbeatDone: TypeAlias = Callable[[ConsumerHeartbeatResponse | KafkaError], None]
"""Called with the answer to a heartbeat. Must not raise."""
DurableCallback: TypeAlias = Callable[[ErrorCode], None]
"""Called when what an answer says is durable, or with why it never will be. Must not raise."""


@dataclass(slots=True)
class _PendingWrite:
    """Records on their way to the log, and the answers that wait for them."""

    records: Sequence[KeyValue]
    waiting: list[DurableCallback] = field(default_factory=list)


class DurableConsumerGroup:
    """A consumer group and what is durable of it (`stored`, record by record)."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        writer: LogWriter,
        stored: Mapping[bytes, bytes] | None = None,
        session_timeout_ms: SessionTimeout | None = None,
    ) -> None:
        self.state_machine = ConsumerGroup(group_id, settings, session_timeout_ms)
        self._session_timeout_ms = session_timeout_ms
        self.stored = dict(stored or {})
        self.on_creation_failed: Callable[[], None] = lambda: None
        """Called when a write has failed and nothing of the group is durable."""
        self._group_id = group_id
        self._settings = settings
        self._writer = writer
        self._newest: _PendingWrite | None = None
        self._now = Now(0, 0)

    def restore(self, now: Now) -> ConsumerGroup:
        """Rebuild the group from what is durable. Raises MalformedMessage."""
        self.state_machine = self._restored(self.stored, now)
        return self.state_machine

    def _restored(self, stored: Mapping[bytes, bytes], now: Now) -> ConsumerGroup:
        return ConsumerGroup.restore(self._group_id, self._settings, stored, now, self._session_timeout_ms)

    def heartbeat(
        self,
        beat: ConsumerHeartbeat,
        topics: TopicImage,
        now: Now,
        done: HeartbeatDone,
        *,
        before: Sequence[KeyValue] = (),
    ) -> None:
        """Handle a heartbeat; `before` is written ahead of what it changes. Raises KafkaError, with nothing changed."""
        self._now = now
        answer = self.state_machine.heartbeat(beat, topics, now)
        self.write(before)
        self.when_durable(lambda error: done(KafkaError(error) if error else answer))

    def join(self, request: JoinRequest, topics: TopicImage, now: Now, done: Callable[[JoinResponse], None]) -> None:
        """Handle the JoinGroup of a classic member. Raises KafkaError, with nothing changed."""
        self._now = now
        answer = self.state_machine.join_classic_member(request, topics, now)
        self.write()
        self.when_durable(lambda error: done(JoinResponse(error, request.member_id) if error else answer))

    def sync(self, request: SyncRequest, topics: TopicImage, now: Now, done: Callable[[SyncResponse], None]) -> None:
        """Handle the SyncGroup of a classic member. Raises KafkaError."""
        answer = self.state_machine.sync_classic_member(request, topics, now)
        self.when_durable(lambda error: done(SyncResponse(error) if error else answer))

    def when_durable(self, told: DurableCallback) -> None:
        """Call back when all that the group knows now is in the log, or has failed to get there."""
        if self._newest is None:
            told(ErrorCode.NONE)
        else:
            self._newest.waiting.append(told)

    def write(self, before: Sequence[KeyValue] = ()) -> None:
        """Write what has changed. Raises UNKNOWN_SERVER_ERROR, as Kafka, if the group is too big to store."""
        changed = self.state_machine.pending_records()
        if any(record.size_bytes > BATCH_BYTES_MAX for record in changed):
            self.state_machine = self._restored(self.state_machine.written, self._now)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record of group {self._group_id} is too large")
        if not changed:
            return
        self.state_machine.mark_written(changed)
        flight = self._newest = _PendingWrite(changed)
        self._writer.write([*before, *changed], partial(self._written, flight))

    def _written(self, flight: _PendingWrite, error: ErrorCode) -> None:
        if self._newest is flight:
            self._newest = None
        if error and not self.stored:
            self.on_creation_failed()
        if error:
            self.restore(self._now)
        else:
            for key, value in flight.records:
                if value is None:
                    self.stored.pop(key, None)
                else:
                    self.stored[key] = value
        for told in flight.waiting:
            told(ErrorCode.COORDINATOR_NOT_AVAILABLE if error else ErrorCode.NONE)
