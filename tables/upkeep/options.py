"""Configs of a topic that is a table, by their names, and what they ask for."""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from anabranch.s3stream.catalog.table_values import TableRetention
from anabranch.tables.framing import CONFLUENTS, Framing
from anabranch.tables.requests import Asked, Registry

Format = Literal["raw", "json", "avro", "protobuf", "auto"]
Codec = Literal["zstd", "lz4", "snappy", "gzip", "none"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
RETENTIONS: Final[Mapping[str, TableRetention]] = {"topic": TableRetention.TOPIC, "keep": TableRetention.KEEP}
CODECS: Final[tuple[str, ...]] = get_args(Codec)
FRAMINGS: Final = tuple(map(str, Framing))
ENABLE: Final = "table.enable"
COMMIT_INTERVAL_MS: Final = "table.commit.interval.ms"
COMPRESSION_TYPE: Final = "table.compression.type"
TARGET_FILE_BYTES: Final = "table.target.file.bytes"
SNAPSHOT_RETENTION_MS: Final = "table.snapshot.retention.ms"
RETENTION: Final = "table.retention"
PUBLISH: Final = "table.publish"
PUBLISHED_RETENTION_MS_MIN: Final = 3_600_000
"""Shortest time for which snapshots of a published table stay: readers of the other catalog may be behind."""
DEFAULTS: Final[Mapping[str, str]] = {
    ENABLE: "false",
    "table.value": "raw",
    "table.value.schema": "",
    "table.value.subject": "",
    "table.value.message": "",
    "table.value.encodings": "",
    "table.value.framing": "",
    "table.key": "raw",
    "table.key.schema": "",
    "table.key.subject": "",
    "table.key.message": "",
    "table.key.encodings": "",
    "table.key.framing": "",
    COMMIT_INTERVAL_MS: "60000",
    COMPRESSION_TYPE: "zstd",
    TARGET_FILE_BYTES: "268435456",
    SNAPSHOT_RETENTION_MS: "86400000",
    RETENTION: "topic",
    PUBLISH: "",
}
"""Names of all configs of tables, and their defaults."""


@dataclass(frozen=True, slots=True)
class PartOptions:
    """Configs of a topic's keys or values."""

    format: Format = "raw"
    schema: str = ""
    """Text of a schema file: JSON Schema or `.avsc`; protobuf: a descriptor set in base64. Empty: the registry's."""
    subject: str = ""
    """Subject in the registry; empty: that of TopicNameStrategy."""
    message: str = ""
    """protobuf: full name of the message; empty: the first one."""
    encodings: str = ""
    """json: an object of JSON with the encodings of some fields, by path; empty: none."""
    framing: str = ""
    """Name of a `Framing`: place of the id of a record's schema. Empty: Confluent's with a registry, else none."""

    @classmethod
    def parse(cls, prefix: str, value: Callable[[str], str]) -> "PartOptions":
        """Return the options with the names `prefix`, `prefix.schema`, ... Raises ValueError, with the reason."""
        found = value(prefix)
        if found not in FORMATS:
            raise ValueError(f"{prefix}={found}: expected one of {', '.join(FORMATS)}")
        names = ("schema", "subject", "message", "encodings", "framing")
        options = cls(cast("Format", found), *(value(f"{prefix}.{name}") for name in names))
        if options.schema and found in {"raw", "auto"}:
            raise ValueError(f"{prefix}.schema: set, but {prefix}={found} uses none: name the format of the schema")
        try:
            options.schema_bytes()
        except binascii.Error as error:
            raise ValueError(f"{prefix}.schema: expected a descriptor set in base64: {error}") from None
        if options.encodings and not (found == "json" and (options.schema or options.subject)):
            raise ValueError(f"{prefix}.encodings: set, but only JSON with a schema has encodings")
        try:
            options.encodings_by_path()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{prefix}.encodings: {error}") from None
        if (problem := options._problem_of_framing()) is not None:
            raise ValueError(f"{prefix}.framing={options.framing}: {problem}")
        return options

    def _problem_of_framing(self) -> str | None:
        """Return why the framing cannot be used; None: it can."""
        if not self.framing:
            return None
        if self.framing not in FRAMINGS:
            return f"expected one of {', '.join(FRAMINGS)}"
        if self.format == "raw" or (self.format == "json" and not (self.schema or self.subject)):
            return "set, but there is no schema"
        if self.format == "protobuf" and self.framing not in CONFLUENTS:
            return "messages of protobuf are found by Confluent's headers only"
        if self.framing == Framing.GLUE and not self.schema:
            return "the registry of Glue is not asked: set the schema"
        return None

    def schema_bytes(self) -> bytes | None:
        """Return the contents of the schema file; None: there is none. Raises binascii.Error."""
        if not self.schema:
            return None
        return base64.b64decode(self.schema, validate=True) if self.format == "protobuf" else self.schema.encode()

    def encodings_by_path(self) -> Mapping[str, str]:
        """Return the encodings of fields. Raises ValueError, with the reason."""
        found = json.loads(self.encodings) if self.encodings else {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            raise ValueError('expected an object with a text for each field, such as {"at": "milliseconds"}')
        return found

    def asked(self, default_subject: str, registry: Registry | None) -> Asked:
        """Return what a worker is asked for. JSON is looked up in the registry only if a subject is named."""
        is_registered = self.format in {"avro", "protobuf", "auto"} or (self.format == "json" and self.subject)
        return Asked(
            self.format,
            self.schema_bytes(),
            registry if is_registered and not self.schema else None,
            self.subject or default_subject,
            self.message or None,
            self.encodings_by_path(),
            Framing(self.framing) if self.framing else None,
        )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The configs of a topic that is a table, parsed."""

    value: PartOptions
    key: PartOptions
    commit_interval_ms: int
    """Longest time that a committed record waits for its snapshot."""
    target_file_bytes: int
    """Size of the data files that joins lead to."""
    snapshot_retention_ms: int
    """Time for which a snapshot stays after another one has replaced it."""
    retention: TableRetention
    codec: Codec = "zstd"
    """Compression of new data files."""
    publish: str = ""
    """Name of the catalog of the node's settings that shows the table, too; empty: none."""

    @classmethod
    def parse(cls, value: Callable[[str], str]) -> "TableOptions | None":
        """Return the options of a topic, given the values of its configs by name; None: it is no table.

        Raises ValueError, with the config's name and the reason.
        """
        if value(ENABLE).strip().lower() != "true":
            return None
        retention = value(RETENTION)
        if retention not in RETENTIONS:
            raise ValueError(f"{RETENTION}={retention}: expected one of {', '.join(RETENTIONS)}")
        codec = value(COMPRESSION_TYPE)
        if codec not in CODECS:
            raise ValueError(f"{COMPRESSION_TYPE}={codec}: expected one of {', '.join(CODECS)}")
        publish, snapshot_retention_ms = value(PUBLISH), int(value(SNAPSHOT_RETENTION_MS))
        if publish and snapshot_retention_ms < PUBLISHED_RETENTION_MS_MIN:
            raise ValueError(
                f"{SNAPSHOT_RETENTION_MS}={snapshot_retention_ms}: expected at least {PUBLISHED_RETENTION_MS_MIN} with "
                f"{PUBLISH}, since readers of {publish} may be behind"
            )
        return cls(
            PartOptions.parse("table.value", value),
            PartOptions.parse("table.key", value),
            int(value(COMMIT_INTERVAL_MS)),
            int(value(TARGET_FILE_BYTES)),
            snapshot_retention_ms,
            RETENTIONS[retention],
            cast("Codec", codec),
            publish,
        )
