"""Quota entities (KIP-546): users, client ids and addresses, each by name or as a default, and the rules for changes.

An entity has a name or is the default of its type (name None). Users and client ids can be combined. The
checks and messages are those of Apache Kafka's controller.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Final

from anabranch.protocol.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (CLIENT_ID, USER, IP)
"""In the order in which Apache Kafka names them."""

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
_DOUBLE, _INT, _LONG = "DOUBLE", "INT", "LONG"
_LARGEST: Final[Mapping[str, int]] = MappingProxyType({_INT: 2**31 - 1, _LONG: 2**63 - 1})
CLIENT_QUOTAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: _LONG,
        CONSUMER_BYTE_RATE: _LONG,
        REQUEST_PERCENTAGE: _DOUBLE,
        CONTROLLER_MUTATION_RATE: _DOUBLE,
    }
)
"""Quotas of users and client ids, with the types of their values."""
IP_QUOTAS: Final[Mapping[str, str]] = MappingProxyType({CONNECTION_CREATION_RATE: _INT})
"""Quotas of addresses."""
_FRACTION_MAX: Final = 1e-6
"""Largest fraction with which a value counts as whole."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Users, client ids or addresses that a quota is set for: names by type, in the order of `ENTITY_TYPES`.

    A name is None for the default of its type.
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, names: Mapping[str, str | None]) -> "QuotaEntity":
        """Return the entity with these names by type. Types that do not exist come last."""
        known = [(kind, names[kind]) for kind in ENTITY_TYPES if kind in names]
        return cls((*known, *((kind, name) for kind, name in names.items() if kind not in ENTITY_TYPES)))

    @classmethod
    def parse(cls, key: str) -> "QuotaEntity":
        """Return the entity that is stored under a key."""
        return cls.of(json.loads(key))

    @property
    def key(self) -> str:
        """Key under which its quotas are stored."""
        return json.dumps(dict(self.parts), sort_keys=True)

    def __str__(self) -> str:
        """Return Apache Kafka's notation."""
        names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in self.parts)
        return f"ClientQuotaEntity(entries={{{names}}})"


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """A change of one entity's quotas: (key, value) pairs, with None to remove a quota."""

    entity: QuotaEntity
    operations: Sequence[tuple[str, float | None]]


def check_entity(entity: QuotaEntity) -> Mapping[str, str]:
    """Return the quotas that can be set for an entity, with their types. Raises INVALID_REQUEST."""
    if not entity.parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity.parts:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    kinds = {kind for kind, _ in entity.parts}
    if IP not in kinds:
        return CLIENT_QUOTAS
    if kinds != {IP}:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    return IP_QUOTAS


def check_operations(operations: Mapping[str, float | None], types: Mapping[str, str]) -> None:
    """Raise INVALID_REQUEST for an unknown quota or an invalid value. A quota to remove may be unknown."""
    for key, value in operations.items():
        if value is not None:
            _check_value(key, value, types.get(key))


def _check_value(key: str, value: float, kind: str | None) -> None:
    if kind is None:
        raise _invalid(f"Invalid configuration key {key}")
    if not isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if kind in _LARGEST:
        if value > _LARGEST[kind]:
            article = "an" if kind == _INT else "a"
            raise _invalid(f"Proposed value for {key} is too large for {article} {kind}.")
        if value % 1 > _FRACTION_MAX:
            raise _invalid(f"{key} cannot be a fractional value.")


def unresolvable(address: str) -> KafkaError:
    """Return the error for an address that is neither an IP address nor a host that can be resolved."""
    return _invalid(f"{address} is not a valid IP or resolvable host.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
