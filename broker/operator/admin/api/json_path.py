"""Conditions on JSON documents: a path in the notation of RFC 9535, and what its values are compared with.

    $.items[*].sku                  there is such a value
    $['first name'] == "Ada"        one of the values equals it
    $.total >= 100                  one of the values is a number, or a text, in that order

Paths have names, indexes and wildcards: each visits a value of the document once at most, whatever a client asks for.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

_STEP: Final = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*)|\[\s*(?P<index>-?\d{1,9})\s*\]|(?P<all>\.\*|\[\s*\*\s*\])
    |\[\s*(?:'(?P<single>(?:[^'\\]|\\.)*)'|"(?P<double>(?:[^"\\]|\\.)*)")\s*\]""",
    re.VERBOSE,
)
_COMPARISON: Final = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*(.+)", re.DOTALL)
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ANY: Final = None
"""The step to all members or elements."""


class JsonCondition(NamedTuple):
    """A path, and a comparison unless its values need only be there."""

    steps: tuple[str | int | None, ...]
    comparison: str = ""
    wanted: Any = None

    def holds(self, document: Any) -> bool:
        """Return whether a value at the path passes."""
        return any(self._passes(value) for value in _values(document, self.steps))

    def _passes(self, value: Any) -> bool:
        if not self.comparison:
            return True
        is_alike = _kind(value) is _kind(self.wanted)
        if self.comparison in {"==", "!="}:
            return (is_alike and value == self.wanted) is (self.comparison == "==")
        return is_alike and _kind(value) in {float, str} and _OPERATORS[self.comparison](value, self.wanted)


def parse_condition(text: str) -> JsonCondition:
    """Parse a condition. Raises ValueError, in one line, with the place that is not understood."""
    text = text.strip()
    if not text.startswith("$"):
        raise ValueError("a JSON path begins with $, as in $.items[0].sku")
    steps: list[str | int | None] = []
    at = 1
    while found := _STEP.match(text, at):
        steps.append(_step(found))
        at = found.end()
    if not text[at:]:
        return JsonCondition(tuple(steps))
    comparison = _COMPARISON.fullmatch(text, at)
    if comparison is None:
        raise ValueError(f"a JSON path has .name, ['name'], [0] and [*], and a comparison, not {text[at:][:40]!r}")
    return JsonCondition(tuple(steps), comparison[1], _literal(comparison[2].strip()))


def _step(found: re.Match[str]) -> str | int | None:
    if found["all"]:
        return _ANY
    if found["index"]:
        return int(found["index"])
    quoted = found["single"] if found["double"] is None else found["double"]
    return found["name"] or re.sub(r"\\(.)", r"\1", quoted)


def _literal(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(
            f"a JSON path is compared with a number, a text in quotes, or null, not {text[:40]!r}"
        ) from None


def _values(document: Any, steps: tuple[str | int | None, ...]) -> Iterator[Any]:
    """Yield the values at a path."""
    values = [document]
    for step in steps:
        values = [child for value in values for child in _children(value, step)]
    yield from values


def _children(value: Any, step: str | int | None) -> Iterator[Any]:
    if isinstance(value, dict):
        if step is _ANY:
            yield from value.values()
        elif step in value:
            yield value[step]
    elif isinstance(value, list):
        if step is _ANY:
            yield from value
        elif isinstance(step, int) and -len(value) <= step < len(value):
            yield value[step]


def _kind(value: Any) -> type:
    """Return the type that JSON has for a value: true is no number."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
