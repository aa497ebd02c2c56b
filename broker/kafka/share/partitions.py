"""The share partitions that this node leads, and the sessions of the members that read them.

A share partition is loaded by the first ShareFetch for it. It is closed when this node leads its partition no longer,
when another leader or a change of the group's offsets has fenced it, or when no member of the group has a session here.
The next request loads it again.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from anabranch.broker.kafka.configs.group import GroupConfigs
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.share.dead_letters.writer import DeadLetterWriter
from anabranch.broker.kafka.share.interface import ShareKey, SharePersister
from anabranch.broker.kafka.share.leader import Done, ShareLeader
from anabranch.broker.kafka.share.partition.machine import Acknowledgement
from anabranch.broker.kafka.share.sessions import SessionKey, ShareSessions, TopicPartition
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.protocol.errors import ErrorCode, KafkaError


class SharePartitions:
    """All share partitions that this node leads."""

    def __init__(
        self,
        topics: TopicMap,
        persister: SharePersister,
        configs: GroupConfigs,
        dead_letters: DeadLetterWriter,
        *,
        sessions_max: int,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`steady_ms` measures locks; `now_ms` is the clock of records. `spawn` runs a coroutine as a task."""
        self.sessions = ShareSessions(sessions_max)
        self._topics = topics
        self._persister = persister
        self._configs = configs
        self.dead_letters = dead_letters
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self.spawn = spawn
        """Runs a coroutine as a task of the node."""
        self._led: dict[ShareKey, ShareLeader] = {}
        topics.listeners.append(self._topics_changed)

    def __len__(self) -> int:
        return len(self._led)

    def __iter__(self) -> Iterator[ShareLeader]:
        return iter(self._led.values())

    def lock_ms(self, group_id: str) -> int:
        """Return the duration of the group's locks."""
        return self._configs.share_record_lock_duration_ms(group_id)

    def open(self, group_id: str, partition: Partition) -> ShareLeader:
        """Return the share partition of a group and a partition that this node leads. It may have to be loaded yet."""
        key = ShareKey(group_id, partition.topic_id, partition.index)
        led = self._led.get(key)
        if led is None or led.partition is not partition:
            if led is not None:
                led.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            led = self._led[key] = ShareLeader(
                key,
                partition,
                self._persister,
                self._configs,
                self.dead_letters,
                now_ms=self._now_ms,
                steady_ms=self._steady_ms,
                spawn=self.spawn,
                is_wanted=lambda: self.sessions.has_group(group_id),
                on_end=self._ended,
            )
        return led

    def acknowledge(
        self, key: SessionKey, place: TopicPartition, acknowledgements: Sequence[Acknowledgement], done: Done
    ) -> None:
        """Acknowledge records of a partition; `done` is called now or later."""
        led = self._led.get(ShareKey(key.group_id, *place))
        if led is None:
            done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            led.acknowledge(key.member_id, acknowledgements, done)

    def end_session(self, key: SessionKey, done: Callable[[], None]) -> None:
        """End a member's session, and release what it has acquired; `done` is called when that is durable, or fails.

        A group without any more sessions is forgotten.
        """
        self.sessions.end(key)
        leaders = self._of_group(key.group_id)
        pending = len(leaders) + 1

        def released(_: KafkaError | None) -> None:
            nonlocal pending
            pending -= 1
            if not pending:
                done()

        for led in leaders:
            led.release(key.member_id, released)
            led.close_unless_wanted()
        released(None)

    def connection_lost(self, connection: object) -> None:
        """End the sessions of a connection."""
        for key in self.sessions.of_connection(connection):
            self.end_session(key, _ignore)

    def _of_group(self, group_id: str) -> Sequence[ShareLeader]:
        return [led for key, led in self._led.items() if key.group_id == group_id]

    def _ended(self, led: ShareLeader) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]

    def _topics_changed(self) -> None:
        for led in list(self._led.values()):
            try:
                is_led = self._topics.partition(led.key.topic_id, led.key.partition) is led.partition
            except KafkaError as error:
                unknown = error.code == ErrorCode.UNKNOWN_TOPIC_ID
                led.fail(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if unknown else error)
            else:
                if not is_led:
                    led.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))


def _ignore() -> None:
    """Do nothing when what a lost member had is released."""
