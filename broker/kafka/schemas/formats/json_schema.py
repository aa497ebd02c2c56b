"""JSON Schema: which documents that one schema accepts another one accepts, too.

The rules are those of Confluent's registry. A schema of objects is an *open* content model if it allows any further
property (the default), *closed* with `additionalProperties: false`, and *partially open* if it has a schema for further
properties, by `additionalProperties` or `patternProperties`. To an open model no property can be added, because data
of the earlier schema may have anything in its place; from a closed one none can be removed. Arrays whose items have
schemas by position have such models, too.

Keywords of drafts 4 to 2020-12 are understood where they say the same: `definitions` and `$defs`, `prefixItems` and a
list in `items`, `dependencies` and `dependentRequired`. `unevaluatedProperties` and `unevaluatedItems` stand for
`additionalProperties` and `additionalItems`; beside keywords with further schemas, such as `allOf`, nothing can be
added to what they close. Keywords that are not named here, such as `format`, are annotations: a change of them is no
difference.

The text that is stored has no white space between its parts; properties keep their order.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from anabranch.broker.kafka.schemas.model import Difference, InvalidSchema, Resolved, Steps, parse_json
from anabranch.extras import MissingExtra, needed

PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory of a compiled pattern."""
PATTERN_STEPS: Final = 10
"""Steps that a pattern counts for, which is compiled each time."""
TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
DEPTH_MAX: Final = 100
BASE_CHARACTERS_MAX: Final = 2000
"""Characters of an absolute `$id`, which stands in the names of all schemas inside it."""
_OF_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
            "dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties",
        }
    ),
    "array": frozenset(
        {
            "items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems",
            "contains", "minContains", "maxContains",
        }
    ),
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}  # fmt: skip
"""Keywords that say of which type a schema without `type` speaks."""
_SCHEMAS: Final = frozenset(
    {
        "not", "additionalProperties", "unevaluatedProperties", "propertyNames", "additionalItems", "unevaluatedItems",
        "contains", "if", "then", "else",
    }
)  # fmt: skip
"""Keywords with one schema."""
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_BESIDE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains", "$dynamicRef"}
)
"""Keywords whose schemas say of properties and items, too, which of them are unevaluated."""
_MAPS: Final = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"}
)
_NUMBERS: Final = frozenset({"minimum", "maximum", "multipleOf"})
_LIMITS: Final = frozenset({"exclusiveMinimum", "exclusiveMaximum"})
"""Numbers, or booleans that make another limit exclusive (draft 4)."""

Source = Mapping[str, Any] | bool


