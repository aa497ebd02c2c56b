"""Use of one kind of quota by clients.

Only those with a quota are kept, and no more than `clients_max` of them: the one that was idle for longest is dropped
first. One that was idle for an hour is dropped, as in Apache Kafka.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from anabranch.broker.kafka.quotas.limits import Client, Limits

IDLE_MS_MAX: Final = 3_600_000
Key = TypeVar("Key", bound=Hashable)
Meter = TypeVar("Meter")


@dataclass(slots=True)
class Usage(Generic[Meter]):
    """Use by the clients that share a quota, and their throttle times."""

    limit: float
    meter: Meter
    used_ms: int
    throttles: int = 0
    throttled_ms: int = 0
    """Sum of all throttle times."""

    def throttle(self, throttle_ms: int) -> int:
        """Count a throttle time, and return it."""
        if throttle_ms > 0:
            self.throttles += 1
            self.throttled_ms += throttle_ms
        return throttle_ms


class UsageTable(Generic[Key, Meter]):
    """Usage by those who share a quota, least recently used first."""

    def __init__(self, new_meter: Callable[[], Meter], *, clients_max: int) -> None:
        self._new_meter: Callable[[], Meter] = new_meter
        self._clients_max = clients_max
        self._usages: dict[Key, Usage[Meter]] = {}

    def __len__(self) -> int:
        return len(self._usages)

    def items(self) -> Iterator[tuple[Key, Usage[Meter]]]:
        """Iterate over all, least recently used first."""
        return iter(self._usages.items())

    def get(self, key: Key, limit: float, now_ms: int) -> Usage[Meter]:
        """Return the usage that is about to grow."""
        usages = self._usages
        usage = usages.pop(key, None)
        if usage is None:
            self.drop_idle(now_ms)
            if len(usages) >= self._clients_max:
                del usages[next(iter(usages))]
            usage = Usage(limit, self._new_meter(), now_ms)
        usage.limit = limit
        usage.used_ms = now_ms
        usages[key] = usage
        return usage

    def limit_each(self, limit_of: Callable[[Key], float | None]) -> None:
        """Apply changed quotas: drop clients that no longer have one."""
        for key, usage in list(self._usages.items()):
            limit = limit_of(key)
            if limit is None:
                del self._usages[key]
            else:
                usage.limit = limit

    def drop_idle(self, now_ms: int) -> None:
        """Drop those that were idle for an hour."""
        usages = self._usages
        while usages and now_ms - next(iter(usages.values())).used_ms >= IDLE_MS_MAX:
            del usages[next(iter(usages))]


class ClientUsages(UsageTable[Client, Meter]):
    """Usage by clients, and the quotas that apply to them."""

    def __init__(self, new_meter: Callable[[], Meter], *, clients_max: int) -> None:
        super().__init__(new_meter, clients_max=clients_max)
        self.limits = Limits()

    def set_limits(self, limits: Limits) -> None:
        """Replace the quotas. The use of clients is kept, except of those that no longer have a quota."""
        self.limits = limits
        self.limit_each(limits.shared_by)

    def find(self, user: str, client_id: str, now_ms: int) -> Usage[Meter] | None:
        """Return a client's usage, which is about to grow; None if it has no quota."""
        limit = self.limits.find(user, client_id)
        return None if limit is None else self.get(limit.sharers, limit.value, now_ms)
