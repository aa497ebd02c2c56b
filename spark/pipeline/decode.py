"""Decodes values and keys into columns.

Spark itself decodes text, and JSON that need not be strict; a vectorised Python function over Arrow columns decodes the
rest. All return the same struct: `data`, or an `error` that sends the record to the dead-letter table. Null has
neither.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StringType, StructField, StructType

from anabranch.spark.pipeline.arrow_values import arrow_type, decoded_type, nullable, spark_type
from anabranch.spark.pipeline.errors import SettingError, UnusableSchema
from anabranch.spark.pipeline.json_schema import check_json_type, parse_json_schema
from anabranch.spark.pipeline.schema_file import read_schema_file, read_schema_texts
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import node_registry
from anabranch.tables.connect_schema import ConnectSchema, parse_connect
from anabranch.tables.decoding import (
    NOT_UTF8,
    DecodeColumn,
    Decoder,
    avro_decoder,
    connect_json_decoder,
    json_decoder,
    protobuf_decoder,
    schema_text,
)
from anabranch.tables.encodings import EncodingError, find_encodings
from anabranch.tables.errors import NotDecodableError, RegistryError, SchemaError, UnknownSchemaError
from anabranch.tables.framing import Framing, RecordPart
from anabranch.tables.header_ids import with_header_ids
from anabranch.tables.json_values import check_zone, json_reader
from anabranch.tables.registry import HEADER_BYTES, RegisteredSchema, SchemaRegistry, WriterSchemas
from anabranch.tables.schema_files import SchemaFiles
from anabranch.tables.types import nullable as nullable_arrow

CORRUPT = "_corrupt_record"
NOT_OF_SCHEMA = "not JSON of this schema"
NODE_HINT = (
    "; it is the node's at the default admin port, since the file names neither a schema_file nor a registry: set "
    "registry if the port is another one or has TLS"
)


class Frame(NamedTuple):
    """Place of the ids of schemas, and the part of the record that they belong to."""

    framing: Framing
    part: RecordPart


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decoding of keys or values for one version of the schema."""

    schema: DataType
    """Type of `data`."""
    column: Callable[[Column], Column]
    """Turns the bytes into a struct of `data` and `error`."""
    version: RegisteredSchema | bytes
    """The schema: of the registry, or the contents of its file."""
    message: str | None = None
    """Protobuf: full name of the message."""
    reason: Callable[[Column, Column], Column] | None = None
    """Turns bytes and error of a dead letter into an error that names the field. Slow: for dead letters only."""


@dataclass(frozen=True, slots=True)
class RecordDecoding:
    """Decoding of both parts of a record; None leaves the bytes."""

    key: Decoding | None
    value: Decoding | None


class RecordDecoder:
    """Makes the decoding of a pipeline, again whenever the registry has a newer version.

    Constructor and `current` raise PipelineError.
    """

    def __init__(self, pipeline: PipelineSettings, environ: Mapping[str, str] = os.environ) -> None:
        def factory(name: str, section: DecodeSection, subject: str) -> DecoderFactory:
            hint = ""
            if section.uses_registry and section.registry is None:
                section = section.model_copy(update={"registry": node_registry(pipeline.source)})
                hint = NODE_HINT
            return DecoderFactory(name, section, subject, environ, hint)

        self._key = factory("key", pipeline.key, pipeline.subject_of("key"))
        self._value = factory("decode", pipeline.decode, pipeline.subject_of("value"))

    def current(self) -> RecordDecoding:
        """Return the decoding for the next micro-batch. Raises PipelineError."""
        return RecordDecoding(self._key.current(), self._value.current())

    def of(self, key: RegisteredSchema | bytes | None, value: RegisteredSchema | bytes | None) -> RecordDecoding:
        """Return the decoding with schemas that it was made with before; None leaves the bytes."""
        return RecordDecoding(self._key.of(key), self._value.of(value))


