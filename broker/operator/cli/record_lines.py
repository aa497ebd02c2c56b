r"""Records as lines: what `consume` prints and `produce` reads. Pure.

The JSON form has one object a line, and what `consume` prints `produce` reads:

    {"topic": "t", "partition": 0, "offset": 5, "timestamp": 1764057600000, "timestamp_type": "create",
     "key": "k1", "value": "hello", "headers": [{"name": "trace", "value": "7"}]}

A key, a value or a header that is not UTF-8 is an object `{"base64": "..."}`, and null is null. The name of a header
may be such an object as well, but librdkafka cannot send it again. `produce` also takes any other object and lists as
values, and writes them as JSON.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from anabranch.protocol.records import header_name_bytes
from anabranch.times import time_text

Headers = Sequence[tuple[str, bytes | None]]
FORMATS: Final = ("text", "json", "raw", "hex")
TEMPLATE: Final = (
    "%t topic, %p partition, %o offset, %k key, %v value, %T time in ms, %d time, %h headers, %K and %S sizes of key "
    "and value, %%, \\n, \\t"
)
"""Placeholders of a template."""
TIMESTAMP_TYPES: Final = {1: "create", 2: "append"}
"""Names of librdkafka's types of timestamps."""
_TO_JSON: Final = json.JSONEncoder(ensure_ascii=False).encode
_HEADERS_OF_JSON: Final = frozenset({"name", "value"})
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)|%(.?)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0"}


class BadLine(ValueError):
    """An invalid line or format. The text is the reason."""


class ReadRecord(NamedTuple):
    """A record that was read from a topic: a tuple, since many are made."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    delivery_count: int | None = None
    """Number of deliveries to members of a share group, this one included; None without such a group."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write. `timestamp_ms` None: now; `partition` None: by the key."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


Writer = Callable[[ReadRecord], bytes]
Reader = Callable[[bytes], NewRecord]


def make_writer(form: str, *, names_topics: bool = False, json_values: bool = False) -> Writer:
    """Return what writes records in a format, each with its line end. Raises BadLine.

    `names_topics`: lines for people name the topic, too. `json_values`: values that are objects or lists of JSON are
    written as such into lines of JSON.
    """
    if "%" in form:
        return _template(form)
    known: Mapping[str, Writer] = {
        "text": partial(_line, shown=visible, names_topics=names_topics),
        "json": partial(_as_json, value_text=_embedded_json if json_values else _json_text),
        "raw": _as_raw,
        "hex": partial(_line, shown=bytes.hex, names_topics=names_topics),
    }
    if form not in known:
        raise BadLine(f"expected {', '.join(FORMATS)}, or a template such as '%t %p %o %k %v\\n'; found {form!r}")
    return known[form]


