"""Rates of use, and the time until a rate is within its limit again.

As in Apache Kafka (`Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils`), with its rounding. Times are milliseconds of a
clock that never goes back.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """Number and length of the windows that a rate is measured over. The last one is not complete."""

    count: int
    window_ms: int


@dataclass(slots=True)
class _Window:
    start_ms: int
    last_ms: int
    """Time of the last record."""
    value: float = 0.0

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    """Sum over windows, per second.

    There is one more window than configured: the oldest may begin before the time that is measured, and end within it.
    """

    __slots__ = ("_current", "_wanted", "_windows")

    def __init__(self, wanted: Windows) -> None:
        self._wanted = wanted
        self._windows: list[_Window] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        windows = self._windows
        if not windows:
            windows.append(_Window(now_ms, now_ms))
        window = windows[self._current]
        if now_ms - window.start_ms >= self._wanted.window_ms:
            self._current = (self._current + 1) % (self._wanted.count + 1)
            if self._current == len(windows):
                windows.append(_Window(now_ms, now_ms))
            window = windows[self._current]
            window.reset(now_ms)
        window.value += value
        window.last_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """Return the rate per second."""
        measured_ms = self.measured_ms(now_ms)
        return sum(window.value for window in self._windows) * 1000 / measured_ms

    def measured_ms(self, now_ms: int) -> int:
        """Return the time that the rate is measured over: all windows but the last one at least."""
        wanted, windows = self._wanted, self._windows
        for window in windows:
            if now_ms - window.last_ms >= wanted.count * wanted.window_ms:
                window.reset(now_ms)
        elapsed_ms = now_ms - min((window.start_ms for window in windows), default=now_ms)
        full = elapsed_ms // wanted.window_ms
        return max(elapsed_ms + max(0, wanted.count - 1 - full) * wanted.window_ms, 1)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the time until the rate is within a limit, if nothing is recorded; 0 if it is."""
        rate = self.measure(now_ms)
        if rate <= limit:
            return 0
        return _round((rate - limit) / limit * self.measured_ms(now_ms))


class TokenBucket:
    """Credit that grows by the limit per second, up to what the windows hold, and that each use takes from."""

    __slots__ = ("_refilled_ms", "_tokens", "_wanted")

    def __init__(self, wanted: Windows) -> None:
        self._wanted = wanted
        self._tokens = math.inf
        self._refilled_ms = 0

    def tokens(self, limit: float, now_ms: int) -> float:
        """Return the credit; negative while the limit is exceeded."""
        burst = self._wanted.count * self._wanted.window_ms / 1000 * limit
        self._tokens = min(burst, self._tokens + limit * (now_ms - self._refilled_ms) / 1000)
        self._refilled_ms = now_ms
        return self._tokens

    def take(self, value: float, limit: float, now_ms: int) -> None:
        """Use credit, even if there is none."""
        self._tokens = self.tokens(limit, now_ms) - value

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the time until the credit is no longer negative; 0 if it is not negative."""
        tokens = self.tokens(limit, now_ms)
        return _round(-tokens / limit * 1000) if tokens < 0 else 0


def _round(value: float) -> int:
    """Round half up, as Java does."""
    return math.floor(value + 0.5)
