"""Avro's binary encoding, decoded into plain values for people.

Schemas and data are whatever producers chose, and they are decoded in the node's process: depth, number of items and
bytes are bounded, and nothing is called that a schema names. Logical types are shown as they are stored, bytes as hex.
The encoding is that of the Avro specification 1.12, "Binary Encoding"; names are resolved as in "Names".
"""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

DEPTH_MAX: Final = 100
ITEMS_MAX: Final = 100_000
"""Items of all arrays and maps of one value. They may have no bytes."""
VARINT_BYTES_MAX: Final = 10
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

_Node = tuple[str, Any]
"""Kind of a type, and what it is made of."""


class AvroError(Exception):
    """A schema or data is invalid, or too large. The text is the one line to show."""


class AvroSchema:
    """A schema that data can be decoded with."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Parse a schema, and those that it refers to, which come before it. Raises AvroError."""
        self._named: dict[str, _Node] = {}
        try:
            for each in references:
                self._parse(json.loads(each), "", 0)
            self._root = self._parse(json.loads(text), "", 0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AvroError(f"invalid schema: {type(error).__name__} {error}") from None

    def decode(self, data: bytes) -> Any:
        """Return the value of the data, which must be all of it. Raises AvroError."""
        reader = _Reader(data, self._named)
        value = reader.read(self._root, 0)
        if reader.position != len(data):
            raise AvroError(f"{len(data) - reader.position} bytes after the value")
        return value

    def _parse(self, schema: Any, namespace: str, depth: int) -> _Node:
        if depth > DEPTH_MAX:
            raise AvroError("the schema is nested too deeply")
        if isinstance(schema, str):
            return (schema, None) if schema in _PRIMITIVES else ("named", _full_name(schema, namespace))
        if isinstance(schema, list):
            return "union", [self._parse(each, namespace, depth + 1) for each in schema]
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._parse(kind, namespace, depth + 1)
        if kind == "array":
            return kind, self._parse(schema["items"], namespace, depth + 1)
        if kind == "map":
            return kind, self._parse(schema["values"], namespace, depth + 1)
        if kind not in {"record", "error", "enum", "fixed"}:
            return self._parse(kind, namespace, depth + 1)
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        if kind == "enum":
            node: _Node = kind, [str(each) for each in schema["symbols"]]
        elif kind == "fixed":
            node = kind, int(schema["size"])
        else:
            fields: list[tuple[str, _Node]] = []
            node = "record", fields
            self._named[name] = node  # a field may refer to it
            inside = name.rpartition(".")[0]
            fields += [(str(each["name"]), self._parse(each["type"], inside, depth + 1)) for each in schema["fields"]]
        self._named[name] = node
        return node


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Reader:
    """Reads one value."""

    def __init__(self, data: bytes, named: Mapping[str, _Node]) -> None:
        self.position = 0
        self._data = data
        self._named = named
        self._items = 0

    def read(self, node: _Node, depth: int) -> Any:
        kind, inner = node
        if depth > DEPTH_MAX:
            raise AvroError("the value is nested too deeply")
        if kind == "named":
            if inner not in self._named:
                raise AvroError(f"the schema has no type {inner!r}")
            return self.read(self._named[inner], depth + 1)
        if kind == "record":
            return {name: self.read(each, depth + 1) for name, each in inner}
        if kind == "union":
            return self.read(inner[self._index(len(inner))], depth + 1)
        if kind == "enum":
            return inner[self._index(len(inner))]
        if kind == "array":
            return [self.read(inner, depth + 1) for _ in self._each_item()]
        if kind == "map":
            return {self._text(): self.read(inner, depth + 1) for _ in self._each_item()}
        return self._primitive(kind, inner)

    def _primitive(self, kind: str, size: Any) -> Any:
        if kind == "null":
            return None
        if kind == "boolean":
            return self._take(1) != b"\0"
        if kind in {"int", "long"}:
            return self._long()
        if kind == "float":
            return _FLOAT.unpack(self._take(4))[0]
        if kind == "double":
            return _DOUBLE.unpack(self._take(8))[0]
        if kind == "string":
            return self._text()
        return self._take(size if kind == "fixed" else self._long()).hex()

    def _each_item(self) -> Iterable[None]:
        """Yield once for each item of an array or a map, which comes in blocks."""
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # size of the block
            self._items += count
            if self._items > ITEMS_MAX:
                raise AvroError(f"more than {ITEMS_MAX} items")
            for _ in range(count):
                yield None

    def _index(self, count: int) -> int:
        found = self._long()
        if not 0 <= found < count:
            raise AvroError(f"index {found} at byte {self.position}, of {count}")
        return found

    def _long(self) -> int:
        value = 0
        for at in range(VARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
        raise AvroError(f"a number at byte {self.position} is too long")

    def _text(self) -> str:
        return self._take(self._long()).decode(errors="replace")

    def _take(self, size: int) -> bytes:
        begin, self.position = self.position, self.position + size
        if not 0 <= size <= len(self._data) - begin:
            raise AvroError(f"{size} bytes at byte {begin}, of {len(self._data)}")
        return self._data[begin : self.position]
