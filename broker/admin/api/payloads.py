"""Keys, values and headers of records as text for people: JSON, text or hex."""

import json
from typing import Annotated, Final, Literal

from pydantic import Field

from broker.admin.api.endpoints import Model

PAYLOAD_BYTES_MAX: Final = 16 << 10
"""Bytes of a key or value that are shown."""
_SCHEMA_HEADER_BYTES: Final = 5

Decode = Literal["auto", "text", "json", "avro", "protobuf", "hex"]


class SchemaId(Model):
    """Schema of a payload, by its id in a schema registry."""

    id: int


class Payload(Model):
    """A key, a value, or the value of a header."""

    format: Literal["text", "json", "hex"]
    text: str
    size: int
    truncated: bool
    schema_: Annotated[SchemaId | None, Field(alias="schema")] = None
    error: str | None = None
    """Reason why it is not shown in the format that was asked for."""


def decode_payload(data: bytes | None, decode: Decode) -> Payload | None:
    """Return a payload as text; None for null."""
    if data is None:
        return None
    size, truncated = len(data), len(data) > PAYLOAD_BYTES_MAX
    shown = data[:PAYLOAD_BYTES_MAX]
    schema = _schema_of(data)
    error = None
    if decode in {"avro", "protobuf"} or (decode == "auto" and schema is not None):
        error = f"{'the payload' if decode == 'auto' else decode} cannot be decoded: there is no schema registry"
    elif decode != "hex":
        text = _text(shown, truncated=truncated)
        if text is None:
            error = None if decode == "auto" else "the payload is not UTF-8"
        elif decode in {"auto", "json"} and not truncated and _is_json(text):
            return Payload(format="json", text=text, size=size, truncated=False)
        elif decode == "json":
            error = "the payload is too large for JSON" if truncated else "the payload is not JSON"
            return Payload(format="text", text=text, size=size, truncated=truncated, error=error)
        else:
            return Payload(format="text", text=text, size=size, truncated=truncated)
    return Payload(format="hex", text=shown.hex(), size=size, truncated=truncated, schema_=schema, error=error)


def _schema_of(data: bytes) -> SchemaId | None:
    """Return the schema that Confluent's header names: a zero byte, and an id of four bytes."""
    if len(data) <= _SCHEMA_HEADER_BYTES or data[0] != 0:
        return None
    return SchemaId(id=int.from_bytes(data[1:_SCHEMA_HEADER_BYTES], "big"))


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
