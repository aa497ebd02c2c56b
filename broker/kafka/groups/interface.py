"""The interface of a kind of group: what a shard asks of it, and the one outcome that it returns.

A kind is a protocol by which members share work: the classic one, and those of consumer groups (KIP-848), share groups
(KIP-932) and streams groups (KIP-1071). Its state machine handles requests, deadlines and the ends of writes, and
returns an `Outcome` from each. It does no IO and reads no clock. The shard carries out every outcome in the same way
and knows no kind: another kind is an entry in `broker.kafka.groups.kinds`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.requests import CommitRequest, GroupRequest, Now
from anabranch.protocol.errors import ErrorCode

UnusedSince: TypeAlias = Callable[[TopicPartition, CommittedOffset], int | None]
"""Returns the time from which an offset's retention counts, None while the offset is in use."""
Continuation: TypeAlias = Callable[[ErrorCode, Now], "Outcome"]
"""Called with NONE when records are durable, else with the error because of which they are not."""


class Response(NamedTuple):
    """A response, and the ticket of the request that it is for."""

    ticket: object
    response: object


@dataclass(slots=True)
class Outcome:
    """Result of a request, a deadline or a write, which the shard carries out in the order of the fields."""

    answer: Any = None
    """Answer to a request that is answered at once."""
    responses: Sequence[Response] = ()
    """Responses that report nothing that must be durable first; also of requests that have waited."""
    successor: "GroupMachine | None" = None
    """The group as one of another kind, which takes the place of this one."""
    records: Sequence[KeyValue] = ()
    """Records to append to the log."""
    when_durable: Sequence[Response] = ()
    """Responses to send when these records and all earlier ones of the group are durable; an error if they fail."""
    then: Continuation | None = None
    """Returns how the group goes on when the write of `records` has ended.

    Without it the group changes ahead of its log: when the write fails, it is restored from its durable records.
    """


class Group(Protocol):
    """State of a group, for reading only."""

    @property
    def group_id(self) -> str:
        """Id of the group."""
        ...

    @property
    def group_type(self) -> str:
        """Name of its kind, as clients see it."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """Type of its members, for instance consumers; None if it has had none."""
        ...

    @property
    def state(self) -> str:
        """Name of its state, as clients see it."""
        ...

    @property
    def members(self) -> Mapping[str, object]:
        """Members by id."""
        ...

    @property
    def wake_ms(self) -> int:
        """A lower bound of its next deadline, on the steady clock.

        The shard reads it after each call of the machine, also one that raised.
        """
        ...

    @property
    def is_unused(self) -> bool:
        """True if the group has no members, and no member id has been handed out for one to join."""
        ...

    def check_delete(self) -> ErrorCode:
        """Return why the group may not be deleted, or NONE."""
        ...

    def check_delete_offsets(self) -> ErrorCode:
        """Return why no offset may be deleted, or NONE. Topics in use must be checked one by one."""
        ...

    def check_fetch(self, member_id: str | None, epoch: int, /) -> ErrorCode:
        """Return why offsets may not be read on behalf of a member, or NONE."""
        ...

    def topics_in_use(self) -> frozenset[str] | None:
        """Return the topics that members are subscribed to; None if they may be using any topic."""
        ...

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time from which the retention of an offset counts."""
        ...


class GroupMachine(Protocol):
    """State machine of one group. Requests raise KafkaError with nothing changed but deadlines."""

    @property
    def group(self) -> Group:
        """State of the group."""
        ...

    @property
    def serves(self) -> Collection[str]:
        """Types of the groups whose requests it handles, its own and perhaps those of others."""
        ...

    def handle(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a request of a member."""
        ...

    def check_commit(self, commit: CommitRequest, now: Now, /) -> ErrorCode:
        """Return why this commit is refused, or NONE."""
        ...

    def forget_topics(self, is_deleted: Callable[[str], bool], now: Now, /) -> Outcome:
        """Forget what the group, beside its offsets, knows of deleted topics."""
        ...

    def tick(self, now: Now) -> Outcome:
        """Handle all deadlines that have been reached."""
        ...

    def resign(self, now: Now, /) -> Outcome:
        """Stop coordinating the group: respond NOT_COORDINATOR to requests that wait for other members."""
        ...

    def retire(self) -> Sequence[KeyValue]:
        """Mark the group as dead, deleted or of another kind from now on; return the tombstones of its records."""
        ...


class GroupKind(Protocol):
    """Makes the groups of one kind."""

    def owns(self, key: bytes) -> bool:
        """Return whether a record with this key belongs to a group of this kind."""
        ...

    def restore(self, group_id: str, stored: Mapping[bytes, bytes], now: Now) -> GroupMachine:
        """Return a group as its durable records describe it, an empty one if there are none.

        Raises MalformedMessage.
        """
        ...

    def begin(self, group_id: str, request: GroupRequest[Any], former: GroupMachine | None, now: Now) -> Outcome:
        """Handle a request to a group that does not exist, or that is of a kind which does not serve the request.

        A request that may begin a group returns it as the successor. Raises KafkaError with nothing changed.
        """
        ...
