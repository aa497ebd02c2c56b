"""The interface of a resource with configs, its values, and the rules common to all types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.definitions import ConfigSource, ConfigType, Synonym
from anabranch.protocol.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's type codes of resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """Operation of a change."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one config. `operation` is as the client sent it, and may be an invalid code."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config's value and its source."""

    name: str
    value: str
    source: ConfigSource
    type: int
    documentation: str | None
    read_only: bool = False
    synonyms: Sequence[Synonym] = ()


class Resource(Protocol):
    """A type of resource. All methods raise KafkaError; those that change something also StorageError."""

    def describe(self, serving: Serving, name: str) -> Sequence[ConfigValue]:
        """Describe all configs of one resource."""
        ...

    def names(self, serving: Serving) -> Sequence[str]:
        """List the resources that exist, or those that have configs."""
        ...

    async def alter(self, serving: Serving, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Change some configs of one resource; the others stay."""
        ...

    async def replace(
        self, serving: Serving, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Set some configs of one resource, and reset the others to their defaults."""
        ...


def check_unique_names(names: Sequence[str]) -> None:
    """Raise INVALID_REQUEST if a request changes a config more than once."""
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def check_not_null(name: str, value: str | None) -> str:
    """Return the value. Raises INVALID_REQUEST for null."""
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value


def replacement_values(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return the values of a request that replaces all configs."""
    check_unique_names([name for name, _ in configs])
    return {name: check_not_null(name, value) for name, value in configs}


def apply_change(change: ConfigChange, kind: ConfigType | None, current: str) -> str | None:
    """Return the value after a change; None resets it to the default. APPEND and SUBTRACT are for lists only."""
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
    """Split into the values to set and the names to unset."""
    values = {name: value for name, value in changed.items() if value is not None}
    return values, [name for name, value in changed.items() if value is None]
