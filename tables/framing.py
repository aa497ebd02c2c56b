"""Framing of values: the id of a value's schema is in bytes before it, or in a header of the record.

| framing | bytes before the value | header of the record |
|---|---|---|
| `confluent` | 0, id in 4 bytes (big-endian, as all of them) | |
| `confluent-header` | as above, if the header is missing | `__value_schema_id`: 1, GUID in 16 bytes; or 0, id in 4 |
| `apicurio-8-byte` | 0, id in 8 bytes | |
| `apicurio-header` | | `apicurio.value.contentId` or `apicurio.value.globalId`: 8 bytes |
| `glue` | 3, compression (0: none, 5: zlib), UUID of the version in 16 bytes | |

For keys, the headers have `key` in the place of `value`. Apicurio's 4 bytes are those of `confluent`. Sources: the
serialisers of Confluent (`SchemaId`), Apicurio (`IdHandler`, `DefaultHeadersHandler`) and AWS Glue
(`AWSSchemaRegistryConstants`).
"""

import zlib
from enum import StrEnum
from typing import Final, Literal
from uuid import UUID

from anabranch.tables.errors import NotDecodableError
from anabranch.tables.registry import GLOBAL_ID, SchemaKey, split_header

UNFOLDED_BYTES_MAX: Final = 128 << 20
"""Limit of a value that Glue's serialiser has compressed."""
GLUE_VERSION, GLUE_PLAIN, GLUE_ZLIB = 3, 0, 5
GLUE_BYTES: Final = 18
GUID_BYTES: Final = 17
LONG_BYTES: Final = 8
GLOBAL, NO_ID = b"\2", b"\xff"
"""First bytes of what `header_ids` makes of a global id, and of a missing or broken one."""
RecordPart = Literal["key", "value"]


class Framing(StrEnum):
    """Place of the id of a schema."""

    NONE = "none"
    CONFLUENT = "confluent"
    CONFLUENT_HEADER = "confluent-header"
    APICURIO_8_BYTE = "apicurio-8-byte"
    APICURIO_HEADER = "apicurio-header"
    GLUE = "glue"

    @property
    def uses_headers(self) -> bool:
        """True if the id is in a header of the record: `unframe` takes what `header_ids.with_header_ids` returns."""
        return self in {Framing.CONFLUENT_HEADER, Framing.APICURIO_HEADER}

    def unframe(self, value: bytes) -> tuple[SchemaKey, bytes]:
        """Return the key of the schema and the value itself. Raises NotDecodableError."""
        match self:
            case Framing.CONFLUENT:
                return split_header(value)
            case Framing.CONFLUENT_HEADER:
                if value[:1] == b"\1" and len(value) >= GUID_BYTES:
                    return str(UUID(bytes=value[1:GUID_BYTES])), value[GUID_BYTES:]
                if value[:1] != NO_ID:
                    return split_header(value)
            case Framing.APICURIO_8_BYTE | Framing.APICURIO_HEADER:
                number = int.from_bytes(value[1 : 1 + LONG_BYTES], "big")
                if value[:1] == b"\0" and len(value) > LONG_BYTES:
                    return number, value[1 + LONG_BYTES :]
                if value[:1] == GLOBAL and self is Framing.APICURIO_HEADER:
                    return f"{GLOBAL_ID}{number}", value[1 + LONG_BYTES :]
            case Framing.GLUE:
                if value[:1] == bytes([GLUE_VERSION]) and len(value) >= GLUE_BYTES:
                    key = str(UUID(bytes=value[2:GLUE_BYTES]))
                    return key, _unfolded(value[1], value[GLUE_BYTES:])
            case Framing.NONE:
                raise AssertionError("there is nothing to split")
        if value[:1] == NO_ID:
            found = f", but {value[1:20].hex()!r}" if len(value) > 1 else ""
            raise NotDecodableError(f"no schema id in the headers of {self}{found}")
        raise NotDecodableError(f"no id of {self}: {len(value)} bytes that begin with {value[:5].hex()!r}")


CONFLUENTS: Final = (Framing.NONE, Framing.CONFLUENT, Framing.CONFLUENT_HEADER)
"""Those that values of protobuf may have: their messages are found by what Confluent's serialiser puts before them."""


def _unfolded(compression: int, body: bytes) -> bytes:
    if compression == GLUE_PLAIN:
        return body
    if compression != GLUE_ZLIB:
        raise NotDecodableError(f"unknown compression {compression} of glue")
    unfold = zlib.decompressobj()
    try:
        found = unfold.decompress(body, UNFOLDED_BYTES_MAX)
    except zlib.error as error:
        raise NotDecodableError(f"the value's compression is broken: {error}") from None
    if not unfold.eof or unfold.unused_data:
        reason = "is longer than it says" if unfold.eof else f"has no end within {UNFOLDED_BYTES_MAX >> 20} MiB"
        raise NotDecodableError(f"the value's compression is broken: it {reason}")
    return found