class DecoderFactory:
    """Makes the decoding of keys or values. Constructor and `current` raise PipelineError."""

    def __init__(
        self,
        section: str,
        settings: DecodeSection,
        subject: str,
        environ: Mapping[str, str] = os.environ,
        hint: str = "",
    ) -> None:
        """`hint` is the end of errors about the registry."""
        self._section = section
        self._settings = settings
        self._subject = subject
        self._part: RecordPart = "key" if section == "key" else "value"
        self._registry = open_registry(settings, section, environ)
        self._writers: WriterSchemas | None = self._registry
        if settings.schemas:
            self._writers = SchemaFiles(read_schema_texts(settings, section))
        self._hint = hint
        self._last: Decoding | None = None

    def current(self) -> Decoding | None:
        """Return the decoding for the next micro-batch; None if there is nothing to decode. Raises PipelineError."""
        settings, section = self._settings, self._section
        if settings.format == "none" or (self._last is not None and self._registry is None):
            return self._last
        try:
            schema = self._schema()
            if self._last is None or self._last.version != schema:
                # A version with further messages does not change which one it is.
                known = None if self._last is None else self._last.message
                self._last = make_decoding(settings, schema, self._writers, known, self._part)
        except RegistryError as error:
            if self._last is None:
                raise SettingError(f"{section}.registry", f"{error}{self._hint}") from error
            # The registry may be down for a while: continue with the known schema. Tasks look up unknown ones.
        except EncodingError as error:
            raise UnusableSchema(f"{section}.encodings.{error.path}", error.reason) from error
        except (SchemaError, UnknownSchemaError) as error:
            if settings.schema_file is not None:
                raise UnusableSchema(f"{section}.schema_file", f"{settings.schema_file}: {error}") from error
            raise UnusableSchema(f"{section}.registry", f"subject {self._subject}: {error}{self._hint}") from error
        return self._last

    def of(self, schema: RegisteredSchema | bytes | None) -> Decoding | None:
        """Return the decoding with a schema that it was made with before."""
        return None if schema is None else make_decoding(self._settings, schema, self._writers, part=self._part)

    def _schema(self) -> RegisteredSchema | bytes:
        if self._registry is not None:
            return self._registry.latest(self._subject, protobuf=self._settings.format == "protobuf")
        return read_schema_file(self._settings, self._section)


def open_registry(settings: DecodeSection, section: str, environ: Mapping[str, str]) -> SchemaRegistry | None:
    """Return the schema registry of a pipeline, if it has one. Raises PipelineError."""
    if settings.registry is None:
        return None
    name = settings.registry_credentials_env
    if name is not None and name not in environ:
        setting = f"{section}.registry_credentials_env"
        raise SettingError(setting, f"the environment has no {name}; set it to user:password")
    return SchemaRegistry(settings.registry, environ[name] if name else None)


def make_decoding(
    settings: DecodeSection,
    schema: RegisteredSchema | bytes,
    writers: WriterSchemas | None,
    known: str | None = None,
    part: RecordPart = "value",
) -> Decoding:
    """Return the decoding for a schema from the registry or a file. Raises SchemaError.

    `writers` has the schemas that records were written with; None: all were with this one. `known` is the message of an
    earlier version of the schema, which counts if the settings name none.
    """
    if settings.format == "text":
        return _by_text(schema, strict=settings.strict)
    frame = Frame(settings.framing, part)
    if settings.format == "avro":
        return _by_arrow(avro_decoder(schema, writers, framing=frame.framing), schema, frame)
    if settings.format == "protobuf":
        made = protobuf_decoder(schema, writers, framing=frame.framing, message=settings.message, known=known)
        return _by_arrow(made, schema, frame)
    text = schema_text(schema, "JSON")
    if (connect := parse_connect(text)) is not None:
        return _by_connect(connect, schema, frame)
    kind = parse_json_schema(text)
    if settings.strict:
        return _by_strict_json(kind, schema, frame, settings.encodings)
    return _by_lenient_json(kind, schema, has_header=frame.framing is Framing.CONFLUENT)


def _by_text(version: RegisteredSchema | bytes, *, strict: bool) -> Decoding:
    def column(value: Column) -> Column:
        text = value.cast("string")
        if not strict:
            return f.struct(f.make_valid_utf8(text).alias("data"), f.lit(None).cast("string").alias("error"))
        wrong = ~f.is_valid_utf8(text)
        return f.struct(f.when(~wrong, text).alias("data"), f.when(wrong, f.lit(NOT_UTF8)).alias("error"))

    return Decoding(StringType(), column, version)