class JsonSchema:
    """A parsed schema. Raises InvalidSchema."""

    def __init__(self, resolved: Resolved) -> None:
        self.source = _parsed(resolved.schema.text)
        self._documents: dict[str, Source] = {name: _parsed(text) for name, text in resolved.texts.items()}
        self._bases: dict[int, str] = {}
        """Name of the document that each schema object is in, by its identity."""
        self._anchors: dict[str, Source] = {}
        """Schemas by their absolute `$id` or anchor."""
        self._targets: dict[int, Source] = {}
        """Schemas at the end of each `$ref`, by the identity of those that have it: a chain is followed once."""
        self._referring: list[Mapping[str, Any]] = []
        """Schemas with a `$ref`, of the text itself."""
        for name, document in self._documents.items():
            _Check(self).schema(document, name, 0)
        self._referring.clear()  # those of other texts were checked when these were registered
        _Check(self).schema(self.source, "", 0)
        for each in self._referring:
            self.follow(each)
        self.canonical = json.dumps(self.source, ensure_ascii=False, separators=(",", ":"))

    @property
    def identity(self) -> str:
        """Text that is equal for equal schemas."""
        return self.canonical

    @property
    def normal(self) -> str:
        """Text with all properties in alphabetical order."""
        return json.dumps(self.source, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    def note(self, source: Mapping[str, Any], base: str) -> str:
        """Note where a schema object is. Returns the base of those inside it. Raises InvalidSchema."""
        name = source.get("$id", source.get("id"))
        if isinstance(name, str) and "$ref" not in source:
            base = urljoin(base, name)
        if len(base) > BASE_CHARACTERS_MAX:
            raise InvalidSchema(f"an $id or the name of a reference has more than {BASE_CHARACTERS_MAX} characters")
        if isinstance(name, str) and "$ref" not in source:
            self._anchors.setdefault(urldefrag(base).url if "#" not in name else base, source)
        if isinstance(anchor := source.get("$anchor"), str):
            self._anchors[f"{urldefrag(base).url}#{anchor}"] = source
        self._bases[id(source)] = base
        if "$ref" in source:
            self._referring.append(source)
        return base

    def follow(self, source: Source) -> Source:
        """Return the schema that a `$ref` leads to; any other one as it is. Raises InvalidSchema."""
        passed: set[int] = set()
        while isinstance(source, Mapping) and isinstance(place := source.get("$ref"), str):
            at = id(source)
            if at in passed:
                raise InvalidSchema(f"$ref leads to itself: {place}")
            passed.add(at)
            source = self._targets[at] if at in self._targets else self._find(place, self._bases.get(at, ""))
        self._targets.update(dict.fromkeys(passed, source))
        return source

    def _find(self, place: str, base: str) -> Source:
        target = urljoin(base, place) if base else place
        for each in (target, place):
            if each in self._anchors:
                return self._anchors[each]
        url, fragment = urldefrag(target)
        root = self._anchors.get(url, self._documents.get(url, self._documents.get(urldefrag(place).url)))
        if root is None:
            if url and not place.startswith("#"):
                raise InvalidSchema(f"$ref to an unknown schema: {place}")
            root = self.source
        return _at(root, fragment, place)


def _at(root: Source, fragment: str, place: str) -> Source:
    """Return the schema at a JSON pointer."""
    found: Any = root
    for step in unquote(fragment).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise InvalidSchema(f"$ref to nothing: {place}")
    if (fragment and not fragment.startswith("/")) or not isinstance(found, Mapping | bool):
        raise InvalidSchema(f"$ref to nothing: {place}")
    return found


def _parsed(text: str) -> Source:
    found = parse_json(text)
    if not isinstance(found, dict | bool):
        raise InvalidSchema("it must be an object or a boolean")
    return found


class _Check:
    """Checks that keywords have values of their types, and notes the schemas of a document."""

    def __init__(self, whole: JsonSchema) -> None:
        self._whole = whole

    def schema(self, source: Any, base: str, depth: int) -> None:
        """Check a schema and those in it. Raises InvalidSchema."""
        if isinstance(source, bool):
            return
        if not isinstance(source, dict):
            raise InvalidSchema(f"no schema: {json.dumps(source)[:100]}")
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"nested deeper than {DEPTH_MAX} schemas")
        base = self._whole.note(source, base)
        _check_values(source)
        for keyword, value in source.items():
            for each in _inner(keyword, value):
                self.schema(each, base, depth + 1)


def _inner(keyword: str, value: Any) -> Iterator[Any]:
    """Yield the schemas in the value of a keyword. Raises InvalidSchema."""
    if keyword in _SCHEMAS or (keyword == "items" and not isinstance(value, list)):
        yield value
    elif keyword in _LISTS or keyword == "items":
        if not isinstance(value, list):
            raise InvalidSchema(f"{keyword} must be a list")
        yield from value
    elif keyword in _MAPS:
        if not isinstance(value, dict):
            raise InvalidSchema(f"{keyword} must be an object")
        yield from value.values()
    elif keyword == "dependencies" and isinstance(value, dict):
        yield from (each for each in value.values() if not isinstance(each, list))


