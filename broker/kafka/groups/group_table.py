"""The groups of one shard by id, and the timer that wakes each group at its next deadline."""

import asyncio
from collections.abc import Callable, Iterator

from anabranch.broker.kafka.groups.kinds import GroupKinds
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now
from anabranch.broker.kafka.groups.shard_group import ShardGroup
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError


class GroupTable:
    """All groups of a shard.

    `on_deadline` is called with a group when a deadline of its state machine has come. `group_count` returns the number
    of groups on this node, in all its shards.
    """

    def __init__(
        self,
        settings: GroupSettings,
        kinds: GroupKinds,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        on_deadline: Callable[[ShardGroup, Now], None],
        group_count: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._kinds = kinds
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._on_deadline = on_deadline
        self._group_count = group_count
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, ShardGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ShardGroup]:
        return iter(self._groups.values())

    def ids(self) -> list[str]:
        """Return the ids of all groups."""
        return list(self._groups)

    def get(self, group_id: str) -> ShardGroup | None:
        """Return a group, None if it does not exist."""
        return self._groups.get(group_id)

    def require(self, group_id: str, error: ErrorCode) -> ShardGroup:
        """Return a group. Raises KafkaError with `error` if it does not exist."""
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(error, f"Group {group_id} not found.")
        return group

    def check_room(self) -> None:
        """Raise POLICY_VIOLATION if clients may create no more groups on this node."""
        settings = self._settings
        if self._group_count() >= settings.groups_max:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"too many groups: {settings.groups_max} (group.groups_max)")

    def create(self, group_id: str) -> ShardGroup:
        """Add a group for offsets only. Raises POLICY_VIOLATION if there are too many."""
        self.check_room()
        return self.add(ShardGroup(self._kinds.restore(group_id, {}, self.now())))

    def add(self, group: ShardGroup) -> ShardGroup:
        """Add a group."""
        self._groups[group.group_id] = group
        return group

    def remove(self, group: ShardGroup) -> None:
        """Remove a group and cancel its timer."""
        group.cancel_timer()
        del self._groups[group.group_id]

    def clear(self) -> None:
        """Remove all groups and cancel their timers."""
        for group in self._groups.values():
            group.cancel_timer()
        self._groups.clear()

    # -- Time --------------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """Return the time on the steady clock and on the wall clock."""
        return Now(self._steady_ms(), self._now_ms())

    def schedule(self, group: ShardGroup) -> None:
        """Make sure that the group is woken at its next deadline. A timer that fires early sets the next one.

        Called after each call of the group's state machine, also one that refused a request.
        """
        wake_ms = group.group.wake_ms
        if wake_ms >= group.timer_ms:
            return
        group.cancel_timer()
        group.timer_ms = wake_ms
        group.timer = self._loop.call_later((wake_ms - self._steady_ms()) / 1000, self._wake, group)

    @property
    def wake_ms(self) -> int:
        """Time on the steady clock at which a group is woken next; NEVER_MS: none is waiting."""
        return min((group.timer_ms for group in self._groups.values()), default=NEVER_MS)

    def reset_timers(self) -> None:
        """Set the timers anew after the steady clock was moved forward. Those that are late fire at once."""
        for group in self._groups.values():
            group.cancel_timer()
            self.schedule(group)

    def _wake(self, group: ShardGroup) -> None:
        now = self.now()
        # The loop may call up to its clock's resolution early.
        now = Now(max(now.steady_ms, group.timer_ms), now.wall_ms)
        group.timer, group.timer_ms = None, NEVER_MS
        if self._groups.get(group.group_id) is group:
            self._on_deadline(group, now)
