"""Values of the registry: schemas, references, levels, modes, and errors with Confluent's codes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA_CHARACTERS_MAX: Final = 512 << 10
"""Characters of a schema."""
VERSION_MAX: Final = 2**31 - 1
"""Largest version, and largest id."""
REFERENCES_MAX: Final = 200
"""Schemas that one refers to, directly or not."""


class Level(StrEnum):
    """Rule for the compatibility of new versions with earlier ones."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_earlier(self) -> bool:
        """True if the new version must be able to read what was written with earlier ones."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_earlier(self) -> bool:
        """True if earlier versions must be able to read what is written with the new one."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """True if all earlier versions count, not only the last one."""
        return self.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """Permission to change a subject, or the registry."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Read-only for all subjects, whatever their own modes are."""
    IMPORT = "IMPORT"
    """Schemas are registered with the ids and versions that they have elsewhere, and without checks."""

    @property
    def is_read_only(self) -> bool:
        """True if nothing may be changed."""
        return self in {Mode.READONLY, Mode.READONLY_OVERRIDE}


class Kind(StrEnum):
    """Formats of schemas."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class ErrorKind:
    """Confluent's error codes. The first three digits are the HTTP status; INCOMPATIBLE has no others."""

    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    SUBJECT_WITHOUT_LEVEL = 40408
    SUBJECT_WITHOUT_MODE = 40409
    INCOMPATIBLE = 409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_LEVEL = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    REFERENCE_EXISTS = 42206
    ID_DOES_NOT_MATCH = 42207
    INVALID_SUBJECT = 42208
    SCHEMA_TOO_LARGE = 42209
    STORE = 50001
    TIMEOUT = 50002
    FORWARDING = 50003
    UNKNOWN_LEADER = 50004


class RegistryError(Exception):
    """A request is refused, with a code of `ErrorKind` or an HTTP status, and one line for its sender."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """HTTP status."""
        return int(str(self.code)[:3])


class InvalidSchema(RegistryError):
    """A schema cannot be parsed."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorKind.INVALID_SCHEMA, f"Invalid schema: {reason}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A version that a schema refers to, by the name that its text uses."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """Return it as in requests and records."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it was sent, or as it is stored. Equal values are the same schema."""

    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A schema as a version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False
    """True if it was soft-deleted: found by its id, or when deleted ones are asked for."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Fields of its record that are not understood here, which are kept when the record is written again."""

    @property
    def slot(self) -> tuple[str, int]:
        """Subject and version."""
        return self.subject, self.version


@dataclass(frozen=True, slots=True)
class Resolved:
    """A schema with the texts of all schemas that it refers to, by name, each after those that it refers to itself."""

    schema: Schema
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Reason why data of one schema cannot be read with another one."""

    kind: str
    path: str
    """Place in the schema, in the notation of the format."""
    text: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.kind}', description:\"{self.text} (at path '{self.path}')\"}}"


class TooComplex(Exception):
    """Schemas that take too many steps to be compared."""


class Steps:
    """Bound of the steps of a comparison, or of a check."""

    MAX: Final = 50_000
    """Half a second at most."""

    def __init__(self) -> None:
        self._left = self.MAX

    def take(self, count: int = 1) -> None:
        """Count steps. Raises TooComplex."""
        self._left -= count
        if self._left < 0:
            raise TooComplex


def parse_json(text: str) -> Any:
    """Return a schema in JSON, which has no infinite numbers and no NaN. Raises InvalidSchema."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise InvalidSchema("it is not JSON") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_references(found: Any) -> tuple[Reference, ...]:
    """Return references from JSON. Raises InvalidSchema."""
    if found is None:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InvalidSchema("references must be a list")
    if len(found) > REFERENCES_MAX:
        raise InvalidSchema(f"it refers to more than {REFERENCES_MAX} others")
    references = []
    for each in found:
        match each:
            case {"name": str(name), "subject": str(subject), "version": int(version)} if type(version) is int:
                references.append(Reference(name, subject, version))
            case _:
                raise InvalidSchema("a reference needs name, subject and version")
    return tuple(references)