def _by_connect(connect: ConnectSchema, version: RegisteredSchema | bytes, frame: Frame) -> Decoding:
    schema = spark_type(nullable_arrow(connect.kind))
    _ = connect.encodings  # which may be of no column

    def column(value: Column) -> Column:
        made = connect_json_decoder(connect, session_zone(), framing=frame.framing)
        return _vectorised_decoder(made.column, schema, frame)(value)

    return Decoding(schema, column, version)


def _by_strict_json(
    kind: StructType, version: RegisteredSchema | bytes, frame: Frame, encodings: Mapping[str, str]
) -> Decoding:
    check_json_type(kind)
    schema = spark_type(arrow_type(kind))
    find_encodings(encodings, arrow_type(schema))

    def column(value: Column) -> Column:
        made = json_decoder(arrow_type(schema), session_zone(), framing=frame.framing, encodings=encodings)
        return _vectorised_decoder(made.column, schema, frame)(value)

    return Decoding(schema, column, version)


def session_zone() -> str:
    """Return the zone of times without one. Raises SettingError if they cannot be decoded in it."""
    zone = SparkSession.active().conf.get("spark.sql.session.timeZone")
    assert zone is not None, "it has a default"
    try:
        check_zone(zone)
    except ValueError as error:
        raise SettingError(
            "spark.conf",
            f"times without a zone cannot be decoded in spark.sql.session.timeZone {zone!r} ({error}): name a "
            "region, such as Europe/Berlin, or UTC",
        ) from None
    return zone


def _by_lenient_json(kind: StructType, version: RegisteredSchema | bytes, *, has_header: bool) -> Decoding:
    schema = nullable(kind)
    assert isinstance(schema, StructType), "as it was"

    def column(value: Column) -> Column:
        with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
        text = _body_of(value, has_header=has_header).cast("string")
        parsed = f.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": CORRUPT})
        wrong = value.isNotNull() & (parsed.isNull() | parsed.getField(CORRUPT).isNotNull())
        data = f.when(value.isNotNull() & ~wrong, parsed.dropFields(CORRUPT))
        return f.struct(data.alias("data"), f.when(wrong, f.lit(NOT_OF_SCHEMA)).alias("error"))

    def reasons(texts: pa.Array, errors: pa.Array) -> pa.Array:
        read = json_reader(arrow_type(schema), "UTC")  # it cannot be pickled

        def reason_of(text: bytes | None, error: str | None) -> str | None:
            if error != NOT_OF_SCHEMA:
                return error
            try:
                read(text or b"")
            except NotDecodableError as reason:
                return str(reason)
            return error

        return pa.array(map(reason_of, texts.to_pylist(), errors.to_pylist()), pa.string())

    find_reasons = vectorised(reasons, StringType())
    return Decoding(
        schema,
        column,
        version,
        reason=lambda value, error: find_reasons(_body_of(value, has_header=has_header), error),
    )


def _body_of(value: Column, *, has_header: bool) -> Column:
    return f.substring(value, HEADER_BYTES + 1, 2**31 - 1) if has_header else value


def _by_arrow(decoder: Decoder, version: RegisteredSchema | bytes, frame: Frame) -> Decoding:
    schema = spark_type(decoder.kind)
    return Decoding(schema, _vectorised_decoder(decoder.column, schema, frame), version, decoder.message)


def _vectorised_decoder(decode: DecodeColumn, schema: StructType, frame: Frame) -> Callable[[Column], Column]:
    framing, part = frame
    if not framing.uses_headers:

        def decode_values(values: pa.Array) -> pa.Array:
            return decode(values)

        return vectorised(decode_values, decoded_type(schema))

    def decode_records(records: pa.Array) -> pa.Array:
        values, headers = records.flatten()
        return decode(with_header_ids(values, headers, framing, part))

    function = vectorised(decode_records, decoded_type(schema))
    return lambda value: function(f.struct(value, f.col("headers")))


def vectorised(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """Return a function of columns from one of Arrow columns, whose type hints have to say so."""
    made: Any = arrow_udf  # its type stubs do not cover functions with hints
    found: Callable[..., Column] = made(function, returnType=kind)
    return found