def visible(data: bytes) -> str:
    """Return bytes as text in which nothing can control a terminal."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _line(record: ReadRecord, *, shown: Callable[[bytes], str], names_topics: bool) -> bytes:
    place = f"{record.topic}-{record.partition}" if names_topics else str(record.partition)
    parts = [f"{place}:{record.offset}", time_text(record.timestamp_ms)]
    if record.delivery_count is not None:
        parts.append(f"delivery={record.delivery_count}")
    if record.key is not None:
        parts.append(f"key={shown(record.key)}")
    for name, value in record.headers:
        parts.append(f"[{visible(header_name_bytes(name))}={'null' if value is None else shown(value)}]")
    parts.append("(tombstone)" if record.value is None else shown(record.value))
    return ("  ".join(parts) + "\n").encode()


def _as_raw(record: ReadRecord) -> bytes:
    return (record.value or b"") + b"\n"


def _as_json(record: ReadRecord, *, value_text: Callable[[bytes | None], str]) -> bytes:
    headers = [
        {"name": _json_bytes(header_name_bytes(name)), "value": _json_bytes(value)} for name, value in record.headers
    ]
    # Written piece by piece, because many are: an encoder of whole objects takes twice as long.
    deliveries = "" if record.delivery_count is None else f', "delivery_count": {record.delivery_count}'
    line = (
        f'{{"topic": {_TO_JSON(record.topic)}, "partition": {record.partition}, "offset": {record.offset}, '
        f'"timestamp": {record.timestamp_ms}, "timestamp_type": {_TO_JSON(record.timestamp_type)}, '
        f'"key": {_json_text(record.key)}, "value": {value_text(record.value)}, '
        f'"headers": {_TO_JSON(headers) if headers else "[]"}{deliveries}}}\n'
    )
    return line.encode()


def _json_text(data: bytes | None) -> str:
    return _TO_JSON(_json_bytes(data))


def _embedded_json(data: bytes | None) -> str:
    """Return an object or a list of JSON as it is, and any other value as a text."""
    found = _json_bytes(data)
    if isinstance(found, str) and found.lstrip()[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):
            json.loads(found, parse_constant=_refuse)
            return found.replace("\n", " ").replace("\r", " ")  # outside of its texts, which cannot have them
    return _TO_JSON(found)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _template(form: str) -> Writer:
    fields: Mapping[str, Writer] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: record.key or b"",
        "v": lambda record: record.value or b"",
        "s": lambda record: record.value or b"",  # kcat's name of the value
        "T": lambda record: b"%d" % record.timestamp_ms,
        "d": lambda record: time_text(record.timestamp_ms).encode(),
        "h": lambda record: b",".join(
            header_name_bytes(name) + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
        ),
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    }
    parts: list[bytes | Writer] = []
    end = 0
    for found in _ESCAPE.finditer(form):
        parts.append(form[end : found.start()].encode())
        end = found.end()
        if found[1] is not None:
            parts.append(_escaped(found[1]))
        elif found[2] == "%":
            parts.append(b"%")
        elif found[2] in fields:
            parts.append(fields[found[2]])
        else:
            raise BadLine(f"unknown %{found[2]} in the format; known are {TEMPLATE}")
    parts.append(form[end:].encode())
    return lambda record: b"".join(each if isinstance(each, bytes) else each(record) for each in parts)


def _escaped(code: str) -> bytes:
    if code[0] == "x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code).encode()


def make_reader(form: str, key_separator: bytes | None) -> Reader:
    """Return a function that parses a line, without its end, into a record. Both raise BadLine."""
    if form == "json":
        return _from_json
    convert = bytes if form == "text" else _from_hex

    def read(line: bytes) -> NewRecord:
        if key_separator is None:
            return NewRecord(None, convert(line))
        key, found, value = line.partition(key_separator)
        if not found:
            raise BadLine(f"no key separator {key_separator.decode(errors='replace')!r}")
        return NewRecord(convert(key), convert(value))

    return read


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise BadLine("expected hexadecimal digits") from None


def _from_json(line: bytes) -> NewRecord:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(found, dict) or "value" not in found:
        raise BadLine('expected an object with "value", as `consume --format json` prints')
    timestamp, partition = found.get("timestamp"), found.get("partition")
    for name, number in (("timestamp", timestamp), ("partition", partition)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise BadLine(f'"{name}" must be a whole number')
    headers = found.get("headers") or []
    if not isinstance(headers, list):
        raise BadLine('"headers" must be a list')
    return NewRecord(
        key=_bytes_of("key", found.get("key")),
        value=_value_of(found["value"]),
        headers=[_header_of(each) for each in headers],
        # -1 says that the record had none.
        timestamp_ms=timestamp if timestamp is not None and timestamp >= 0 else None,
        partition=partition,
    )


def _header_of(found: Any) -> tuple[str, bytes | None]:
    if not isinstance(found, dict) or not _HEADERS_OF_JSON.issuperset(found) or not isinstance(found.get("name"), str):
        raise BadLine('each header must be an object with "name" and "value"')
    return found["name"], _bytes_of("header", found.get("value"))


def _value_of(found: Any) -> bytes | None:
    """Return a value; objects and lists are written as JSON, unless it is one of base64."""
    if isinstance(found, list) or (isinstance(found, dict) and set(found) != {"base64"}):
        found = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return _bytes_of("value", found)


def _bytes_of(name: str, found: Any) -> bytes | None:
    if found is None:
        return None
    if isinstance(found, str):
        try:
            return found.encode()
        except UnicodeEncodeError:
            raise BadLine(f'"{name}" has half of a surrogate pair') from None
    if isinstance(found, dict) and set(found) == {"base64"} and isinstance(found["base64"], str):
        try:
            return base64.b64decode(found["base64"], validate=True)
        except binascii.Error:
            raise BadLine(f'"{name}" is not base64') from None
    raise BadLine(f'"{name}" must be a text, null or {{"base64": "..."}}')
