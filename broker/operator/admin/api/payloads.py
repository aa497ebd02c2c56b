"""Keys, values and headers of records as text for people: JSON, text, integers, UUIDs, hex.

Avro and protobuf are shown as JSON with a schema registry.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Field

from anabranch.broker.operator.admin.api.decoder import DecodeError, DecoderStopped, SchemaDecoder, SchemaSource
from anabranch.broker.operator.admin.api.endpoints import Model
from anabranch.broker.operator.admin.api.schemas import Schema
from anabranch.tables.registry import HEADER_BYTES, schema_id_of

PAYLOAD_BYTES_MAX: Final = 16 << 10
"""Bytes, or characters, of a key or value that are shown."""
DECODED_BYTES_MAX: Final = 1 << 20
"""Bytes of a payload that is decoded with a schema."""
DECODING_S: Final = 2.0
"""CPU time for the payloads of one scan that are decoded with schemas."""
UUID_BYTES: Final = 16
INTEGER_BYTES: Final = (1, 2, 4, 8)
"""Sizes of payloads that are integers, big-endian and signed, as Kafka's serialisers write them."""

Decode = Literal["auto", "text", "json", "avro", "protobuf", "hex", "int", "uuid"]


class SchemaId(Model):
    """Schema of a payload, by its id in a schema registry."""

    id: int


class Payload(Model):
    """A key, a value, or the value of a header."""

    format: Literal["text", "json", "avro", "protobuf", "hex", "int", "uuid"]
    text: str
    size: int
    truncated: bool
    schema_: Annotated[SchemaId | None, Field(alias="schema")] = None
    error: str | None = None
    """Reason why it is not shown in the format that was asked for."""


class PayloadDecoder:
    """Shows the payloads of a scan in a format, with the schemas that are known. Used in one thread at a time."""

    def __init__(
        self, decode: Decode, decode_key: Decode, schemas: Mapping[int, Schema] | None, decoder: SchemaDecoder
    ) -> None:
        """Show payloads as asked; `schemas` by id, None: there is no registry."""
        self._decode: Decode = decode
        self._decode_key: Decode = decode_key
        self._schemas = schemas
        self._decoder = decoder
        self._seconds_left = DECODING_S
        self.unknown: set[int] = set()
        """Ids of schemas that were needed and are not known: load them, and decode again."""

    def show(self, data: bytes | None) -> Payload | None:
        """Return a value as text; None for null."""
        return None if data is None else self._shown(data, self._decode)

    def show_key(self, data: bytes | None) -> Payload | None:
        """Return a key as text; None for null. One that is no text may be an integer or a UUID, by its size."""
        if data is None:
            return None
        if self._decode_key == "auto" and _text(data, truncated=False) is None:
            if len(data) == UUID_BYTES and _is_uuid(data):
                return show_plainly(data, "uuid")
            # Ids of schemas begin at 1, so eight bytes that begin with five zeros are an integer, whoever asks.
            if len(data) == 4 or (len(data) == 8 and (self._schemas is None or not schema_id_of(data))):
                return show_plainly(data, "int")
        return self._shown(data, self._decode_key)

    def document(self, data: bytes) -> Any:
        """Return the JSON document that a value is, as it is shown, but whole; None if it is none."""
        text: bytes | str = data
        if schema_id_of(data) is not None:
            shown = self._shown(data, "auto")
            text = "" if shown.format == "hex" or shown.truncated else shown.text
        if len(text) > DECODED_BYTES_MAX:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def _shown(self, data: bytes, decode: Decode) -> Payload:
        schema_id = schema_id_of(data)
        if decode in {"avro", "protobuf"} and schema_id is None:
            return _as_hex(data, f"{decode} cannot be decoded: there is no header with the id of a schema")
        if decode in {"auto", "avro", "protobuf"} and schema_id is not None:
            return self._with_schema(data, schema_id)
        return show_plainly(data, decode)

    def _with_schema(self, data: bytes, schema_id: int) -> Payload:
        if self._schemas is None:
            return _as_hex(
                data, "there is no schema registry: nothing is in the cluster's, and none is configured", schema_id
            )
        schema = self._schemas.get(schema_id)
        if schema is None:
            self.unknown.add(schema_id)
            return _as_hex(data, f"schema {schema_id} is not known yet: try again", schema_id)
        if schema.failure:
            return _as_hex(data, schema.failure, schema_id)
        body, source = data[HEADER_BYTES:], schema.source
        try:
            shown = show_plainly(body, "json") if source is None else self._decoded(body, schema_id, source)
        except DecodeError as error:
            return _as_hex(data, f"schema {schema_id}: {error}", schema_id)
        return shown.model_copy(update={"size": len(data), "schema_": SchemaId(id=schema_id)})

    def _decoded(self, body: bytes, schema_id: int, source: SchemaSource) -> Payload:
        """Return a payload without its header as its schema says. Raises DecodeError."""
        if len(body) > DECODED_BYTES_MAX:
            raise DecodeError(f"a payload of more than {DECODED_BYTES_MAX} bytes is not decoded")
        if self._seconds_left <= 0:
            raise DecodeError("not decoded, as earlier payloads took too long: ask for fewer records")
        begun_s = self._decoder.cpu_s
        try:
            text, is_cut = self._decoder.decode(schema_id, source, body)
        except DecoderStopped:
            self._seconds_left = 0
            raise
        finally:
            self._seconds_left -= self._decoder.cpu_s - begun_s
        kind: Literal["avro", "protobuf"] = "avro" if source.kind == "AVRO" else "protobuf"
        return Payload(format=kind, text=text, size=len(body), truncated=is_cut)


