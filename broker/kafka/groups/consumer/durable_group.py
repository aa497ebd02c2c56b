"""A consumer group whose changes are written to the log, and whose responses wait until they are durable.

The state machine changes at once, ahead of the log. The durable records are kept next to it. A response is sent only
when all changes made up to that response are in the log. When a write fails, the state machine is
rebuilt from the durable records. If there are none yet, `on_creation_failed` lets the owner restore the group that was
there before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from anabranch.broker.kafka.coordination.log import BATCH_BYTES_MAX, KeyValue, LogWriter
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.group_base import SessionTimeout
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.consumer.topic_image import TopicImage
from anabranch.broker.kafka.groups.requests import JoinRequest, JoinResponse, Now, SyncRequest, SyncResponse
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

HeartbeatDone: TypeAlias = Callable[[ConsumerHeartbeatResponse | KafkaError], None]
"""Called with the response to a heartbeat. Must not raise."""
DurableCallback: TypeAlias = Callable[[ErrorCode], None]
"""Called with NONE when the changes are durable, else with the error because of which they are not. Must not raise."""


@dataclass(slots=True)
class _PendingWrite:
    """Records on their way to the log, and the callbacks that wait for them."""

    records: Sequence[KeyValue]
    waiting: list[DurableCallback] = field(default_factory=list)


class DurableConsumerGroup:
    """A consumer group with its durable records, `stored`."""

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
        """Called when a write has failed and the group has no durable records."""
        self._group_id = group_id
        self._settings = settings
        self._writer = writer
        self._newest_write: _PendingWrite | None = None
        self._now = Now(0, 0)

    def restore(self, now: Now) -> ConsumerGroup:
        """Rebuild the state machine from the durable records. Raises MalformedMessage."""
        self.state_machine = self._restored(self.stored, now)
        return self.state_machine

    def _restored(self, stored: Mapping[bytes, bytes], now: Now) -> ConsumerGroup:
        return ConsumerGroup.restore(self._group_id, self._settings, stored, now, self._session_timeout_ms)

    def heartbeat(
        self,
        request: ConsumerHeartbeat,
        topics: TopicImage,
        now: Now,
        done: HeartbeatDone,
        *,
        before: Sequence[KeyValue] = (),
    ) -> None:
        """Handle a heartbeat. `before` is written ahead of its changes. Raises KafkaError, with nothing changed."""
        self._now = now
        answer = self.state_machine.heartbeat(request, topics, now)
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

    def when_durable(self, callback: DurableCallback) -> None:
        """Call `callback` when all earlier changes are in the log, or could not be written."""
        if self._newest_write is None:
            callback(ErrorCode.NONE)
        else:
            self._newest_write.waiting.append(callback)

    def write(self, before: Sequence[KeyValue] = ()) -> None:
        """Write the changes. Raises UNKNOWN_SERVER_ERROR, like Kafka, if a record of the group is too large."""
        changed = self.state_machine.pending_records()
        if any(record.size_bytes > BATCH_BYTES_MAX for record in changed):
            self.state_machine = self._restored(self.state_machine.written, self._now)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record of group {self._group_id} is too large")
        if not changed:
            return
        self.state_machine.mark_written(changed)
        write = self._newest_write = _PendingWrite(changed)
        self._writer.write([*before, *changed], partial(self._written, write))

    def _written(self, write: _PendingWrite, error: ErrorCode) -> None:
        if self._newest_write is write:
            self._newest_write = None
        if error and not self.stored:
            self.on_creation_failed()
        if error:
            self.restore(self._now)
        else:
            for key, value in write.records:
                if value is None:
                    self.stored.pop(key, None)
                else:
                    self.stored[key] = value
        for callback in write.waiting:
            callback(error)
