"""What a resource is asked and answers: plain values, and the rules that hold for all types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from broker.configs.definitions import ConfigSource, ConfigType, Synonym
from broker.node import Node
from protocol.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's type codes of what has configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What a change does to a config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One config to change. `operation` is what the client sent: maybe no Operation."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config's value and where it comes from."""

    name: str
    value: str
    source: ConfigSource
    type: int
    documentation: str | None
    read_only: bool = False
    synonyms: Sequence[Synonym] = ()


class Resource(Protocol):
    """One type of what has configs. All methods raise KafkaError, and those that change something StorageError."""

    def describe(self, node: Node, name: str) -> Sequence[ConfigValue]:
        """All configs of one."""
        ...

    def names(self, node: Node) -> Sequence[str]:
        """Those there are, or that have configs of their own."""
        ...

    async def alter(self, node: Node, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Change some configs of one; the others stay."""
        ...

    async def replace(
        self, node: Node, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Set some configs of one; the others go back to their defaults."""
        ...


def check_unique_names(names: Sequence[str]) -> None:
    """Each config may be changed once in a request."""
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def check_not_null(name: str, value: str | None) -> str:
    """A value that is there."""
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value


def replacement_values(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The values of a request that replaces all configs."""
    check_unique_names([name for name, _ in configs])
    return {name: check_not_null(name, value) for name, value in configs}


def apply_change(change: ConfigChange, kind: ConfigType | None, current: str) -> str | None:
    """The value after a change, None when it goes back to the default; only lists can be added to."""
    if change.operation == Operation.DELETE:
        return None
    value = check_not_null(change.name, change.value)
    if change.operation == Operation.SET:
        return value
    if change.operation not in {Operation.APPEND, Operation.SUBTRACT}:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation} for {change.name}")
    if kind != ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {Operation(change.operation).name} to key {change.name} because its type is not LIST.",
        )
    items = [item for item in current.split(",") if item]
    changed = [item for item in value.split(",") if item]
    if change.operation == Operation.APPEND:
        items += [item for item in changed if item not in items]
    else:
        items = [item for item in items if item not in changed]
    return ",".join(items)


def split_changes(changed: Mapping[str, str | None]) -> tuple[dict[str, str], list[str]]:
    """What is to be set, and what unset."""
    values = {name: value for name, value in changed.items() if value is not None}
    return values, [name for name, value in changed.items() if value is None]
