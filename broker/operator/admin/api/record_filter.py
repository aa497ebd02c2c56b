"""The condition of records that are shown: text, key, header, a value in JSON, and time.

Most records of a search do not pass. A batch without the bytes that are looked for is passed over without decoding a
record of it.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from anabranch.broker.operator.admin.api.json_path import JsonCondition
from anabranch.broker.operator.admin.api.payloads import PayloadDecoder
from anabranch.protocol.batch import BatchHeader
from anabranch.protocol.records import Record, header_name_bytes

KEY_INTEGER_BYTES: Final = (4, 8)
"""Sizes of integers as keys: those of Kafka's IntegerSerializer and LongSerializer."""


class HeaderCondition(NamedTuple):
    """A header that a record has."""

    name: bytes
    value: bytes | None
    """The whole value; None: any."""

    def holds(self, record: Record) -> bool:
        """Return whether a record has the header."""
        return any(
            header_name_bytes(name) == self.name and self.value in {None, value} for name, value in record.headers
        )


class RecordFilter(NamedTuple):
    """Condition of records that are shown; what is None or empty applies to all."""

    contains: bytes = b""
    """Bytes that key, value, or name or value of a header contains."""
    keys: frozenset[bytes] | None = None
    """Whole keys, of which a record has one."""
    header: HeaderCondition | None = None
    json: JsonCondition | None = None
    """Condition of the value."""
    since_ms: int | None = None
    """Earliest timestamp."""

    def may_pass(self, header: BatchHeader, body: bytes) -> bool:
        """Return whether a record of a batch, whose decompressed records are given, may pass."""
        if self.since_ms is not None and header.max_timestamp < self.since_ms:
            return False
        if self.contains not in body or (self.header is not None and self.header.name not in body):
            return False
        return self.keys is None or any(key in body for key in self.keys)

    def passes(self, record: Record, decoder: PayloadDecoder) -> bool:
        """Return whether a record is shown."""
        if self.keys is not None and record.key not in self.keys:
            return False
        if self.since_ms is not None and record.timestamp_ms < self.since_ms:
            return False
        if self.contains and not any(self.contains in part for part in _parts(record)):
            return False
        if self.header is not None and not self.header.holds(record):
            return False
        return self.json is None or (record.value is not None and self.json.holds(decoder.document(record.value)))


def encodings_of_key(text: str) -> frozenset[bytes]:
    """Return the bytes that a key may have which is shown as this text: UTF-8, an integer, or a UUID."""
    found = {text.encode()}
    with suppress(ValueError, OverflowError):
        number = int(text)
        for size in KEY_INTEGER_BYTES:
            with suppress(OverflowError):
                found.add(number.to_bytes(size, "big", signed=True))
    with suppress(ValueError):
        found.add(UUID(text).bytes)
    return frozenset(found)


def parse_header(text: str) -> HeaderCondition:
    """Parse `name` or `name=value`."""
    name, has_value, value = text.partition("=")
    return HeaderCondition(name.encode(), value.encode() if has_value else None)


def _parts(record: Record) -> Iterable[bytes]:
    headers = (part for name, value in record.headers for part in (header_name_bytes(name), value))
    return (part for part in (record.key, record.value, *headers) if part is not None)
