"""The mechanisms that a node has, by their names."""

from collections.abc import Callable
from dataclasses import dataclass

from broker.sasl.credentials import ScramCredentials
from broker.sasl.mechanism import Mechanism
from broker.sasl.plain import PlainExchange, PlainUsers
from broker.sasl.scram import ScramExchange
from broker.settings.sasl_area import PLAIN


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Users and their passwords, and the means to check them."""

    scram: ScramCredentials
    plain: PlainUsers | None
    """Users of PLAIN; None if no listener has it."""
    random_bytes: Callable[[int], bytes]

    def begin(self, mechanism: str) -> Mechanism:
        """Begin an exchange with a client."""
        if mechanism == PLAIN:
            assert self.plain is not None, "checked with the settings"
            return PlainExchange(self.plain)
        return ScramExchange(mechanism, self.scram, self.random_bytes)
