"""Controls of a test over a node: its faults and its clocks."""

from dataclasses import dataclass, field

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.dev.faults import Faults
from anabranch.broker.operator.dev.time_travel import MovedClock


@dataclass(frozen=True, slots=True)
class Controls:
    """Faults and clocks of one node."""

    clock: MovedClock
    faults: Faults = field(default_factory=Faults)

    def environment(self) -> Environment:
        """Return the surroundings of a node that is controlled."""
        return Environment(
            now_ms=self.clock.now_ms,
            now_ns=self.clock.now_ns,
            steady_ms=self.clock.steady_ms,
            make_stores=lambda settings, rng: self.faults.wrap_stores(make_stores(settings, rng)),
            wrap_handlers=self.faults.requests.wrap,
        )
