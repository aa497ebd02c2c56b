"""Controls of a test over a node: its faults, its clocks, and its ports over stops and starts."""

from dataclasses import dataclass, field

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.dev.faults import Faults
from anabranch.broker.operator.dev.ports import KeptPorts
from anabranch.broker.operator.dev.time_travel import MovedClock


@dataclass(frozen=True, slots=True)
class Controls:
    """Faults, clocks and ports of one node, the same for each of its starts in a process."""

    clock: MovedClock
    faults: Faults = field(default_factory=Faults)
    ports: KeptPorts = field(default_factory=KeptPorts)

    def environment(self) -> Environment:
        """Return the surroundings of a node that is controlled."""
        return Environment(
            now_ms=self.clock.now_ms,
            now_ns=self.clock.now_ns,
            steady_ms=self.clock.steady_ms,
            reserve_ports=self.ports.reserve,
            make_stores=lambda settings, rng: self.faults.wrap_stores(make_stores(settings, rng)),
            wrap_handlers=self.faults.requests.wrap,
        )
