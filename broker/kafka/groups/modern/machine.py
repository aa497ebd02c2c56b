"""Base of the state machines of modern groups: time, the end, and the outcome of changes.

Invariant: the group is ahead of its log by the records of its outcomes only, and a response waits for them.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.interface import Outcome, Response
from anabranch.broker.kafka.groups.modern.group import ModernGroup
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.requests import Now
from anabranch.protocol.errors import KafkaError

REMOVED_AT_ONCE_MAX = 32
"""Members whose deletion is small enough for one write, however long the ids of the group and its members are."""
Group = TypeVar("Group", bound=ModernGroup[Any, Any])


class ModernMachine(Generic[Group]):
    """The state machine of one group, without its requests."""

    def __init__(self, group: Group, topics: TopicImageGetter) -> None:
        self.group = group
        self._topics = topics

    def forget_topics(self, _is_deleted: Callable[[str], bool], _now: Now, /) -> Outcome:
        """Return nothing to do: of topics only the offsets are known by name."""
        return Outcome()

    def resign(self, _now: Now, /) -> Outcome:
        """Stop coordinating the group. Requests that wait, wait for the log."""
        return Outcome()

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, and return the tombstones of its records."""
        return self.group.retire()

    def tick(self, now: Now) -> Outcome:
        """Remove members whose session or rebalance timeout has ended."""
        self._remove_silent(now)
        return self._write_changes(now)

    def _remove_silent(self, now: Now) -> None:
        """Remove members whose time is up; of very many the first, and the others next."""
        self._remove(self.group.deadlines.silent_members(now)[:REMOVED_AT_ONCE_MAX])
        self.group.deadlines.find_next()

    def _remove(self, member_ids: Collection[str]) -> None:
        for member_id in member_ids:
            self.group.remove(member_id)
        if member_ids:
            self._after_removal()

    def _after_removal(self) -> None:
        """Raise the group epoch: others get what the members had."""
        raise NotImplementedError

    def _write_changes(self, now: Now, responses: Sequence[Response] = ()) -> Outcome:
        """Return the changes as an outcome.

        Raises UNKNOWN_SERVER_ERROR, with nothing changed, if they are too large to be written.
        """
        try:
            changes = self.group.records.take_changes()
        except KafkaError:
            self.group = self.group.without_changes(now)
            raise
        return Outcome(records=changes, when_durable=responses)
