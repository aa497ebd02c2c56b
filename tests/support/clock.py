"""A wall clock that a test sets."""

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """Shows `ms`, Unix time in milliseconds, until the test changes it."""

    ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        """Current time."""
        return self.ms
