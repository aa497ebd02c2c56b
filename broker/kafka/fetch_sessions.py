"""Incremental fetch sessions (KIP-227): the node remembers a client's partitions, so requests name only changes.

A session keeps its partitions in the order in which they are served. A partition that returned data moves to the end,
so a full response does not starve the others. The number of sessions is bounded: without a free slot, a new session is
created only if the oldest has been idle for long enough; otherwise the client continues with full requests.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
TOPIC_IDS_SINCE = 13
EPOCH_MAX = 2**31 - 1
SESSIONS_SINCE = 7
TARGETS_MAX = 20_000
"""Partitions of one session; a client that fetches more continues with full requests."""

Key = tuple[str | bytes, int]
"""Topic name (or id, from v13 on) and partition index."""


@dataclass(slots=True)
class FetchTarget:
    """A partition as a client fetches it, and its state in the last response."""

    key: Key
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    sent_error: bool = False


@dataclass(slots=True)
class FetchSession:
    """Session of one client. `epoch` is the epoch that its next request must carry."""

    session_id: int
    uses_topic_ids: bool
    targets: dict[Key, FetchTarget]
    epoch: int
    used_ms: int


@dataclass(slots=True)
class FetchPlan:
    """Partitions that one request fetches. The response to an incremental request leaves out unchanged partitions."""

    targets: Collection[FetchTarget]
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def session_id(self) -> int:
        """Session id in the response."""
        return NO_SESSION if self.session is None else self.session.session_id

    def served(self, target: FetchTarget) -> None:
        """Move a partition that returned data to the end of the session's order."""
        if self.session is not None:
            targets = self.session.targets
            if targets.pop(target.key, None) is not None:
                targets[target.key] = target


@dataclass(slots=True)
class FetchSessions:
    """All fetch sessions of the node."""

    sessions_max: int
    idle_ms: int
    random: random.Random
    evictions: int = 0
    _sessions: dict[int, FetchSession] = field(default_factory=dict)
    """Sessions by id, least recently used first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, version: int, now_ms: int) -> FetchPlan:
        """Apply a request to its session. Raises the top-level errors of KIP-227 as KafkaError."""
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH} or version < SESSIONS_SINCE:
            self._sessions.pop(request.session_id, None)
            targets = {key: _target(key, wanted) for key, wanted in _wanted(request, version)}
            if request.session_epoch == FINAL_EPOCH or version < SESSIONS_SINCE or not targets:
                return FetchPlan(targets.values())
            session = self._create(targets, uses_topic_ids=version >= TOPIC_IDS_SINCE, now_ms=now_ms)
            return FetchPlan(list(targets.values()), session)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_topic_ids != (version >= TOPIC_IDS_SINCE):
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._apply(session, request, version)
        if len(session.targets) > TARGETS_MAX:
            del self._sessions[session.session_id]
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchPlan(list(session.targets.values()), session, incremental=True)

    def withdraw(self, plan: FetchPlan) -> None:
        """Drop the session that a request has created, because its answer does not name it."""
        if plan.session is not None and not plan.incremental:
            self._sessions.pop(plan.session.session_id, None)

    def _create(self, targets: dict[Key, FetchTarget], *, uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        if len(targets) > TARGETS_MAX:
            return None
        if len(self._sessions) >= self.sessions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < self.idle_ms:
                return None
            del self._sessions[oldest.session_id]
            self.evictions += 1
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self.random.randrange(1, EPOCH_MAX)
        session = FetchSession(session_id, uses_topic_ids, targets, 1, now_ms)
        self._sessions[session_id] = session
        return session

    @staticmethod
    def _apply(session: FetchSession, request: FetchRequest, version: int) -> None:
        targets = session.targets
        for key, wanted in _wanted(request, version):
            known = targets.get(key)
            if known is None:
                targets[key] = _target(key, wanted)
            else:
                known.fetch_offset = wanted.fetch_offset
                known.bytes_max = wanted.partition_max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if version >= TOPIC_IDS_SINCE else topic.topic
            for index in topic.partitions:
                targets.pop((name, index), None)


def _wanted(request: FetchRequest, version: int) -> Iterator[tuple[Key, FetchPartition]]:
    """Yield the partitions that a request names."""
    for topic in request.topics:
        name = topic.topic_id if version >= TOPIC_IDS_SINCE else topic.topic
        for wanted in topic.partitions:
            yield (name, wanted.partition), wanted


def _target(key: Key, wanted: FetchPartition) -> FetchTarget:
    return FetchTarget(
        key, wanted.fetch_offset, wanted.partition_max_bytes, wanted.current_leader_epoch, wanted.last_fetched_epoch
    )
