"""Base of all areas of settings: how a setting is defined, the types of values, and the check of what is given.

An area is a frozen dataclass whose fields are defined by `setting`. What it is created with may be text, as flags and
environment have it: each value is converted to the type of its field and checked against its bounds.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin, get_type_hints

from anabranch.broker.node.settings.sizes import parse_size

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
CENTURY_MS = 36_525 * 86_400_000
"""Upper limit of times that are added to the clock: the sum has to fit into the catalog's 64 bits."""
PORT_MAX: Final = 65535
_SIZE: Final = "size"
_PORT: Final = "port"
_NODE_ID: Final = "node id"
_COUNT: Final = "count"
AUTO_ID: Final = -1
"""The id of a node that shall choose one at its start; written as `auto`."""
AUTO_COUNT: Final = 0
"""A number that is chosen at the start; written as `auto`."""
Bytes = Annotated[int, _SIZE]
"""A size, which may have a unit, such as `512MiB`."""
Port = Annotated[int, _PORT]
NodeId = Annotated[int, _NODE_ID]
"""Id of a node, or `auto`."""
CountOrAuto = Annotated[int, _COUNT]
"""A number, or `auto`."""
_AUTO: Final = {_NODE_ID: AUTO_ID, _COUNT: AUTO_COUNT}
"""Value of `auto`, by marker."""
_WORDS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "f"), False),
}
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+\s*")


class InvalidSetting(ValueError):
    """A value is not allowed for its setting. The text says what is."""

    def __init__(self, place: tuple[str, ...], allowed: str) -> None:
        super().__init__(f"{'.'.join(place)}: {allowed}")
        self.place = place
        """Names of the areas around the setting, and its own."""
        self.allowed = allowed


class Secret:
    """A text that neither logs nor messages show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret('**********')" if self else "Secret('')"


def setting(
    *,
    description: str,
    default: Any = MISSING,
    ge: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
) -> Any:
    """Define a setting: its description, its default, and the bounds of its value. Without a default it is required."""
    bounds = {"ge": ge, "le": le, "min_length": min_length, "max_length": max_length, "pattern": pattern}
    return field(default=default, metadata={"description": description, **bounds})


@dataclass(frozen=True, slots=True)
class Definition:
    """Type, default, bounds and description of a setting, as the class of its area states them."""

    kind: Any
    """Type of the values: a type or a Literal. It is without None, if the setting is optional."""
    marker: str
    """`size`, `port`, `node id` or `count`; empty for others."""
    is_optional: bool
    default: Any
    """MISSING if it has none."""
    description: str
    bounds: Mapping[str, Any]

    @property
    def is_required(self) -> bool:
        """True if there is no default."""
        return self.default is MISSING

    @property
    def is_secret(self) -> bool:
        """True if its values are not shown."""
        return self.kind is Secret

    def convert(self, value: object) -> object:
        """Return a value in the type of the setting. Raises ValueError, whose text says what is allowed."""
        if value is None and self.is_optional:
            return None
        if self.marker in _AUTO and value in ("auto", _AUTO[self.marker]):
            return _AUTO[self.marker]
        converted = _converted(value, self.kind, self.marker)
        _check_bounds(converted, self.bounds)
        return converted


def _definition(hint: Any, stated: Field[Any]) -> Definition:
    kind, marker = _split(hint)
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else ()
    is_optional = NoneType in members
    if is_optional:
        kind, marker = _split(next(each for each in members if each is not NoneType))
    bounds = {name: bound for name, bound in stated.metadata.items() if name != "description" and bound is not None}
    if marker == _PORT:
        bounds = {"ge": 0, "le": PORT_MAX}
    default = stated.default
    if stated.default_factory is not MISSING:
        default = stated.default_factory()
    return Definition(
        kind=kind,
        marker=marker,
        is_optional=is_optional,
        default=default,
        description=stated.metadata.get("description", ""),
        bounds=bounds,
    )


def _split(hint: Any) -> tuple[Any, str]:
    """Return a type without its marker, and the marker."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    kind, marker = get_args(hint)
    return kind, marker


