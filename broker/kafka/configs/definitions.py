"""Definition of a config in Kafka's terms: type, default, allowed values, and sources of values."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum

from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.errors import ErrorCode, KafkaError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_TRIMMED = "".join(map(chr, range(0x21)))
_SPACES = " \t\n\v\f\r"
_DOUBLE = re.compile(
    r"(?P<number>[+-]?((NaN|Infinity)$"
    r"|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
    r"|0[xX]([0-9a-fA-F]+(\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?"
)


class ConfigType(IntEnum):
    """Kafka's type codes in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Kafka's source codes in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


Synonym = tuple[str, str, ConfigSource]
"""Name under which a value is set, the value, and its source. In a list, the value in force is the first."""


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config. `broker_name` is its broker-wide synonym, `setting` the node's setting that provides its default."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    broker_name: str = ""
    setting: tuple[str, str] | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    also_allowed: int | None = None
    """An allowed value outside the range."""
    item_pattern: str = ""
    """Regular expression of each item of a list, unless the list is a single `*`."""
    problem_of: Callable[[str], str] | None = None
    """Returns what is wrong with a text, empty if it is right."""
    is_internal: bool = False
    """True if Kafka describes the config only where it is set."""

    def normalize(self, value: str) -> str:
        """Return a value as Kafka shows it after parsing. Raises INVALID_CONFIG, with Kafka's message."""
        parse = _PARSERS[self.type]
        try:
            parsed = parse(value)
        except ValueError:
            raise invalid_config(
                f"Invalid value {value} for configuration {self.name}: {_EXPECTED[self.type]}"
            ) from None
        if isinstance(parsed, list) and not self.item_pattern:
            if "" in parsed:
                raise invalid_config(f"Configuration '{self.name}' values must not be empty.")
            parsed = list(dict.fromkeys(parsed))
        if self.choices:
            items = parsed if isinstance(parsed, list) else [parsed]
            for item in items:
                if item not in self.choices:
                    raise invalid_config(
                        f"Invalid value {item} for configuration {self.name}: "
                        f"String must be one of: {', '.join(self.choices)}"
                    )
        if self.problem_of is not None and (problem := self.problem_of(str(parsed))):
            raise invalid_config(f"Invalid value {value} for configuration {self.name}: {problem}")
        if isinstance(parsed, int | float):
            self._check_range(parsed)
        elif isinstance(parsed, list) and self.item_pattern:
            self._check_items(parsed)
        return _text(parsed)

    def _check_items(self, items: list[str]) -> None:
        if items != ["*"] and not all(re.fullmatch(self.item_pattern, item) for item in items if item):
            raise invalid_config(
                f"Invalid value [{', '.join(items)}] for configuration {self.name}: {self.name} must be the literal "
                "'*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )

    def _check_range(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        rule = ""
        if self.also_allowed is not None:
            assert low is not None
            assert high is not None
            if value != self.also_allowed and not low <= value <= high:
                rule = f"between {low} and {high} or equal to {self.also_allowed}"
        elif low is not None and value < low:
            rule = f"at least {low:.10g}"
        elif high is not None and value > high:
            rule = f"no more than {high:.10g}"
        if rule:
            raise invalid_config(f"Invalid value {value} for configuration {self.name}: Value must be {rule}")


def default_value(row: ConfigDef, settings: Settings) -> str:
    """Return the value where the resource sets none: the node's setting, or Kafka's default."""
    if row.setting is None:
        return row.default
    value = getattr(getattr(settings, row.setting[0]), row.setting[1])
    return str(value).lower() if row.type == ConfigType.BOOLEAN else str(value)


def invalid_config(message: str) -> KafkaError:
    """Build an INVALID_CONFIG error."""
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def _trim(value: str) -> str:
    """Remove what Java's `trim` does: spaces and control characters, but no other spaces of Unicode."""
    return value.strip(_TRIMMED)


def _parse_bool(value: str) -> bool:
    upper = _trim(value).upper()
    if upper not in {"TRUE", "FALSE"}:
        raise ValueError(value)
    return upper == "TRUE"


def _parse_int(bits: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        trimmed = _trim(value)
        number = int(trimmed)
        if "_" in trimmed or trimmed != trimmed.strip() or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise ValueError(value)
        return number

    return parse


def _parse_double(value: str) -> float:
    """Parse what Java's `Double.parseDouble` does."""
    found = _DOUBLE.fullmatch(_trim(value))
    if found is None:
        raise ValueError(value)
    number = found["number"]
    try:
        return float.fromhex(number) if "x" in number.lower() else float(number)
    except OverflowError:
        return math.copysign(math.inf, -1 if number.startswith("-") else 1)


def parse_list(value: str) -> list[str]:
    """Split a list at its commas."""
    trimmed = _trim(value)
    return [item.strip(_SPACES) for item in trimmed.split(",")] if trimmed else []


def _text(parsed: object) -> str:
    """Return a parsed value as Java shows it."""
    if isinstance(parsed, list):
        return ",".join(parsed)
    if isinstance(parsed, bool):
        return str(parsed).lower()
    if not isinstance(parsed, float):
        return str(parsed)
    if not math.isfinite(parsed):
        return "NaN" if math.isnan(parsed) else "Infinity" if parsed > 0 else "-Infinity"
    if not parsed or 1e-3 <= abs(parsed) < 1e7:
        return repr(parsed)
    sign, digits, exponent = Decimal(repr(parsed)).normalize().as_tuple()
    first, *rest = map(str, digits)
    assert isinstance(exponent, int), "it is finite"
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


_PARSERS: Mapping[ConfigType, Callable[[str], bool | int | float | str | list[str]]] = {
    ConfigType.BOOLEAN: _parse_bool,
    ConfigType.STRING: _trim,
    ConfigType.INT: _parse_int(32),
    ConfigType.SHORT: _parse_int(16),
    ConfigType.LONG: _parse_int(64),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: parse_list,
}
_EXPECTED = {
    ConfigType.BOOLEAN: "Expected value to be either true or false",
    ConfigType.STRING: "Expected value to be a string",
    ConfigType.INT: "Not a number of type INT",
    ConfigType.SHORT: "Not a number of type SHORT",
    ConfigType.LONG: "Not a number of type LONG",
    ConfigType.DOUBLE: "Not a number of type DOUBLE",
    ConfigType.LIST: "Expected a comma separated list",
}