def _check_values(source: Mapping[str, Any]) -> None:
    kind = source.get("type")
    if kind is not None:
        named = kind if isinstance(kind, list) else [kind]
        if not named or not all(isinstance(each, str) and each in TYPES for each in named):
            raise InvalidSchema(f"no type: {json.dumps(kind)[:100]}")
    for keyword, value in source.items():
        if keyword in _COUNTS and (type(value) not in {int, float} or value < 0 or value != int(value)):
            raise InvalidSchema(f"{keyword} must be a count")
        is_number = type(value) in {int, float} and abs(value) <= sys.float_info.max
        if not is_number and (keyword in _NUMBERS or (keyword in _LIMITS and not isinstance(value, bool))):
            raise InvalidSchema(f"{keyword} must be a number")
        if keyword == "multipleOf" and value <= 0:
            raise InvalidSchema("multipleOf must be greater than 0")
        if keyword in {"required", "enum"} and not isinstance(value, list | bool):
            raise InvalidSchema(f"{keyword} must be a list")
        if keyword in {"dependencies", "dependentRequired"}:
            _check_dependencies(keyword, value)
        if keyword == "$ref" and not isinstance(value, str):
            raise InvalidSchema("$ref must be a string")


def _check_dependencies(keyword: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InvalidSchema(f"{keyword} must be an object")
    for names in value.values():
        if isinstance(names, list) and not all(isinstance(each, str) for each in names):
            raise InvalidSchema(f"{keyword} must name properties")
        if keyword == "dependentRequired" and not isinstance(names, list):
            raise InvalidSchema(f"{keyword} must have lists")


# -- Shapes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Anything:
    """Accepts everything."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Accepts nothing."""


@dataclass(frozen=True, slots=True)
class Typed:
    """Accepts values of one type, within bounds."""

    type: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """Accepts the values of `enum` or `const`, each as JSON."""

    values: frozenset[str]
    is_const: bool


@dataclass(frozen=True, slots=True)
class Negated:
    """Accepts what a schema does not accept."""

    source: Source


@dataclass(frozen=True, slots=True)
class Combined:
    """Accepts what all, any or exactly one of several shapes accept."""

    criterion: str
    """`allOf`, `anyOf` or `oneOf`."""
    parts: Sequence["Shape | Source"]


Shape = Anything | Nothing | Typed | Listed | Negated | Combined


def _shape(source: "Shape | Source") -> Shape:
    """Return what a schema says; one that says several things is their `allOf`."""
    if isinstance(source, bool):
        return Anything() if source else Nothing()
    if not isinstance(source, Mapping):
        return source
    parts: list[Shape] = []
    kind = source.get("type")
    if isinstance(kind, list):
        named: list[Shape] = [Typed(each, source) for each in kind]
        parts.append(named[0] if len(named) == 1 else Combined("anyOf", named))
    elif isinstance(kind, str):
        parts.append(Typed(kind, source))
    else:
        parts += [Typed(each, source) for each, keywords in _OF_TYPE.items() if not keywords.isdisjoint(source)]
    if isinstance(source.get("enum"), list):
        parts.append(Listed(frozenset(_key(each) for each in source["enum"]), is_const=False))
    if "const" in source:
        parts.append(Listed(frozenset({_key(source["const"])}), is_const=True))
    if "not" in source:
        parts.append(Negated(source["not"]))
    parts += [Combined(each, source[each]) for each in ("allOf", "anyOf", "oneOf") if each in source]
    if isinstance(kind, str) and len(parts) > 1 and isinstance(parts[0], Typed) and not _is_bounded(parts[0]):
        parts = parts[1:] if all(isinstance(each, Listed) for each in parts[1:]) else parts
    if not parts:
        return Anything()
    return parts[0] if len(parts) == 1 else Combined("allOf", parts)


def _is_bounded(typed: Typed) -> bool:
    keywords = _OF_TYPE.get("number" if typed.type == "integer" else typed.type, frozenset())
    return not keywords.isdisjoint(typed.source)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _size(source: Mapping[str, Any]) -> int:
    """Return the number of parts that a comparison of a schema may look at."""
    return sum(len(each) for each in source.values() if isinstance(each, dict | list))


# -- Differences -----------------------------------------------------------------------------------------------------


def differences(writer: JsonSchema, reader: JsonSchema, steps: Steps) -> list[Difference]:
    """Return the reasons why the reader does not accept all that the writer accepts.

    Raises TooComplex, InvalidSchema.
    """
    return list(_Comparison(writer, reader, steps, {}, []).compare(writer.source, reader.source, "#"))


class _Comparison:
    def __init__(
        self,
        writer: JsonSchema,
        reader: JsonSchema,
        steps: Steps,
        known: dict[int, tuple[Shape, int]],
        begun: list[tuple[int, int]],
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._steps = steps
        self._begun = begun
        """Pairs of schemas that are being compared: inside itself a pair is taken for compatible."""
        self._known = known
        """Shapes of schemas, and their sizes, by their identity."""

    def compare(self, writer: "Shape | Source", reader: "Shape | Source", path: str) -> Iterator[Difference]:
        """Yield the differences of two schemas."""
        self._steps.take()
        if isinstance(writer, Mapping | bool):
            writer = self._writer.follow(writer)
        if isinstance(reader, Mapping | bool):
            reader = self._reader.follow(reader)
        pair = (id(writer), id(reader))
        if pair in self._begun:
            return
        self._begun.append(pair)
        try:
            yield from self._shapes(self._shape(writer), self._shape(reader), path)
        finally:
            self._begun.remove(pair)

    def _shape(self, source: "Shape | Source") -> Shape:
        if not isinstance(source, Mapping):
            return _shape(source)
        if id(source) not in self._known:
            self._known[id(source)] = _shape(source), _size(source)
        shape, size = self._known[id(source)]
        self._steps.take(size)
        return shape

    def _accepts(self, writer: "Shape | Source", reader: "Shape | Source") -> bool:
        return next(self.compare(writer, reader, "#"), None) is None

    def _shapes(self, writer: Shape, reader: Shape, path: str) -> Iterator[Difference]:
        if isinstance(writer, Nothing) or isinstance(reader, Anything) or self._is_enough(writer, reader):
            return
        if isinstance(writer, Combined) and isinstance(reader, Combined):
            yield from self._combined(writer, reader, path)
        elif isinstance(writer, Typed) and isinstance(reader, Typed) and _is_same_type(writer.type, reader.type):
            yield from self._typed(writer, reader, path)
        elif isinstance(writer, Listed) and isinstance(reader, Listed):
            if not writer.values <= reader.values:
                kind = "ENUM_ARRAY_NARROWED" if reader.values <= writer.values else "ENUM_ARRAY_CHANGED"
                yield Difference(kind, f"{path}/enum", "The values of the enum are fewer or others")
        elif isinstance(writer, Listed) and isinstance(reader, Typed):
            if _is_bounded(reader) or not all(_is_of(json.loads(each), reader.type) for each in writer.values):
                yield Difference("TYPE_CHANGED", path, "A value of the enum is not accepted any more")
        elif isinstance(writer, Negated) and isinstance(reader, Negated):
            # The other way round: what the writer excludes, the reader may exclude at most.
            turned = _Comparison(self._reader, self._writer, self._steps, self._known, self._begun)
            if next(turned.compare(reader.source, writer.source, path), None) is not None:
                yield Difference("NOT_TYPE_EXTENDED", f"{path}/not", "The schema of 'not' excludes more")
        else:
            yield Difference("TYPE_CHANGED", path, "The type is another one")

    # -- Combinations ------------------------------------------------------------------------------------------------

    def _is_enough(self, writer: Shape, reader: Shape) -> bool:
        """Return whether one part of a combination is enough: what meets all parts of the writer meets each of them."""
        if not isinstance(writer, Combined) and not isinstance(reader, Combined):
            return False
        writers: Sequence[Shape | Source] = (writer,)
        readers: Sequence[Shape | Source] = (reader,)
        if isinstance(writer, Combined):
            if writer.criterion != "allOf" and len(writer.parts) != 1:
                return False
            writers = writer.parts
        if isinstance(reader, Combined):
            is_any = reader.criterion == "anyOf" or (reader.criterion == "oneOf" and not isinstance(writer, Combined))
            if not is_any and len(reader.parts) != 1:
                return False
            readers = reader.parts
        return any(self._accepts(one, other) for one in writers for other in readers)

    def _combined(self, writer: Combined, reader: Combined, path: str) -> Iterator[Difference]:
        if not _may_become(writer, reader):
            yield Difference("COMBINED_TYPE_CHANGED", path, f"'{writer.criterion}' has become '{reader.criterion}'")
            return
        if reader.criterion == "allOf" and len(reader.parts) > len(writer.parts):
            yield Difference("PRODUCT_TYPE_EXTENDED", f"{path}/allOf", "More schemas must be met")
        if reader.criterion != "allOf" and len(reader.parts) < len(writer.parts):
            yield Difference("SUM_TYPE_NARROWED", f"{path}/{reader.criterion}", "There are fewer alternatives")
        if self._matched(writer.parts, reader.parts) < min(len(writer.parts), len(reader.parts)):
            yield Difference(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                f"{path}/{reader.criterion}",
                "A schema among them has no compatible counterpart",
            )

    def _matched(self, writers: Sequence["Shape | Source"], readers: Sequence["Shape | Source"]) -> int:
        """Return the number of pairs in a largest matching of compatible schemas (augmenting paths)."""
        edges = [[j for j, reader in enumerate(readers) if self._accepts(writer, reader)] for writer in writers]
        partner: dict[int, int] = {}

        def augment(i: int, seen: set[int]) -> bool:
            for j in edges[i]:
                if j not in seen:
                    seen.add(j)
                    if j not in partner or augment(partner[j], seen):
                        partner[j] = i
                        return True
            return False

        return sum(augment(i, set()) for i in range(len(writers)))

    # -- Types -------------------------------------------------------------------------------------------------------

    def _typed(self, writer: Typed, reader: Typed, path: str) -> Iterator[Difference]:
        old, new = writer.source, reader.source
        match reader.type:
            case "string":
                yield from _bounds(old, new, path, upper=("maxLength",), lower=("minLength",))
                if new.get("pattern") is not None and old.get("pattern") != new.get("pattern"):
                    kind = "PATTERN_ADDED" if old.get("pattern") is None else "PATTERN_CHANGED"
                    yield Difference(kind, f"{path}/pattern", "The pattern is new or another one")
            case "number" | "integer":
                yield from _numbers(writer, reader, path)
            case "object":
                yield from self._object(old, new, path)
            case "array":
                yield from self._array(old, new, path)

    def _object(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Difference]:
        yield from self._required(old, new, path)
        yield from self._properties(old, new, path)
        yield from self._dependencies(old, new, path)
        yield from self._further(
            _further_properties(old),
            _further_properties(new),
            f"{path}/additionalProperties",
            "ADDITIONAL_PROPERTIES",
        )
        yield from _bounds(old, new, path, upper=("maxProperties",), lower=("minProperties",))

    def _required(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Difference]:
        before, after = _required_of(old), _required_of(new)
        properties = new.get("properties", {})
        for name in old.get("properties", {}):
            if name in after and name not in before and name in properties and not self._has_default(properties[name]):
                yield Difference("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}", f"'{name}' is now required")

    def _properties(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Difference]:
        before, after, required = old.get("properties", {}), new.get("properties", {}), _required_of(new)
        for name in (*before, *(each for each in after if each not in before)):
            where = f"{path}/properties/{name}"
            if name not in after:
                yield from self._removed(before[name], self._model(new, name), where, "PROPERTY")
            elif name in before:
                yield from self.compare(before[name], after[name], where)
            else:
                model = None if _is_vague(old, "unevaluatedProperties") else self._model(old, name)
                yield from self._added(model, after[name], where, "PROPERTY")
                if model is not None and name in required and not self._has_default(after[name]):
                    yield Difference(
                        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", where, f"'{name}' is new and required"
                    )

    def _model(self, source: Mapping[str, Any], name: str) -> Source | None:
        """Return the schema of a property that is not named; None: the content model is open."""
        patterns = source.get("patternProperties", {})
        for pattern, schema in patterns.items():
            self._steps.take(PATTERN_STEPS)
            if _matches(pattern, name):
                found: Source = schema
                return found
        further = _further_properties(source)
        if further is True:
            return None if not patterns else True
        return further

    def _removed(self, old: Source, model: Source | None, where: str, what: str) -> Iterator[Difference]:
        """Yield the differences of a part that the reader has no schema for; `model` stands in for it."""
        if model is None or self._accepts(old, model):
            return
        kind = "REMOVED_FROM_CLOSED_CONTENT_MODEL"
        if model is not False:
            kind = "REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        yield Difference(f"{what}_{kind}", where, "It is removed, and the schema does not accept it any more")

    def _added(self, model: Source | None, new: Source, where: str, what: str) -> Iterator[Difference]:
        """Yield the differences of a part that the writer has no schema for; `model` stands in for it."""
        if model is None:
            if not isinstance(self._shape(self._reader.follow(new)), Anything):
                yield Difference(
                    f"{what}_ADDED_TO_OPEN_CONTENT_MODEL", where, "It is new, and earlier data may have anything there"
                )
        elif not self._accepts(model, new):
            yield Difference(
                f"{what}_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                where,
                "It is new, and does not accept what earlier data may have there",
            )

    def _has_default(self, source: Source) -> bool:
        found = self._reader.follow(source)
        return any(isinstance(each, Mapping) and "default" in each for each in (source, found))

    def _dependencies(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Difference]:
        before, after = _dependencies_of(old), _dependencies_of(new)
        for name, wanted in after.items():
            where, known = f"{path}/dependencies/{name}", before.get(name)
            if isinstance(wanted, list):
                if not isinstance(known, list):
                    yield Difference("DEPENDENCY_ARRAY_ADDED", where, f"'{name}' now needs other properties")
                elif not set(wanted) <= set(known):
                    kind = "EXTENDED" if set(known) <= set(wanted) else "CHANGED"
                    yield Difference(f"DEPENDENCY_ARRAY_{kind}", where, f"'{name}' now needs other properties")
            elif known is None or isinstance(known, list):
                yield Difference("DEPENDENCY_SCHEMA_ADDED", where, f"'{name}' now needs a schema to be met")
            else:
                yield from self.compare(known, wanted, where)

    def _further(self, old: Source, new: Source, path: str, what: str) -> Iterator[Difference]:
        """Yield the differences of what is allowed beside named properties, or beyond listed items."""
        if new is False and old is not False:
            yield Difference(f"{what}_REMOVED", path, "No others are allowed any more")
        elif old is False or new is True:
            return
        elif old is True:
            if not isinstance(self._shape(self._reader.follow(new)), Anything):
                yield Difference(f"{what}_NARROWED", path, "Others must meet a schema now")
        else:
            yield from self.compare(old, new, path)

    def _array(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Difference]:
        (before, old_rest), (after, new_rest) = _items_of(old), _items_of(new)
        for index in range(max(len(before), len(after))):
            where = f"{path}/items/{index}"
            if index >= len(after):
                yield from self._removed(before[index], None if new_rest is True else new_rest, where, "ITEM")
            elif index < len(before):
                yield from self.compare(before[index], after[index], where)
            else:
                is_open = old_rest is True or _is_vague(old, "unevaluatedItems")
                yield from self._added(None if is_open else old_rest, after[index], where, "ITEM")
        if before or after:
            yield from self._further(old_rest, new_rest, f"{path}/additionalItems", "ADDITIONAL_ITEMS")
        else:
            yield from self.compare(old_rest, new_rest, f"{path}/items")
        yield from _bounds(old, new, path, upper=("maxItems", "maxContains"), lower=("minItems", "minContains"))
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            yield Difference("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "Items must be unique now")


def _further_properties(source: Mapping[str, Any]) -> Source:
    """Return the schema of properties that are not named."""
    found: Source = source.get("additionalProperties", source.get("unevaluatedProperties", True))
    return found


def _is_vague(source: Mapping[str, Any], keyword: str) -> bool:
    """Return whether other schemas say, too, what is unevaluated."""
    return keyword in source and not _BESIDE.isdisjoint(source)


def _is_of(value: Any, kind: str) -> bool:
    """Return whether a value is of a type."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return kind == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")


def _may_become(writer: Combined, reader: Combined) -> bool:
    """Return whether a criterion may be replaced by another one."""
    if writer.criterion == reader.criterion or reader.criterion == "anyOf":
        return True
    is_single = len(writer.parts) == 1
    return is_single and (reader.criterion == "oneOf" or len(reader.parts) == 1)


def _is_same_type(writer: str, reader: str) -> bool:
    return writer == reader or {writer, reader} == {"number", "integer"}


def _required_of(source: Mapping[str, Any]) -> frozenset[str]:
    required = source.get("required")
    return frozenset(map(str, required)) if isinstance(required, list) else frozenset()


def _dependencies_of(source: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        if isinstance(source.get(keyword), Mapping):
            found.update(source[keyword])
    return found


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern is found in a name; one that RE2 does not know matches nothing.

    Raises InvalidSchema: RE2 is not installed.
    """
    try:
        with needed("a pattern in a JSON Schema"):
            import re2
    except MissingExtra as error:
        raise InvalidSchema(str(error)) from None
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options).search(name) is not None
    except (re2.error, UnicodeError):
        return False
    finally:
        re2.purge()  # the module would keep the last 128 patterns in a cache


def _items_of(source: Mapping[str, Any]) -> tuple[Sequence[Source], Source]:
    """Return the schemas of items by position, and that of the others."""
    others = source.get("unevaluatedItems", True)
    items = source.get("items", others)
    if "prefixItems" in source:
        return source["prefixItems"], items
    if isinstance(items, list):
        return items, source.get("additionalItems", others)
    return (), items


def _bounds(
    old: Mapping[str, Any], new: Mapping[str, Any], path: str, *, upper: Sequence[str], lower: Sequence[str]
) -> Iterator[Difference]:
    """Yield the bounds that are new or tighter."""
    is_tighter: Callable[[Any, Any], bool]
    for names, is_tighter, word in ((upper, _is_less, "DECREASED"), (lower, _is_more, "INCREASED")):
        for name in names:
            before, after = old.get(name), new.get(name)
            if after is None:
                continue
            snake = "".join(f"_{each}" if each.isupper() else each for each in name).upper()
            if before is None:
                yield Difference(f"{snake}_ADDED", f"{path}/{name}", f"'{name}' is new")
            elif is_tighter(after, before):
                yield Difference(f"{snake}_{word}", f"{path}/{name}", f"'{name}' is tighter")


def _is_less(one: Any, other: Any) -> bool:
    return bool(one < other)


def _is_more(one: Any, other: Any) -> bool:
    return bool(one > other)


def _numbers(writer: Typed, reader: Typed, path: str) -> Iterator[Difference]:
    old, new = _with_limits(writer.source), _with_limits(reader.source)
    yield from _bounds(old, new, path, upper=("maximum", "exclusiveMaximum"), lower=("minimum", "exclusiveMinimum"))
    before, after = old.get("multipleOf"), new.get("multipleOf")
    if after is not None and before != after:
        if before is None:
            yield Difference("MULTIPLE_OF_ADDED", f"{path}/multipleOf", "'multipleOf' is new")
        elif before % after:
            kind = "CHANGED" if after % before else "EXPANDED"
            yield Difference(f"MULTIPLE_OF_{kind}", f"{path}/multipleOf", "'multipleOf' is no divisor of the former")
    if reader.type == "integer" and writer.type == "number":
        yield Difference("TYPE_NARROWED", path, "Numbers must be integers now")


def _with_limits(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keywords of a number with exclusive limits as numbers: in draft 4 they are booleans."""
    found = dict(source)
    for exclusive, limit in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if isinstance(found.get(exclusive), bool):
            is_exclusive = found.pop(exclusive)
            if is_exclusive and limit in found:
                found[exclusive] = found.pop(limit)
    return found
