"""Stores the schemas that a micro-batch is decoded with, before its first write.

A driver may die after the table's commit and before that of the dead letters, and the schema may be changed before the
micro-batch is repeated. So its dead letters are decided by the former schema: with the new one a record could be in
neither table, or in both.
"""

import base64
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from anabranch.spark.pipeline.decode import Decoding, RecordDecoder, RecordDecoding
from anabranch.spark.pipeline.files import HadoopFolder
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.tables.registry import RegisteredSchema

FOLDER = "anabranch-schemas"


@dataclass(slots=True)
class SchemaStore:
    """Schemas of the newest micro-batch, in a checkpoint, in any file system that Hadoop supports."""

    spark: SparkSession
    pipeline: PipelineSettings
    topic: str | None = None
    """With a table for each topic: the topic."""
    _stored: RecordDecoding | None = field(default=None, init=False)

    def write(self, decoding: RecordDecoding) -> None:
        """Store the schemas of a micro-batch, unless they are those of the one before it."""
        if self._stored is not None and _versions(self._stored) == _versions(decoding):
            return
        text = json.dumps({"settings": self._settings, "schemas": [_as_json(each) for each in _versions(decoding)]})
        if text != self._folder.read(self._name):
            self._folder.write(self._name, text)
        self._stored = decoding

    def former(self, decoder: RecordDecoder) -> RecordDecoding | None:
        """Return the decoding of the newest micro-batch; None if it is not known, or would not fit the settings."""
        try:
            found = json.loads(self._folder.read(self._name) or "{}")
        except ValueError:  # a driver died while it wrote, and so before the table's commit
            return None
        if found.get("settings") != self._settings:
            return None
        return decoder.of(*map(_from_json, found["schemas"]))

    @property
    def _settings(self) -> list[str]:
        """Return the settings that a schema must fit."""
        table, decoded = self.pipeline.table, (self.pipeline.key, self.pipeline.decode)
        found = [table.mode, table.event_time, *(part for each in decoded for part in (each.format, each.message))]
        found += [str(each.encodings) for each in decoded if each.encodings]
        found += [str(each.schemas) for each in decoded if each.schemas]
        if self.pipeline.columns.model_fields_set:
            found.append(self.pipeline.columns.model_dump_json())
        return list(map(str, found))

    @property
    def _name(self) -> str:
        return self.topic or "schemas"

    @property
    def _folder(self) -> HadoopFolder:
        return HadoopFolder(self.spark, f"{self.pipeline.checkpoint.rstrip('/')}/{FOLDER}")


def _versions(decoding: RecordDecoding) -> list[Any]:
    return [_version(decoding.key), _version(decoding.value)]


def _version(decoding: Decoding | None) -> RegisteredSchema | bytes | None:
    return None if decoding is None else decoding.version


def _as_json(version: RegisteredSchema | bytes | None) -> Any:
    if isinstance(version, RegisteredSchema):
        return asdict(version)
    return None if version is None else base64.b64encode(version).decode()


def _from_json(version: Any) -> RegisteredSchema | bytes | None:
    if isinstance(version, dict):
        return RegisteredSchema(**version | {"references": tuple((name, text) for name, text in version["references"])})
    return None if version is None else base64.b64decode(version)
