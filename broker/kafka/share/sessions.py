"""Share sessions (KIP-932): the node remembers which partitions a member of a share group fetches from it.

A member has at most one session on a node. Requests carry ascending epochs, so one that is repeated or overtaken is
refused. A session ends with its connection: the member cannot acknowledge any more, and what it has acquired is
released at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from anabranch.protocol.errors import ErrorCode, KafkaError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

TopicPartition = tuple[bytes, int]
"""Topic id and partition index."""


class SessionKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """Session of one member. Its next request must carry `epoch`."""

    key: SessionKey
    partitions: dict[TopicPartition, bool]
    """Partitions to fetch; True if the next response must name the partition, also without records."""
    connection: object
    """Identity of the client's connection."""
    epoch: int = 1

    def in_turn(self, epoch: int) -> Sequence[TopicPartition]:
        """Return the partitions, beginning with another one in each request, so that none starves."""
        ordered = list(self.partitions)
        if len(ordered) > 1 and epoch > 0:
            at = epoch % len(ordered)
            return ordered[at:] + ordered[:at]
        return ordered

    def note_answered(self, place: TopicPartition, *, has_error: bool, has_records: bool) -> None:
        """Note what a response has told of a partition. One with records goes behind the others, as in Kafka."""
        if place in self.partitions:
            if has_records:
                del self.partitions[place]
            self.partitions[place] = has_error


class ShareSessions:
    """All share sessions of the node."""

    def __init__(self, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, set[SessionKey]] = {}
        self._members: Counter[str] = Counter()
        """Number of sessions by group."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return group_id in self._members

    def begin(self, key: SessionKey, wanted: Iterable[TopicPartition], connection: object) -> ShareSession:
        """Begin a member's session, in place of an earlier one. Raises SHARE_SESSION_LIMIT_REACHED."""
        self.end(key)
        if len(self._sessions) >= self.sessions_max:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(key, dict.fromkeys(wanted, False), connection)
        self._sessions[key] = session
        self._by_connection.setdefault(connection, set()).add(key)
        self._members[key.group_id] += 1
        return session

    def require(self, key: SessionKey) -> ShareSession:
        """Return a member's session. Raises SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def advance(
        self,
        key: SessionKey,
        epoch: int,
        wanted: Iterable[TopicPartition] = (),
        forgotten: Collection[TopicPartition] = (),
    ) -> ShareSession:
        """Note a member's next request. Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = self.require(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        for each in wanted:
            session.partitions.setdefault(each, True)
        for each in forgotten:
            session.partitions.pop(each, None)
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def end(self, key: SessionKey) -> ShareSession | None:
        """End a member's session, and return it."""
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._by_connection[session.connection]
            keys.remove(key)
            if not keys:
                del self._by_connection[session.connection]
            self._members[key.group_id] -= 1
            if not self._members[key.group_id]:
                del self._members[key.group_id]
        return session

    def of_connection(self, connection: object) -> Collection[SessionKey]:
        """Return the members whose sessions end with a connection."""
        return tuple(self._by_connection.get(connection, ()))
