"""Generates and compiles the encoder of a message type in a version.

The generated function takes (message, pieces, cuts) and appends buffers to `pieces`, whose concatenation is the
message. Records are appended without a copy. For large records, the indexes before and after them and their size are
appended to `cuts`, so that `protocol.codec.encode_parts` joins small pieces only, and adds up no sizes again.

A field that the version does not have is dropped where Kafka's schema calls it ignorable. Otherwise it must have its
default, or `UnencodableMessage` names the field.
"""

from collections.abc import Callable
from struct import pack
from typing import Any, Final, NoReturn

from anabranch.protocol.errors import UnencodableMessage
from anabranch.protocol.source import PythonSource, absent, literal, tagged, untagged
from anabranch.protocol.varint import ONE_BYTE, uvarint
from anabranch.protocol.wire import Buffer, Field, Kind, schema_of

Encoder = Callable[[Any, list[Buffer], list[int]], None]

STRING_BYTES_MAX: Final = 32767
RECORDS_COPY_BYTES_MAX: Final = 2048
"""Records up to this size are joined with the pieces around them: another buffer in a send costs more than the copy."""


def string_length(n: int) -> bytes:
    """Return the length prefix (plus one) of a compact string too long for one byte. Raises UnencodableMessage."""
    if n > STRING_BYTES_MAX + 1:
        raise UnencodableMessage(f"string of {n - 1} bytes: at most {STRING_BYTES_MAX} fit")
    return uvarint(n)


def not_in_version(where: str, version: int, value: object) -> NoReturn:
    """Raise UnencodableMessage for a field that is set and that the version does not have."""
    raise UnencodableMessage(f"{where} is {value!r}, but version {version} has no such field")


def compile_encoder(message_type: type, version: int) -> Encoder:
    """Return the encoder of one message type in one version."""
    source, name = encoder_source(message_type, version)
    encoder: Encoder = source.compile(name, f"<encoder of {message_type.__name__} v{version}>")
    return encoder


def encoder_source(message_type: type, version: int) -> tuple[PythonSource, str]:
    """Return the encoder's source and the name of its function."""
    writer = _EncoderWriter(version, flexible=version in schema_of(message_type).flexible)
    writer.function(message_type)
    return writer.source, "encode"


