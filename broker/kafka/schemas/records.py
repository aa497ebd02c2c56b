"""Records of `_schemas`, as Confluent's Schema Registry writes them: JSON keys and values.

    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}
        {"subject":"s","version":1,"id":7,"schema":"...","deleted":false}
    {"keytype":"CONFIG","subject":"s","magic":0}            {"subject":"s","compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s","magic":0}              {"subject":"s","mode":"READONLY"}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}    {"subject":"s","version":3}
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}     {"subject":"s"}
    {"keytype":"NOOP","magic":0}                            null, or {"maxId":7}

A subject of null stands for the registry as a whole. A value of null deletes the key. `schemaType` (AVRO if it is
missing) and `references` (none) are left out where they can be. DELETE_SUBJECT soft-deletes the versions up to its own,
CLEAR_SUBJECT forgets the versions that are soft-deleted. The value of NOOP is ours, and other registries ignore it: the
largest id ever given, for which compaction leaves no other record after schemas were deleted for good.

Fields and kinds of keys that are not known are ignored, and so are subjects of contexts (`:.context:subject`), which
have ids of their own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.schemas.model import (
    VERSION_MAX,
    Kind,
    Level,
    Mode,
    RegistryError,
    Schema,
    Version,
    parse_references,
)

CONTEXT_PREFIX: Final = ":."
"""Beginning of a subject that belongs to a context."""
_VERSION_FIELDS: Final = frozenset({"subject", "version", "id", "schemaType", "references", "schema", "deleted"})


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version is registered or soft-deleted; None: it is deleted for good."""

    subject: str
    version: int
    value: Version | None


@dataclass(frozen=True, slots=True)
class LevelRecord:
    """The level of a subject, or of the registry (None), is set; a level of None: it has none of its own."""

    subject: str | None
    level: Level | None


@dataclass(frozen=True, slots=True)
class ModeRecord:
    """The mode of a subject, or of the registry (None), is set; a mode of None: it has none of its own."""

    subject: str | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class SubjectDeletion:
    """Versions of a subject are soft-deleted, up to one; None: the record of that is withdrawn."""

    subject: str
    up_to: int | None


@dataclass(frozen=True, slots=True)
class SubjectClearing:
    """The soft-deleted versions of a subject are deleted for good; a record that is withdrawn clears nothing."""

    subject: str
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class IdMark:
    """Ids up to this one have been given."""

    id_max: int


RegistryRecord = VersionRecord | LevelRecord | ModeRecord | SubjectDeletion | SubjectClearing | IdMark


def encode(record: RegistryRecord) -> KeyValue:
    """Return the record for the log."""
    match record:
        case VersionRecord(subject, version, value):
            key: dict[str, Any] = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
            return _key_value(key, None if value is None else _version_value(value))
        case LevelRecord(subject, level):
            config = None if level is None else _of_subject(subject, compatibilityLevel=level)
            return _key_value({"keytype": "CONFIG", "subject": subject, "magic": 0}, config)
        case ModeRecord(subject, mode):
            setting = None if mode is None else _of_subject(subject, mode=mode)
            return _key_value({"keytype": "MODE", "subject": subject, "magic": 0}, setting)
        case SubjectDeletion(subject, up_to):
            deletion = None if up_to is None else {"subject": subject, "version": up_to}
            return _key_value({"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}, deletion)
        case SubjectClearing(subject, is_withdrawn):
            clearing = None if is_withdrawn else {"subject": subject}
            return _key_value({"keytype": "CLEAR_SUBJECT", "subject": subject, "magic": 0}, clearing)
        case IdMark(id_max):
            return _key_value({"keytype": "NOOP", "magic": 0}, {"maxId": id_max})


def decode(record: KeyValue) -> RegistryRecord | None:
    """Return the meaning of a record; None: it has none here, or is damaged."""
    try:
        key = json.loads(record.key)
        value = None if record.value is None else json.loads(record.value)
        return None if str(key.get("subject") or "").startswith(CONTEXT_PREFIX) else _decoded(key, value)
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RegistryError):
        return None


def _decoded(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> RegistryRecord | None:
    match key:
        case {"keytype": "SCHEMA", "subject": str(subject), "version": int(version)}:
            number = _number(version)
            return VersionRecord(subject, number, None if value is None else _version(subject, number, value))
        case {"keytype": "CONFIG"}:
            # A value without a level has other configs only, which are not served.
            level = None if value is None else value.get("compatibilityLevel")
            return LevelRecord(_subject(key), None if level is None else Level(level))
        case {"keytype": "MODE"}:
            return ModeRecord(_subject(key), None if value is None else Mode(value["mode"]))
        case {"keytype": "DELETE_SUBJECT", "subject": str(subject)}:
            return SubjectDeletion(subject, None if value is None else int(value["version"]))
        case {"keytype": "CLEAR_SUBJECT", "subject": str(subject)}:
            return SubjectClearing(subject, is_withdrawn=value is None)
        case {"keytype": "NOOP"} if value is not None:
            return IdMark(_number(value["maxId"]))
    return None


def _subject(key: Mapping[str, Any]) -> str | None:
    subject = key.get("subject")
    return None if subject is None else str(subject)


def _version(subject: str, version: int, value: Mapping[str, Any]) -> Version:
    text = value["schema"]
    if not isinstance(text, str):
        raise TypeError(f"a schema is text, not {type(text).__name__}")
    schema = Schema(Kind(value.get("schemaType") or "AVRO"), text, parse_references(value.get("references")))
    extra = tuple((name, part) for name, part in value.items() if name not in _VERSION_FIELDS)
    return Version(subject, version, _number(value["id"]), schema, bool(value.get("deleted")), extra)


def _number(value: Any) -> int:
    """Return an id or a version. Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not 1 <= number <= VERSION_MAX:
        raise ValueError(f"neither an id nor a version: {number}")
    return number


def _version_value(value: Version) -> dict[str, Any]:
    found: dict[str, Any] = {"subject": value.subject, "version": value.version, "id": value.id}
    if value.schema.kind is not Kind.AVRO:
        found["schemaType"] = value.schema.kind
    if value.schema.references:
        found["references"] = [each.as_json() for each in value.schema.references]
    return {**found, "schema": value.schema.text, "deleted": value.is_deleted, **dict(value.extra)}


def _of_subject(subject: str | None, **setting: str) -> dict[str, str]:
    return setting if subject is None else {"subject": subject, **setting}


def _key_value(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> KeyValue:
    return KeyValue(_json(key), None if value is None else _json(value))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def encode_all(records: Sequence[RegistryRecord]) -> Sequence[KeyValue]:
    """Return records for the log."""
    return [encode(each) for each in records]
