"""Generates and compiles the decoder of a message type in a version.

The generated function takes (buffer, position, end) and returns (message, position after it). It trusts no input:
every length is checked against the remaining bytes before anything is allocated for it, and an array may not have more
elements than the remaining bytes could hold at the element's minimum size. So the memory of a message is bounded by
its frame. Objects may take 25 times the bytes of their encoding, so their number is limited as well (`ELEMENTS_MAX`,
`TAGS_MAX`): that bounds memory, and time on the event loop, in frames of any size. Reading past the end raises
`struct.error` in a run of fixed-size fields and IndexError at a single byte; `protocol.codec` turns both into
MalformedMessage.

Records are memoryviews of the buffer. Strings and bytes are copied, since they outlive the frame.
"""

from collections.abc import Callable
from struct import unpack_from
from typing import Any, NoReturn

from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.source import PythonSource, absent, literal, tagged, untagged
from anabranch.protocol.varint import read_uvarint
from anabranch.protocol.wire import Field, Kind, Schema, schema_of

Decoder = Callable[[memoryview, int, int], tuple[Any, int]]

STRING_BYTES_MAX = 32767
ELEMENTS_MAX = 250_000
"""Elements of all arrays of a message in total, without arrays of numbers. They take up to 300 bytes each."""

TAGS_MAX = 20
"""Tagged fields of one structure. Apache Kafka's have up to five."""


def bad_length(where: str, position: int, length: int) -> NoReturn:
    """Raise MalformedMessage for a length, count or size that is negative, or larger than what is left or allowed."""
    raise MalformedMessage(f"{where} before byte {position}: length {length} is not possible here")


def too_many(where: str, position: int) -> NoReturn:
    """Raise MalformedMessage for more than `ELEMENTS_MAX` elements."""
    raise MalformedMessage(f"{where} before byte {position}: more than {ELEMENTS_MAX} elements in one message")


def skip_tags(buffer: memoryview, position: int, end: int) -> int:
    """Skip unknown tagged fields (KIP-482); return the position after them."""
    count, position = read_uvarint(buffer, position)
    if count > TAGS_MAX or count * 2 > end - position:
        bad_length("tagged fields", position, count)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            bad_length("tagged field", position, size)
    return position


def compile_decoder(message_type: type, version: int) -> Decoder:
    """Return the decoder of one message type in one version."""
    source, name = decoder_source(message_type, version)
    decoder: Decoder = source.compile(name, f"<decoder of {message_type.__name__} v{version}>")
    return decoder


def decoder_source(message_type: type, version: int) -> tuple[PythonSource, str]:
    """Return the decoder's source and the name of its function."""
    schema = schema_of(message_type)
    writer = _DecoderWriter(version, flexible=version in schema.flexible)
    writer.function(message_type)
    return writer.source, "decode"


def size_min(schema: Schema, version: int, *, flexible: bool) -> int:
    """Return the minimum size of a structure in bytes."""
    total = 1 if flexible else 0
    return total + sum(_field_size_min(f, version, flexible=flexible) for f in untagged(schema, version))