def show_plainly(data: bytes, decode: Decode) -> Payload:
    """Return a payload as text, without a schema."""
    if decode in {"int", "uuid"}:
        return _as_int(data) if decode == "int" else _as_uuid(data)
    size, truncated = len(data), len(data) > PAYLOAD_BYTES_MAX
    text = None if decode == "hex" else _text(data[:PAYLOAD_BYTES_MAX], truncated=truncated)
    if text is None:
        return _as_hex(data, None if decode in {"auto", "hex"} else "the payload is not UTF-8")
    if decode in {"auto", "json"} and not truncated and _is_json(text):
        return Payload(format="json", text=text, size=size, truncated=False)
    error = None
    if decode == "json":
        error = "the payload is too large for JSON" if truncated else "the payload is not JSON"
    return Payload(format="text", text=text, size=size, truncated=truncated, error=error)


def _as_int(data: bytes) -> Payload:
    if len(data) not in INTEGER_BYTES:
        return _as_hex(data, "an integer has 1, 2, 4 or 8 bytes")
    return Payload(format="int", text=str(int.from_bytes(data, "big", signed=True)), size=len(data), truncated=False)


def _as_uuid(data: bytes) -> Payload:
    if len(data) != UUID_BYTES:
        return _as_hex(data, "a UUID has 16 bytes")
    return Payload(format="uuid", text=str(UUID(bytes=data)), size=len(data), truncated=False)


def _is_uuid(data: bytes) -> bool:
    """Return whether 16 bytes have the variant and a version of RFC 9562."""
    found = UUID(bytes=data)
    return found.version is not None and 1 <= found.version <= 8


def _as_hex(data: bytes, error: str | None, schema_id: int | None = None) -> Payload:
    return Payload(
        format="hex",
        text=data[:PAYLOAD_BYTES_MAX].hex(),
        size=len(data),
        truncated=len(data) > PAYLOAD_BYTES_MAX,
        schema_=None if schema_id is None else SchemaId(id=schema_id),
        error=error,
    )


def _text(data: bytes, *, truncated: bool) -> str | None:
    """Return UTF-8 text without control characters; a cut may leave the beginning of a character at the end."""
    for cut in range(4 if truncated else 1):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if any(each < " " and each not in "\t\n\r" for each in text) else text
    return None


def _is_json(text: str) -> bool:
    if text[:1] not in set('{["-0123456789tfn \t\r\n') or not text:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