class _EncoderWriter:
    """Generates the functions of one encoder.

    `_run` holds the fixed-size fields not yet packed, `_chunk` the expressions not yet appended to the pieces. Both are
    flushed before a loop or branch.
    """

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = PythonSource(
            {
                "one_byte": ONE_BYTE,
                "uvarint": uvarint,
                "string_length": string_length,
                "not_in_version": not_in_version,
                "pack": pack,
                "join": b"".join,
            }
        )
        self._run: list[tuple[str, str]] = []
        self._chunk: list[str] = []
        self._tag_functions: list[tuple[str, type]] = []

    def function(self, message_type: type) -> None:
        with self.source.block("def encode(o, w, cuts):"):
            self._structure("o", message_type)
            self._flush()
        # Tagged structures may hold tagged fields themselves, so the list grows during this loop.
        for function, owner in self._tag_functions:
            self._tags_function(function, owner)

    def _structure(self, name: str, message_type: type) -> None:
        schema = schema_of(message_type)
        for field in absent(schema, self.version):
            if not field.ignorable:
                where = f"{message_type.__name__}.{field.name}"
                value = f"{name}.{field.name}"
                self.source.line(f"if {self._is_set(value, field)}: not_in_version({where!r}, {self.version}, {value})")
        for field in untagged(schema, self.version):
            self._field(field, f"{name}.{field.name}")
        if self.flexible:
            self._tags(name, message_type)
        elif not untagged(schema, self.version):
            self.source.line("pass")

    def _is_set(self, value: str, field: Field) -> str:
        """Return an expression that is true if a field differs from its default."""
        if field.default is None:
            return f"{value} is not None"
        if not field.default and (field.is_array or field.element in {Kind.STRING, Kind.BYTES}):
            may_be_null = field.nullable.last >= 0
            return f"({value} is None or {value})" if may_be_null else value
        default = literal(self.source, field.default)
        if isinstance(field.element, Kind):
            return f"{value} != {default}"
        return f"({value} is not {default} and {value} != {default})"

    def _tags(self, name: str, owner: type) -> None:
        known = tagged(schema_of(owner), self.version)
        if not known:
            self._fixed("x", "")
            return
        function = self.source.fresh("tags")
        self._tag_functions.append((function, owner))
        self._flush_run()
        is_set = " or ".join(self._is_set(f"{name}.{f.name}", f) for f in known)
        self._chunk.append(f"({function}({name}) if {is_set} else one_byte[0])")

    def _tags_function(self, function: str, owner: type) -> None:
        source = self.source
        with source.block(f"def {function}(o):"):
            source.line("fields = []")
            source.line("cuts = []")
            source.line("n = 0")
            for field in tagged(schema_of(owner), self.version):
                with source.block(f"if {self._is_set(f'o.{field.name}', field)}:"):
                    source.line("w = []")
                    self._field(field, f"o.{field.name}")
                    self._flush()
                    source.line("w = join(w)")
                    source.line(f"fields += (uvarint({field.tag}), uvarint(len(w)), w)")
                    source.line("n += 1")
            source.line("return uvarint(n) + join(fields)")

    def _field(self, field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self._array(field.element, value, nullable=nullable)
        elif isinstance(field.element, Kind):
            self._primitive(field.element, value, nullable=nullable)
        else:
            null = 0 if self.version in field.tagged else -1
            self._inner_structure(field.element, value, null if nullable else None)

    def _inner_structure(self, message_type: type, value: str, null: int | None) -> None:
        source, name = self.source, self.source.fresh("o")
        source.line(f"{name} = {value}")
        if null is None:
            self._structure(name, message_type)
            return
        self._flush()
        with source.block(f"if {name} is None:"):
            self._fixed("b", str(null))
            self._flush()
        with source.block("else:"):
            self._fixed("b", "1")
            self._structure(name, message_type)
            self._flush()

    def _primitive(self, kind: Kind, value: str, *, nullable: bool) -> None:
        if kind.is_fixed:
            self._fixed(kind.value, value)
        elif kind is Kind.STRING:
            self._sized(value, ".encode()", "h", "string_length", nullable=nullable)
        elif kind is Kind.BYTES:
            self._sized(value, "", "i", "uvarint", nullable=nullable)
        else:
            self._records(value, nullable=nullable)

    def _sized(self, value: str, convert: str, layout: str, long_length: str, *, nullable: bool) -> None:
        source, data, length = self.source, self.source.fresh("s"), self.source.fresh("n")
        counted = f"len({data}) + 1" if self.flexible else f"len({data})"
        if nullable:
            source.line(f"{data} = {value}")
            source.line(f"if {data} is None: {data} = b''; {length} = {0 if self.flexible else -1}")
            source.line(f"else: {data} = {data}{convert}; {length} = {counted}")
        else:
            source.line(f"{data} = {value}{convert}")
            source.line(f"{length} = {counted}")
        self._length(length, layout, long_length)
        self._flush_run()
        self._chunk.append(data)

    def _records(self, value: str, *, nullable: bool) -> None:
        source, data, size = self.source, self.source.fresh("r"), self.source.fresh("n")
        source.line(f"{data} = {value}")
        with source.block(f"if {data} is None:"):
            source.line(f"{data} = ()")
            source.line(f"{size} = {-1 if nullable else 0}")
        with source.block(f"elif type({data}) is tuple or type({data}) is list:"):
            source.line(f"{size} = sum(map(len, {data}))")
        with source.block("else:"):
            source.line(f"{size} = len({data})")
            source.line(f"{data} = ({data},)")
        if self.flexible:
            length = source.fresh("n")
            source.line(f"{length} = {size} + 1")
            self._length(length, "i", "uvarint")
        else:
            self._fixed("i", size)
        self._flush()
        source.line(f"if {size} > {RECORDS_COPY_BYTES_MAX}: cuts += (len(w), len(w) + len({data}), {size})")
        source.line(f"w += {data}")

    def _array(self, element: Kind | type, value: str, *, nullable: bool) -> None:
        source, items, count = self.source, self.source.fresh("a"), self.source.fresh("n")
        counted = f"len({items}) + 1" if self.flexible else f"len({items})"
        source.line(f"{items} = {value}")
        if nullable:
            source.line(f"if {items} is None: {items} = (); {count} = {0 if self.flexible else -1}")
            source.line(f"else: {count} = {counted}")
        else:
            source.line(f"{count} = {counted}")
        self._length(count, "i", "uvarint")
        if isinstance(element, Kind) and element.is_fixed:
            layout = f"'>' + '16s' * len({items})" if element is Kind.UUID else f"f'>{{len({items})}}{element.value}'"
            self._flush_run()
            self._chunk.append(f"pack({layout}, *{items})")
            return
        self._flush()
        item = source.fresh("o")
        with source.block(f"for {item} in {items}:"):
            if isinstance(element, Kind):
                self._primitive(element, item, nullable=False)
            else:
                self._structure(item, element)
            self._flush()

    def _length(self, name: str, layout: str, long_length: str) -> None:
        """Add a length or count; in flexible versions one byte as part of the run, or a longer varint after it."""
        if not self.flexible:
            self._fixed(layout, name)
            return
        if not self._run:
            self._chunk.append(f"(one_byte[{name}] if {name} < 128 else {long_length}({name}))")
            return
        short = self._packed([*self._run, ("B", name)])
        long = self._packed(self._run)
        self._run = []
        self._chunk.append(f"({short} if {name} < 128 else {long} + {long_length}({name}))")

    def _fixed(self, layout: str, value: str) -> None:
        self._run.append((layout, value))

    def _packed(self, run: list[tuple[str, str]]) -> str:
        layouts, values = zip(*run, strict=True)
        return f"{self.source.packer(''.join(layouts))}({', '.join(v for v in values if v)})"

    def _flush_run(self) -> None:
        if self._run:
            self._chunk.append("one_byte[0]" if self._run == [("x", "")] else self._packed(self._run))
            self._run = []

    def _flush(self) -> None:
        """Generate code for the collected expressions: one extension of the list of pieces."""
        self._flush_run()
        if self._chunk:
            self.source.line(f"w += ({', '.join(self._chunk)},)")
            self._chunk = []
