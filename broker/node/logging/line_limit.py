"""A bound on the lines that strangers cause: some of each kind at once, and then one in a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES_MAX: Final = 20
LINE_S: Final = 1.0


@dataclass(slots=True)
class _Allowance:
    """Lines of one kind that may be logged now."""

    room: float
    as_of_s: float
    left_out: int = 0


class LineLimit:
    """Decides which lines are logged. `clock` returns seconds.

    Of each kind there are `lines_max` at once, and then one in each `line_s`.
    """

    def __init__(self, clock: Callable[[], float], lines_max: int = LINES_MAX, line_s: float = LINE_S) -> None:
        self._clock = clock
        self._lines_max = lines_max
        self._line_s = line_s
        self._allowances: dict[str, _Allowance] = {}

    def leave_out(self, kind: str) -> None:
        """Count a line of this kind, of which there were more than `lines_max` just now."""
        self._allowances[kind].left_out += 1

    def fields(self, kind: str) -> dict[str, int] | None:
        """Return fields of a line of this kind: how many were left out before it, if any. None: leave this one out."""
        now_s = self._clock()
        allowance = self._allowances.get(kind)
        if allowance is None:
            allowance = self._allowances[kind] = _Allowance(self._lines_max, now_s)
        allowance.room = min(self._lines_max, allowance.room + (now_s - allowance.as_of_s) / self._line_s)
        allowance.as_of_s = now_s
        if allowance.room < 1:
            allowance.left_out += 1
            return None
        allowance.room -= 1
        left_out, allowance.left_out = allowance.left_out, 0
        return {"left_out": left_out} if left_out else {}