def definitions(area: "type[Area]") -> Mapping[str, Definition]:
    """Return the definitions of the settings of an area, by name, in order."""
    key: Any = area  # to mypy the class of a frozen dataclass is not hashable
    return _definitions(key)


@cache
def _definitions(area: Any) -> Mapping[str, Definition]:
    hints = get_type_hints(area, include_extras=True)
    return {each.name: _definition(hints[each.name], each) for each in fields(area)}


@dataclass(frozen=True, kw_only=True)
class Area:
    """One area of the settings. Its values never change after the start."""

    def __post_init__(self) -> None:
        """Convert and check all values. Raises InvalidSetting."""
        for name, defined in definitions(type(self)).items():
            given = getattr(self, name)
            try:
                value = defined.convert(given)
            except InvalidSetting as error:
                raise InvalidSetting((name, *error.place), error.allowed) from None
            except ValueError as error:
                raise InvalidSetting((name,), str(error)) from None
            if value is not given:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Create an area from values by name. Raises InvalidSetting, also for a name that is unknown or missing."""
        known = definitions(cls)
        for name in values:
            if name not in known:
                raise InvalidSetting((name,), f"unknown: expected one of {', '.join(known)}")
        for name, defined in known.items():
            if defined.is_required and name not in values:
                raise InvalidSetting((name,), "required")
        return cls(**values)


def _converted(value: Any, kind: Any, marker: str) -> object:
    """Return a value as another type. Raises ValueError."""
    if isinstance(kind, type) and issubclass(kind, Area):
        return value if isinstance(value, kind) else kind.of(_table(value))
    if get_origin(kind) is Mapping:
        return {name: _inner(name, each, get_args(kind)[1]) for name, each in _table(value).items()}
    if isinstance(value, bool) and kind is not bool:
        raise ValueError("should be a number or a text, not true or false")
    if get_origin(kind) is Literal:
        return _choice(value, get_args(kind))
    return _PARSERS[kind](parse_size(value) if marker == _SIZE and isinstance(value, str) else value)


def _table(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ValueError("should be a table of settings")


def _inner(name: str, value: Any, kind: Any) -> object:
    try:
        return _converted(value, kind, "")
    except InvalidSetting as error:
        raise InvalidSetting((name, *error.place), error.allowed) from None


def _choice(value: object, choices: tuple[str, ...]) -> object:
    if value not in choices:
        *first, last = map(repr, choices)
        quoted = "" if isinstance(value, str) else ", in quotes"
        raise ValueError(f"should be {', '.join(first)} or {last}{quoted}")
    return value


def _parse_bool(value: object) -> bool:
    found = value if isinstance(value, bool) else _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("should be true or false")
    return found


def _parse_int(value: object) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise ValueError("should be a whole number")


def _parse_float(value: object) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError("should be a number")


def _parse_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("should be a text")


def _parse_path(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_parse_text(value))


def _parse_secret(value: object) -> Secret:
    return value if isinstance(value, Secret) else Secret(_parse_text(value))


_PARSERS: Final[Mapping[Any, Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: _parse_text,
    Path: _parse_path,
    Secret: _parse_secret,
}


def _check_bounds(value: Any, bounds: Mapping[str, Any]) -> None:
    """Raise ValueError if a value is out of its bounds."""
    for name, bound in bounds.items():
        if name == "ge" and not value >= bound:  # not a number is in no bounds
            raise ValueError(f"should be greater than or equal to {bound}")
        if name == "le" and not value <= bound:
            raise ValueError(f"should be less than or equal to {bound}")
        if name == "min_length" and len(value) < bound:
            raise ValueError(f"should have at least {bound} character{'' if bound == 1 else 's'}")
        if name == "max_length" and len(value) > bound:
            raise ValueError(f"should have at most {bound} character{'' if bound == 1 else 's'}")
        if name == "pattern" and re.fullmatch(bound, value) is None:
            raise ValueError(f"should match {bound}")
