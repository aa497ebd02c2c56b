"""Avro: schemas from JSON, Java's text of them, and the rules of resolution.

The text that is stored is the one of Java's `Schema.toString`, so that schemas which differ in white space or in the
order of attributes are the same. The rules are those of the specification (1.12), "Schema Resolution", where the new
schema stands for the reader's or the writer's.

A reader matches a named type by its name without namespace, or by an alias; a name that differs is a difference.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.broker.kafka.schemas.model import Difference, InvalidSchema, Resolved, Steps, TooComplex, parse_json

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
DEPTH_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PROMOTED: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Types of a writer that a reader of a type accepts, besides its own."""
_RESERVED: Final[Mapping[str, frozenset[str]]] = {
    "record": frozenset({"type", "name", "namespace", "doc", "aliases", "fields"}),
    "error": frozenset({"type", "name", "namespace", "doc", "aliases", "fields"}),
    "enum": frozenset({"type", "name", "namespace", "doc", "aliases", "symbols", "default"}),
    "fixed": frozenset({"type", "name", "namespace", "doc", "aliases", "size"}),
    "array": frozenset({"type", "items"}),
    "map": frozenset({"type", "values"}),
    "field": frozenset({"name", "type", "doc", "default", "order", "aliases"}),
}
"""Attributes of each kind of schema; others are properties, which are kept."""
_NO_DEFAULT: Final = object()


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record."""

    name: str
    type: "Type"
    default: Any
    source: Mapping[str, Any]

    @property
    def has_default(self) -> bool:
        """True if a reader can do without the field."""
        return self.default is not _NO_DEFAULT

    @property
    def aliases(self) -> Sequence[str]:
        """Other names under which a writer may have it."""
        return self.source.get("aliases") or ()


@dataclass(slots=True, eq=False)
class Type:
    """A schema: primitive, or a complex one with its parts."""

    kind: str
    """Name of the primitive, or `record`, `error`, `enum`, `fixed`, `array`, `map`, `union`."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Attributes in JSON."""
    name: str = ""
    namespace: str = ""
    fields: list[Field] = field(default_factory=list)
    parts: list["Type"] = field(default_factory=list)
    """Branches of a union, or the one type of an array's items or a map's values."""
    symbols: frozenset[str] = frozenset()
    """Symbols of an enum; the source has their order."""
    aliases: frozenset[str] = frozenset()
    """Full names that it had before."""

    @property
    def full_name(self) -> str:
        """Name with the namespace; for an unnamed type its kind."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name or self.kind


class AvroSchema:
    """A parsed schema. Raises InvalidSchema."""

    def __init__(self, resolved: Resolved) -> None:
        names: dict[str, Type] = {}
        for text in resolved.texts.values():
            # A reference names one type; what else its text defines is known, too, and defined once.
            _Parser(names, may_repeat=True).parse_text(text)
        imported = set(names)
        self.type = _Parser(names).parse_text(resolved.schema.text)
        self.canonical = _compact(_json_of(self.type, "", imported))

    @property
    def identity(self) -> str:
        """Text that is equal for equal schemas."""
        return self.canonical

    @property
    def normal(self) -> str:
        """Text in the normal form: without attributes that say nothing, properties in alphabetical order."""
        return _compact(_sorted_properties(json.loads(self.canonical)))


# -- Parsing ---------------------------------------------------------------------------------------------------------


class _Parser:
    """Parses one text; `names` are the types that are known by their full names, and grows."""

    def __init__(self, names: dict[str, Type], *, may_repeat: bool = False) -> None:
        self._names = names
        self._may_repeat = may_repeat
        self._depth = 0
        self._steps = Steps()
        """Bound of the check of defaults: a value may be one of many branches, each of which has branches again."""

    def parse_text(self, text: str) -> Type:
        bare = text.strip()
        return self._parse(bare if bare in PRIMITIVES else parse_json(text), "")

    def _parse(self, source: Any, namespace: str) -> Type:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSchema(f"nested deeper than {DEPTH_MAX} types")
        try:
            if isinstance(source, str):
                return self._named(source, namespace)
            if isinstance(source, list):
                return self._union(source, namespace)
            if isinstance(source, dict):
                return self._complex(source, namespace)
        finally:
            self._depth -= 1
        raise InvalidSchema(f"no type: {_shown(source)}")

    def _named(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._names.get(full_name) or self._names.get(name)
        if found is None:
            raise InvalidSchema(f'"{full_name}" is not a defined name')
        return found

    def _union(self, source: Sequence[Any], namespace: str) -> Type:
        parts = [self._parse(each, namespace) for each in source]
        names = [each.full_name for each in parts]
        if any(each.kind == "union" for each in parts):
            raise InvalidSchema("a union may not contain a union")
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise InvalidSchema(f"duplicate in union: {repeated[0]}")
        return Type("union", parts=parts)

    def _complex(self, source: Mapping[str, Any], namespace: str) -> Type:
        kind = source.get("type")
        if not isinstance(kind, str):
            if kind is None:
                raise InvalidSchema(f"no type: {_shown(source)}")
            return self._parse(kind, namespace)
        if kind in PRIMITIVES:
            return Type(kind, source)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._definition(kind, source, namespace)
        if kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            if part not in source:
                raise InvalidSchema(f"{kind} without {part}: {_shown(source)}")
            return Type(kind, source, parts=[self._parse(source[part], namespace)])
        return self._named(kind, namespace)

    def _definition(self, kind: str, source: Mapping[str, Any], namespace: str) -> Type:
        name = source.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSchema(f"{kind} without a name: {_shown(source)}")
        own = source.get("namespace")
        if "." in name:
            namespace, _, name = name.rpartition(".")
        elif isinstance(own, str):
            namespace = own
        for part in (name, *namespace.split(".")) if namespace else (name,):
            if not _NAME.fullmatch(part):
                raise InvalidSchema(f"illegal name: {part}")
        found = Type(kind, source, name, namespace)
        prefix = f"{namespace}." if namespace else ""
        found.aliases = frozenset(each if "." in each else prefix + each for each in _aliases_in(source, name))
        if found.full_name in self._names and not self._may_repeat:
            raise InvalidSchema(f"can't redefine: {found.full_name}")
        self._names[found.full_name] = found
        if kind == "enum":
            _check_enum(found)
        elif kind == "fixed":
            size = source.get("size")
            if type(size) is not int or size < 0:
                raise InvalidSchema(f"fixed {name} needs a size")
        else:
            self._add_fields(found)
        return found

    def _add_fields(self, record: Type) -> None:
        sources = record.source.get("fields")
        if not isinstance(sources, list):
            raise InvalidSchema(f"record {record.name} has no fields")
        names: set[str] = set()
        for source in sources:
            if not isinstance(source, dict) or not isinstance(source.get("name"), str) or "type" not in source:
                raise InvalidSchema(f"a field of {record.name} needs a name and a type: {_shown(source)}")
            name = source["name"]
            if not _NAME.fullmatch(name):
                raise InvalidSchema(f"illegal name: {name}")
            if name in names:
                raise InvalidSchema(f"duplicate field {name} in record {record.name}")
            names.add(name)
            _aliases_in(source, name)
            kind = self._parse(source["type"], record.namespace)
            default = source.get("default", _NO_DEFAULT)
            record.fields.append(Field(name, kind, default, source))
        for each in record.fields:
            try:
                is_valid = not each.has_default or _is_value(each.default, each.type, self._steps)
            except TooComplex:
                raise InvalidSchema("its defaults take too many steps to be checked") from None
            if not is_valid:
                raise InvalidSchema(f"invalid default for field {each.name}: {_shown(each.default)}")


def _aliases_in(source: Mapping[str, Any], name: str) -> Sequence[str]:
    aliases = source.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise InvalidSchema(f"aliases of {name} must be a list of names")
    return aliases


def _check_enum(enum: Type) -> None:
    symbols = enum.source.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in symbols):
        raise InvalidSchema(f"enum {enum.name} needs symbols that are names")
    enum.symbols = frozenset(symbols)
    if len(enum.symbols) < len(symbols):
        raise InvalidSchema(f"duplicate symbol in enum {enum.name}")
    if "default" in enum.source and enum.source["default"] not in symbols:
        raise InvalidSchema(f"the default of enum {enum.name} is not among its symbols")


def _is_value(value: Any, kind: Type, steps: Steps) -> bool:  # noqa: PLR0911 - one answer for each type
    """Return whether a default is a value of a type. That of a union may be one of any branch (since 1.12).

    Raises TooComplex.
    """
    steps.take(1 + len(kind.fields))
    match kind.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = 31 if kind.kind == "int" else 63
            return type(value) is int and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return type(value) in {int, float} or value in ("NaN", "Infinity", "-Infinity")
        case "bytes" | "string" | "fixed":
            return isinstance(value, str)
        case "enum":
            return isinstance(value, str) and value in kind.symbols
        case "array":
            return isinstance(value, list) and all(_is_value(each, kind.parts[0], steps) for each in value)
        case "map":
            return isinstance(value, dict) and all(_is_value(each, kind.parts[0], steps) for each in value.values())
        case "union":
            return any(_is_value(value, each, steps) for each in kind.parts)
    return isinstance(value, dict) and all(
        _is_value(value[each.name], each.type, steps) if each.name in value else each.has_default
        for each in kind.fields
    )


def _shown(source: Any) -> str:
    return _compact(source)[:200]


# -- Text ------------------------------------------------------------------------------------------------------------


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json_of(kind: Type, namespace: str, known: set[str]) -> Any:
    """Return a type as Java writes it within a namespace; `known` are the names that are defined already."""
    properties = {
        name: part for name, part in kind.source.items() if name not in _RESERVED.get(kind.kind, frozenset({"type"}))
    }
    if kind.kind in PRIMITIVES:
        return {"type": kind.kind, **properties} if properties else kind.kind
    if kind.kind == "union":
        return [_json_of(each, namespace, known) for each in kind.parts]
    if kind.kind in {"array", "map"}:
        part = "items" if kind.kind == "array" else "values"
        return {"type": kind.kind, part: _json_of(kind.parts[0], namespace, known), **properties}
    if kind.full_name in known:
        return kind.name if kind.namespace == namespace else kind.full_name
    known.add(kind.full_name)
    found: dict[str, Any] = {"type": kind.kind, "name": kind.name}
    if kind.namespace != namespace:
        found["namespace"] = kind.namespace
    if kind.source.get("doc") is not None:
        found["doc"] = kind.source["doc"]
    if kind.kind == "enum":
        found["symbols"] = kind.source["symbols"]
        if "default" in kind.source:
            found["default"] = kind.source["default"]
    elif kind.kind == "fixed":
        found["size"] = kind.source["size"]
    else:
        found["fields"] = [_json_of_field(each, kind.namespace, known) for each in kind.fields]
    found.update(properties)
    if kind.source.get("aliases"):
        found["aliases"] = kind.source["aliases"]
    return found


def _json_of_field(each: Field, namespace: str, known: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": each.name, "type": _json_of(each.type, namespace, known)}
    if each.source.get("doc") is not None:
        found["doc"] = each.source["doc"]
    if each.has_default:
        found["default"] = each.default
    if each.source.get("order", "ascending") != "ascending":
        found["order"] = each.source["order"]
    if each.aliases:
        found["aliases"] = each.aliases
    return {**found, **{name: part for name, part in each.source.items() if name not in _RESERVED["field"]}}


_ORDER: Final = ("type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "default", "order")


def _sorted_properties(value: Any) -> Any:
    """Return JSON of a schema with other attributes than those of `_ORDER` at the end, in alphabetical order."""
    if isinstance(value, list):
        return [_sorted_properties(each) for each in value]
    if not isinstance(value, dict):
        return value
    names = [name for name in _ORDER if name in value]
    names += sorted(value.keys() - set(names))
    return {name: value[name] if name == "default" else _sorted_properties(value[name]) for name in names}


# -- Resolution ------------------------------------------------------------------------------------------------------


def differences(writer: AvroSchema, reader: AvroSchema, steps: Steps) -> list[Difference]:
    """Return the reasons why the reader cannot read all data of the writer. Raises TooComplex."""
    return list(_Resolution(steps).compare(writer.type, reader.type, ""))


class _Resolution:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._begun: dict[tuple[int, int], None] = {}
        """Pairs of named types that are compared: each once, since types may contain themselves."""

    def compare(self, writer: Type, reader: Type, path: str) -> Iterator[Difference]:
        """Yield the differences of two types; `path` leads to the reader's."""
        self._steps.take()
        if writer.kind == "union":
            for index, part in enumerate(writer.parts):
                where = f"{path}/{index}" if reader.kind == "union" else path
                yield from self._branch(part, reader, where)
        elif reader.kind == "union":
            yield from self._branch(writer, reader, path)
        elif reader.kind == writer.kind or {reader.kind, writer.kind} == {"record", "error"}:
            yield from self._same_kind(writer, reader, path)
        elif writer.kind not in _PROMOTED.get(reader.kind, ()):
            yield _mismatch(writer, reader, path)

    def _branch(self, writer: Type, reader: Type, path: str) -> Iterator[Difference]:
        """Compare a type of the writer that is no union with all branches of a reader's."""
        if reader.kind != "union":
            yield from self.compare(writer, reader, path)
            return
        for part in reader.parts:
            if self._reads(writer, part):
                return
        yield Difference(
            "MISSING_UNION_BRANCH",
            path or "/",
            f"The new schema is missing a type inside a union field in the old schema: {writer.full_name}",
        )

    def _reads(self, writer: Type, reader: Type) -> bool:
        """Return whether a branch reads a type. Pairs that are only compared for this are not taken as compared."""
        begun = len(self._begun)
        is_read = next(self.compare(writer, reader, ""), None) is None
        while not is_read and len(self._begun) > begun:
            self._begun.popitem()
        return is_read

    def _same_kind(self, writer: Type, reader: Type, path: str) -> Iterator[Difference]:
        if reader.kind in PRIMITIVES:
            return
        if reader.kind in {"array", "map"}:
            part = "items" if reader.kind == "array" else "values"
            yield from self.compare(writer.parts[0], reader.parts[0], f"{path}/{part}")
            return
        pair = (id(writer), id(reader))
        if pair in self._begun:
            return
        self._begun[pair] = None
        if writer.name != reader.name and writer.full_name not in reader.aliases:
            yield Difference(
                "NAME_MISMATCH",
                f"{path}/name",
                f"The name of the schema has changed: expected {writer.full_name}, found {reader.full_name}",
            )
        if reader.kind == "fixed":
            if writer.source["size"] != reader.source["size"]:
                sizes = f"expected {writer.source['size']}, found {reader.source['size']}"
                yield Difference(
                    "FIXED_SIZE_MISMATCH", f"{path}/size", f"The size of {reader.full_name} has changed: {sizes}"
                )
        elif reader.kind == "enum":
            self._steps.take(len(writer.symbols))
            missing = [each for each in writer.source["symbols"] if each not in reader.symbols]
            if missing and "default" not in reader.source:
                symbols = ", ".join(missing)
                yield Difference(
                    "MISSING_ENUM_SYMBOLS",
                    f"{path}/symbols",
                    f"The reader schema is missing enum symbols of the writer schema: {symbols}",
                )
        else:
            yield from self._fields(writer, reader, path)

    def _fields(self, writer: Type, reader: Type, path: str) -> Iterator[Difference]:
        self._steps.take(len(writer.fields) + len(reader.fields))
        by_name = {each.name: each for each in writer.fields}
        for index, each in enumerate(reader.fields):
            names = (each.name, *each.aliases)
            written = next((by_name[name] for name in names if name in by_name), None)
            where = f"{path}/fields/{index}"
            if written is not None:
                yield from self.compare(written.type, each.type, f"{where}/type")
            elif not each.has_default and not (each.type.kind == "enum" and "default" in each.type.source):
                yield Difference(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    where,
                    f"The field '{each.name}' has no default value and is missing in the writer schema",
                )


def _mismatch(writer: Type, reader: Type, path: str) -> Difference:
    return Difference(
        "TYPE_MISMATCH",
        path or "/",
        f"The type (reader: {reader.kind}) is not compatible with the type of the writer schema ({writer.kind})",
    )
