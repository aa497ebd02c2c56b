"""Configs of a streams group, with the defaults of Apache Kafka 4.4 (KIP-1071)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

RACK_TAGS: Final = "rack.aware.assignment.tags"
STANDBY_REPLICAS: Final = "num.standby.replicas"


@dataclass(frozen=True, slots=True)
class StreamsConfigs:
    """Values of the configs of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    initial_rebalance_delay_ms: int = 3_000
    """Time that the first member of an empty group waits for others before tasks are assigned."""
    assignment_interval_ms: int = 1_000
    """Shortest time between two assignments."""
    task_offset_interval_ms: int = 60_000
    """Interval in which members report how far they have restored state."""
    acceptable_recovery_lag: int = 10_000
    """Records by which restored state may lag for a member to count as caught up."""
    standby_replicas: int = 0
    rack_tags: tuple[str, ...] = ()
    """Tags that clients must have. As in Apache Kafka 4.4, the assignor does not use them."""

    @property
    def of_assignment(self) -> Mapping[str, str]:
        """Configs whose change asks for another assignment, as the group's record has them."""
        configs = {STANDBY_REPLICAS: str(self.standby_replicas)}
        if self.rack_tags:
            configs[RACK_TAGS] = ",".join(self.rack_tags)
        return configs


StreamsConfigsGetter: TypeAlias = Callable[[str], StreamsConfigs]
"""Returns the current configs of a group."""