def _field_size_min(field: Field, version: int, *, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if isinstance(field.element, Kind):
        return _element_size_min(field.element, flexible=flexible)
    if version in field.nullable:
        return 1
    return size_min(schema_of(field.element), version, flexible=flexible)


def _element_size_min(kind: Kind, *, flexible: bool) -> int:
    if kind.is_fixed:
        return kind.size_bytes
    if flexible:
        return 1
    return 2 if kind is Kind.STRING else 4


class _DecoderWriter:
    """Generates the functions of one decoder. `_run` holds the fixed-size fields whose reading is not generated yet."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = PythonSource(
            {
                "new": object.__new__,
                "uvarint": read_uvarint,
                "skip_tags": skip_tags,
                "bad": bad_length,
                "too_many": too_many,
                "unpack_from": unpack_from,
            }
        )
        self._run: list[tuple[str, str]] = []
        self._tag_functions: list[tuple[str, type]] = []

    def function(self, message_type: type) -> None:
        with self.source.block("def decode(b, p, e):"):
            self.source.line(f"left = {ELEMENTS_MAX}")
            name = self._structure(message_type)
            self._flush()
            self.source.line(f"return {name}, p")
        # Tagged structures may hold tagged fields themselves, so the list grows during this loop.
        for function, owner in self._tag_functions:
            self._tags_function(function, owner)

    def _structure(self, message_type: type) -> str:
        """Generate code that reads a structure into a new local; return its name."""
        source, schema = self.source, schema_of(message_type)
        name = source.fresh("o")
        source.line(f"{name} = new({source.constant(message_type, message_type.__name__)})")
        known_tags = tagged(schema, self.version)
        for field in absent(schema, self.version) + known_tags:
            source.line(f"{name}.{field.name} = {literal(source, field.default)}")
        for field in untagged(schema, self.version):
            self._field(field, f"{name}.{field.name}", f"{message_type.__name__}.{field.name}")
        if self.flexible:
            self._tags(name, message_type, known_tags)
        return name

    def _tags(self, name: str, owner: type, known: list[Field]) -> None:
        count = self.source.fresh("n")
        self._fixed("B", count)
        self._flush()
        if known:
            function = self.source.fresh("tags")
            self._tag_functions.append((function, owner))
            call = f"{function}({name}, b, p - 1, e)"
        else:
            call = "skip_tags(b, p - 1, e)"
        self.source.line(f"if {count}: p = {call}")

    def _tags_function(self, function: str, owner: type) -> None:
        source = self.source
        with source.block(f"def {function}(o, b, p, limit):"):
            source.line(f"left = {ELEMENTS_MAX}")
            source.line("n, p = uvarint(b, p)")
            source.line(f"if n > {TAGS_MAX} or n * 2 > limit - p: bad('tagged fields', p, n)")
            with source.block("for _ in range(n):"):
                source.line("tag, p = uvarint(b, p)")
                source.line("size, p = uvarint(b, p)")
                source.line("e = p + size")
                source.line("if e > limit: bad('tagged field', p, size)")
                branch = "if"
                for field in tagged(schema_of(owner), self.version):
                    where = f"{owner.__name__}.{field.name}"
                    with source.block(f"{branch} tag == {field.tag}:"):
                        self._field(field, f"o.{field.name}", where)
                        self._flush()
                        source.line(f"if p != e: bad({where!r}, p, size)")
                    branch = "elif"
                source.line("p = e")
            source.line("return p")

    def _field(self, field: Field, target: str, where: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self._array(field.element, target, where, nullable=nullable)
        elif isinstance(field.element, Kind):
            self._primitive(field.element, target, where, nullable=nullable)
        elif nullable:
            # An int8 below 0 is null (KIP-893); inside a tagged field, an unsigned varint of 0.
            self._nullable_structure(field.element, target, "== 0" if self.version in field.tagged else "< 0")
        else:
            self.source.line(f"{target} = {self._flushed_structure(field.element)}")

    def _flushed_structure(self, message_type: type) -> str:
        name = self._structure(message_type)
        self._flush()
        return name

    def _nullable_structure(self, message_type: type, target: str, null: str) -> None:
        present = self.source.fresh("n")
        self._fixed("b", present)
        self._flush()
        self.source.line(f"if {present} {null}: {target} = None")
        with self.source.block("else:"):
            self.source.line(f"{target} = {self._flushed_structure(message_type)}")

    def _primitive(self, kind: Kind, target: str, where: str, *, nullable: bool) -> None:
        if kind.is_fixed:
            self._fixed(kind.value, target)
            return
        string = kind is Kind.STRING
        length = self._length("h" if string else "i", where, nullable=nullable, limit=STRING_BYTES_MAX if string else 0)
        value = {Kind.STRING: "b[p:q].tobytes().decode()", Kind.BYTES: "b[p:q].tobytes()", Kind.RECORDS: "b[p:q]"}[kind]
        lines = [f"q = p + {length}", f"if q > e: bad({where!r}, p, {length})", f"{target} = {value}", "p = q"]
        self._unless_null(length, target, lines, nullable=nullable)

    def _unless_null(self, length: str, target: str, lines: list[str], *, nullable: bool) -> None:
        if not nullable:
            for line in lines:
                self.source.line(line)
            return
        self.source.line(f"if {length} < 0: {target} = None")
        with self.source.block("else:"):
            for line in lines:
                self.source.line(line)

    def _length(self, layout: str, where: str, *, nullable: bool, limit: int = 0) -> str:
        """Generate code that reads a length: at least 0 afterwards, or -1 for null. Return the name of its local."""
        source, name = self.source, self.source.fresh("n")
        least = -1 if nullable else 0
        if not self.flexible:
            self._fixed(layout, name)
            self._flush()
            source.line(f"if {name} < {least}: bad({where!r}, p, {name})")
            return name
        # The run before it includes the first byte of the varint, which is nearly always the only one.
        self._fixed("B", name)
        self._flush()
        with source.block(f"if {name} > 127:"):
            source.line(f"{name}, p = uvarint(b, p - 1)")
            if limit:
                source.line(f"if {name} > {limit + 1}: bad({where!r}, p, {name})")
        source.line(f"{name} -= 1")
        if not nullable:
            source.line(f"if {name} < 0: bad({where!r}, p, {name})")
        return name

    def _array(self, element: Kind | type, target: str, where: str, *, nullable: bool) -> None:
        source = self.source
        count = self._length("i", where, nullable=nullable)
        if nullable:
            source.line(f"if {count} < 0: {target} = None")
            with source.block("else:"):
                self._elements(element, target, where, count)
        else:
            self._elements(element, target, where, count)

    def _elements(self, element: Kind | type, target: str, where: str, count: str) -> None:
        source = self.source
        if isinstance(element, Kind):
            least = _element_size_min(element, flexible=self.flexible)
        else:
            least = size_min(schema_of(element), self.version, flexible=self.flexible)
        assert least > 0, "an array of empty elements would not be bounded by the frame"
        source.line(f"if {count} * {least} > e - p: bad({where!r}, p, {count})")
        if isinstance(element, Kind) and element.is_fixed:
            layout = f"'>' + '16s' * {count}" if element is Kind.UUID else f"f'>{{{count}}}{element.value}'"
            source.line(f"{target} = unpack_from({layout}, b, p)")
            source.line(f"p += {count} * {least}")
            return
        source.line(f"left -= {count}")
        source.line(f"if left < 0: too_many({where!r}, p)")
        items = source.fresh("l")
        source.line(f"{items} = []")
        with source.block(f"for _ in range({count}):"):
            if isinstance(element, Kind):
                item = source.fresh("v")
                self._primitive(element, item, where, nullable=False)
                self._flush()
            else:
                item = self._flushed_structure(element)
            source.line(f"{items}.append({item})")
        source.line(f"{target} = tuple({items})")

    def _fixed(self, layout: str, target: str) -> None:
        self._run.append((layout, target))

    def _flush(self) -> None:
        """Generate code that reads the fixed-size fields collected so far."""
        if not self._run:
            return
        layouts, targets = zip(*self._run, strict=True)
        self._run = []
        if layouts == ("B",):
            self.source.line(f"{targets[0]} = b[p]")
            self.source.line("p += 1")
            return
        unpack, size = self.source.unpacker("".join(layouts))
        self.source.line(f"{', '.join(targets)}, = {unpack}(b, p)")
        self.source.line(f"p += {size}")
