"""Declaration of a message's fields: wire type, versions, nullability and tags.

A Kafka message is a dataclass. Each field declares, in the notation of Kafka's schema files, the versions that carry
it (``"3+"``, ``"0-12"``, ``"7"``), the versions in which it may be null, and whether it is tagged:

    @message
    class PartitionProduceData:
        index: int = wire.int32("0+")
        records: Buffer | None = wire.records("0+", nullable="0+")

The declarations are plain data, which `protocol.codec` compiles. Every field has a default, as in Kafka's schema, so a
message is constructed by keyword from the fields that differ from it.

Values: integers are `int`, strings `str`, uuids 16 `bytes`, arrays tuples (any sequence is encoded), absent `None`.
"""

import dataclasses
import struct as struct_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, Final, TypeVar, dataclass_transform, overload

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes. Decoded records are memoryviews of the input."""

Records = Buffer | Sequence[Buffer]
"""Record batches to encode: one buffer, or several consecutive ones (sent by one vectored write)."""

ZERO_UUID: Final = bytes(16)
OWN_TAGS_FROM: Final = 10_000
"""Tagged fields from here on are this project's, for messages between its nodes. Apache Kafka's begin with 0."""
VERSION_MAX: Final = 32767

T = TypeVar("T")


class Kind(Enum):
    """The primitive wire types; the value is the struct character of those with a fixed size."""

    BOOLEAN = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UINT16 = "H"
    UINT32 = "I"
    FLOAT64 = "d"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"

    @property
    def is_fixed(self) -> bool:
        """True if every value has the same size, so that `struct` can read it in a run."""
        return self not in {Kind.STRING, Kind.BYTES, Kind.RECORDS}

    @property
    def size_bytes(self) -> int:
        """Size of a fixed-size value."""
        assert self.is_fixed
        return struct_module.calcsize(">" + self.value)


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty when `last` is below `first`."""

    first: int
    last: int

    @classmethod
    @cache
    def parse(cls, text: str | None) -> "Versions":
        """Parse Kafka's notation: ``"3+"``, ``"0-12"``, ``"7"``, or ``"none"``, which None stands for, too."""
        if text is None or text == "none":
            return cls(0, -1)
        first, dash, last = text.partition("-")
        if dash:
            return cls(int(first), int(last))
        if first.endswith("+"):
            return cls(int(first[:-1]), VERSION_MAX)
        return cls(int(first), int(first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True)
class Field:
    """Wire declaration of one field. `element` is a primitive type, or the message class of a structure."""

    element: Kind | type
    is_array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    ignorable: bool
    name: str


@dataclass(frozen=True, slots=True)
class Schema:
    """Declaration of a message class. `versions` is None for structures inside a message."""

    fields: tuple[Field, ...]
    versions: Versions | None
    flexible: Versions


_METADATA_KEY: Final = "wire"
_SCHEMA_ATTRIBUTE: Final = "__wire_schema__"


@overload
def message(cls: type[T], /) -> type[T]: ...
@overload
def message(*, versions: str, flexible: str | None) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type | None = None, /, *, versions: str | None = None, flexible: str | None = None) -> Any:
    """Make a class of `wire` fields a message: a keyword-only slotted dataclass that the codec can compile.

    Messages are values: the type checker treats them as frozen. At run time they are not, because a frozen dataclass
    sets each field through `object.__setattr__`, which alone costs more than decoding the field.
    """

    def wrap(plain: type) -> type:
        plain.__doc__ = plain.__doc__ or plain.__name__  # else `dataclass` writes one, which takes long
        # Nor may it compile methods for each of hundreds of classes: a node uses a few, and would start later.
        made: type = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(plain)
        for name, method in _METHODS.items():
            setattr(made, name, method)
        fields = tuple(f.metadata[_METADATA_KEY](name=f.name) for f in dataclasses.fields(made))
        schema = Schema(fields, Versions.parse(versions) if versions else None, Versions.parse(flexible))
        setattr(made, _SCHEMA_ATTRIBUTE, schema)
        return made

    return wrap if cls is None else wrap(cls)


def _construct_first(self: Any, **values: Any) -> None:
    """Construct the first message of a class, by a constructor that is compiled now and takes the place of this one."""
    made: Any = type(self)
    defaults = {f"default_{each.name}": each.default for each in schema_of(made).fields}
    parameters = "".join(f", {each.name}=default_{each.name}" for each in schema_of(made).fields)
    lines = "".join(f"    self.{each.name} = {each.name}\n" for each in schema_of(made).fields)
    # The source is generated from our own declarations alone.
    exec(f"def __init__(self, *{parameters}):\n{lines}" if lines else "def __init__(self): pass", defaults)  # noqa: S102
    made.__init__ = defaults["__init__"]
    made.__init__(self, **values)


def _values(part: Any) -> tuple[Any, ...]:
    return tuple(getattr(part, each.name) for each in schema_of(type(part)).fields)


def _equals(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _show(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in schema_of(type(self)).fields)
    return f"{type(self).__qualname__}({', '.join(shown)})"


_METHODS: Final = {"__init__": _construct_first, "__eq__": _equals, "__hash__": _hash, "__repr__": _show}


def schema_of(message_type: type) -> Schema:
    """Return the declaration of a message class."""
    schema: Schema = getattr(message_type, _SCHEMA_ATTRIBUTE)
    return schema


def _field(
    element: Kind | type,
    versions: str,
    default: Any,
    *,
    is_array: bool = False,
    nullable: str | None = None,
    tag: int = -1,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    named = partial(
        Field,
        element,
        is_array,
        Versions.parse(versions),
        Versions.parse(nullable),
        Versions.parse(tagged or (versions if tag >= 0 else None)),
        tag,
        default,
        ignorable,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: named})


def _primitive(kind: Kind, implicit_default: Any) -> Callable[..., Any]:
    def declare(versions: str, *, default: Any = implicit_default, **options: Any) -> Any:
        return _field(kind, versions, default, **options)

    return declare


boolean: Final = _primitive(Kind.BOOLEAN, False)
int8: Final = _primitive(Kind.INT8, 0)
int16: Final = _primitive(Kind.INT16, 0)
int32: Final = _primitive(Kind.INT32, 0)
int64: Final = _primitive(Kind.INT64, 0)
uint16: Final = _primitive(Kind.UINT16, 0)
uint32: Final = _primitive(Kind.UINT32, 0)
float64: Final = _primitive(Kind.FLOAT64, 0.0)
uuid: Final = _primitive(Kind.UUID, ZERO_UUID)
string: Final = _primitive(Kind.STRING, "")
bytes_: Final = _primitive(Kind.BYTES, b"")
records: Final = _primitive(Kind.RECORDS, None)


def array(element: Kind | type, versions: str, *, default: Sequence[Any] | None = (), **options: Any) -> Any:
    """Declare an array of a primitive or of structures; it is decoded to a tuple."""
    return _field(element, versions, default, is_array=True, **options)


def struct(element: type, versions: str, *, default: Any = ..., **options: Any) -> Any:
    """Declare a structure inside a message; the default is the structure with all its defaults, or None."""
    return _field(element, versions, element() if default is ... else default, **options)
