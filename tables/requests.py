"""Requests to a worker process, and its answers: plain data, as JSON between processes.

Nothing of Arrow is imported here, so that a node that has a worker stays small: schemas of tables are the text of
`schema.encode_schema`.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from anabranch.s3stream.object.format import IndexEntry
from anabranch.tables.framing import Framing
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.registry import RegisteredSchema


@dataclass(frozen=True, slots=True)
class Registry:
    """Place of a schema registry."""

    url: str
    credentials: str | None = None
    """`user:password`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Configuration of a topic's keys or values."""

    format: Literal["raw", "json", "avro", "protobuf", "auto"]
    """`auto`: that of the newest schema of the subject; all values have Confluent's header."""
    schema: bytes | None = None
    """Contents of a schema file; None: the schema is in the registry. json: JSON Schema, or Kafka Connect's; avro:
    `.avsc`; protobuf: a descriptor set."""
    registry: Registry | None = None
    """json: without a registry and a file, values are a column of texts, each an object of JSON."""
    subject: str = ""
    message: str | None = None
    """protobuf: full name of the message."""
    encodings: Mapping[str, str] = field(default_factory=dict)
    """json: names or patterns of encodings of some fields, by path (see `encodings`)."""
    framing: Framing | None = None
    """Place of the id of a record's schema; None: Confluent's with a registry, and otherwise there is none."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"schema": _text(self.schema)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Asked":
        """Return what `to_json` was given."""
        framing = None if found["framing"] is None else Framing(found["framing"])
        parts = {"schema": _bytes(found["schema"]), "registry": _registry(found), "framing": framing}
        return cls(**dict(found) | parts)


@dataclass(frozen=True, slots=True)
class Part:
    """Decoding of keys or values with one version of their schema.

    It decodes the same values in the same way, wherever and whenever: the schemas that records were written with are
    looked up by their ids, and never change.
    """

    format: Literal["raw", "json", "avro", "protobuf", "none"]
    """`none`: nothing is decoded, for the `reason`."""
    schema: RegisteredSchema | bytes | None = None
    framing: Framing = Framing.NONE
    """Place of the id of a record's schema."""
    message: str | None = None
    registry: Registry | None = None
    """Place of the schemas that records were written with."""
    reason: str | None = None
    encodings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = asdict(self)
        return found | {"schema": _text(self.schema)} if isinstance(self.schema, bytes) else found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Part":
        """Return what `to_json` was given."""
        schema = found["schema"]
        if isinstance(schema, dict):
            references = tuple((name, text) for name, text in schema["references"])
            schema = RegisteredSchema(**schema | {"references": references})
        else:
            schema = _bytes(schema)
        parts = {"schema": schema, "registry": _registry(found), "framing": Framing(found["framing"])}
        return cls(**dict(found) | parts)


RAW = Part("raw")


@dataclass(frozen=True, slots=True)
class Question:
    """Configuration of a topic, and what its table has so far."""

    value: Asked
    key: Asked
    schema: str | None = None
    """Schema of the table; None: there is no table yet."""
    value_before: Part | None = None
    key_before: Part | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        before = {"value_before": self.value_before, "key_before": self.key_before}
        return {
            "value": self.value.to_json(),
            "key": self.key.to_json(),
            "schema": self.schema,
            **{name: None if part is None else part.to_json() for name, part in before.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Question":
        """Return what `to_json` was given."""
        names = ("value_before", "key_before")
        before = [None if found[name] is None else Part.from_json(found[name]) for name in names]
        return cls(Asked.from_json(found["value"]), Asked.from_json(found["key"]), found["schema"], *before)


@dataclass(frozen=True, slots=True)
class Finding:
    """Schema and decoding that the next shares of a table are made with."""

    schema: str
    value: Part
    key: Part
    added: Sequence[str] = ()
    """Paths of columns and fields that the table did not have."""
    promoted: Sequence[str] = ()
    """Paths of those whose type has grown, with both types."""
    unfit: Sequence[str] = ()
    """Paths of fields whose values do not fit their column, with both types."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"value": self.value.to_json(), "key": self.key.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Finding":
        """Return what `to_json` was given."""
        return cls(**dict(found) | {name: Part.from_json(found[name]) for name in ("value", "key")})


@dataclass(frozen=True, slots=True)
class Share:
    """Rows to make: those that READ_COMMITTED shows of a range of a partition."""

    source: str
    """Path of a file with the blocks, at their positions."""
    blocks: Sequence[IndexEntry]
    """The blocks of the range, in the order of offsets."""
    range: PartitionRange
    schema: str
    """The table's schema."""
    value: Part
    key: Part
    target: str
    """Path of the Parquet file to write."""
    codec: str = "zstd"
    careful: Sequence[tuple[int, int]] = ()
    """Offsets [start, end) whose records become rows one by one."""
    raw: Sequence[tuple[int, int]] = ()
    """Offsets [start, end) whose records are not decoded, because processes have ended over them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "source": self.source,
            "blocks": [list(each) for each in self.blocks],
            "range": self.range.to_json(),
            "schema": self.schema,
            "value": self.value.to_json(),
            "key": self.key.to_json(),
            "target": self.target,
            "codec": self.codec,
            "careful": [list(each) for each in self.careful],
            "raw": [list(each) for each in self.raw],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Share":
        """Return what `to_json` was given."""
        parts = {name: Part.from_json(found[name]) for name in ("value", "key")}
        blocks = [IndexEntry(*each) for each in found["blocks"]]
        wanted = PartitionRange.from_json(found["range"])
        ranges = {name: tuple(tuple(each) for each in found[name]) for name in ("careful", "raw")}
        return cls(**dict(found) | parts | ranges | {"blocks": blocks, "range": wanted})


@dataclass(slots=True)
class ShareReport:
    """Report of a file that was made."""

    rows: int = 0
    errors: int = 0
    """Rows with an error."""
    reasons: list[str] = field(default_factory=list)
    """Some of the errors, each once."""
    size_bytes: int = 0
    crc: int = 0
    """CRC32C of the file."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Statistics for the manifest that will name the file: see `metrics.file_metrics`."""


def _registry(found: Mapping[str, Any]) -> Registry | None:
    return None if found["registry"] is None else Registry(**found["registry"])


def _text(data: Any) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
