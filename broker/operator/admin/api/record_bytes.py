"""One record, whole and as it is stored: for a download, and to produce it again."""

from base64 import b64encode
from http import HTTPStatus
from typing import Final

from anabranch.broker.api.handlers.local import User
from anabranch.broker.operator.admin.api.endpoints import ApiError, Model
from anabranch.broker.operator.admin.api.produce import NewHeader
from anabranch.broker.operator.admin.api.record_scan import RecordReader, batches_of, body_of
from anabranch.protocol.records import Record, records_of

WHOLE_BYTES_MAX: Final = 4 << 20
"""Bytes of a record that is shown whole."""


class WholeRecord(Model):
    """A record whose key, value and values of headers are in base64."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: list[NewHeader]


async def read_whole(reader: RecordReader, topic: str, index: int, offset: int, user: User) -> WholeRecord:
    """Return the record at an offset. Raises ApiError, and as `RecordReader.fetch`."""
    batches, _ = batches_of(await reader.fetch(topic, index, offset, 1, user))

    def find() -> WholeRecord | None:
        for header, data in batches:
            if header.base_offset <= offset < header.next_offset and not header.is_control:
                found = (each for each in records_of(header, body_of(header, data)) if each.offset == offset)
                return next((_whole(index, each) for each in found), None)
        return None

    record = await reader.run_in_thread(find)
    if record is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"partition {index} of topic {topic} has no record at offset {offset}")
    return record


def _whole(index: int, record: Record) -> WholeRecord:
    sizes = [len(part or b"") for part in (record.key, record.value, *(value for _, value in record.headers))]
    if sum(sizes) > WHOLE_BYTES_MAX:
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the record has more than {WHOLE_BYTES_MAX} bytes")
    if any(not name.isprintable() for name, _ in record.headers):
        raise ApiError(HTTPStatus.CONFLICT, "the name of a header is no text")
    return WholeRecord(
        partition=index,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=_base64(record.key),
        value=_base64(record.value),
        headers=[NewHeader.model_construct(name=name, value=_base64(value)) for name, value in record.headers],
    )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
