"""Work with schemas of any format, in a thread: the event loop does not wait for large schemas or a compiler.

It is one thread, since threads share the interpreter with the event loop. Schemas that were parsed last are kept.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from anabranch.broker.kafka.schemas.compatibility import Earlier, Parsed, problems
from anabranch.broker.kafka.schemas.formats.avro import AvroSchema
from anabranch.broker.kafka.schemas.formats.json_schema import JsonSchema
from anabranch.broker.kafka.schemas.formats.protobuf import Compile, ProtobufSchema
from anabranch.broker.kafka.schemas.model import (
    SCHEMA_CHARACTERS_MAX,
    ErrorKind,
    InvalidSchema,
    Kind,
    Level,
    RegistryError,
    Resolved,
    Schema,
)

PARSED_CHARACTERS_MAX: Final = 4 << 20
"""Characters of the schemas that are kept, with those that they refer to. Parsed, they take ten times the memory."""

T = TypeVar("T")
_Place = tuple[Schema, tuple[tuple[str, str], ...]]
"""A schema, with names and texts of those that it refers to."""


class SchemaParser:
    """Parses and compares schemas. `compile_protobuf` is None where protobuf is not installed."""

    def __init__(self, compile_protobuf: Compile | None) -> None:
        self._compile = compile_protobuf
        self._parsed: OrderedDict[_Place, Parsed] = OrderedDict()
        self._characters = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")

    def close(self) -> None:
        """Begin no further work."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def kinds(self) -> Sequence[Kind]:
        """Formats that can be parsed here."""
        return [Kind.JSON, Kind.AVRO] if self._compile is None else [Kind.JSON, Kind.PROTOBUF, Kind.AVRO]

    async def parse(self, resolved: Resolved) -> Parsed:
        """Return a parsed schema. Raises RegistryError."""
        schema = resolved.schema
        place = (schema, tuple(resolved.texts.items()))
        found = self._parsed.get(place)
        if found is None:
            _check_size(resolved)
            found = await self._in_thread(lambda: self._parse(resolved))
            self._keep(place, found)
        else:
            self._parsed.move_to_end(place)
        return found

    def _keep(self, place: _Place, parsed: "Parsed") -> None:
        """Remember a parsed schema, and forget those that were not used for the longest time."""
        if place in self._parsed:
            return  # another request was faster
        self._parsed[place] = parsed
        self._characters += _characters(place)
        while self._characters > PARSED_CHARACTERS_MAX:
            oldest, _ = self._parsed.popitem(last=False)
            self._characters -= _characters(oldest)

    async def normal_text(self, parsed: Parsed) -> str:
        """Return a schema in the normal form of its format. Raises RegistryError."""
        return await self._in_thread(lambda: parsed.normal)

    async def compare(self, new: Parsed, earlier: Sequence[Earlier], level: Level) -> list[str]:
        """Return the reasons why a schema is not compatible with earlier versions (`compatibility.problems`)."""
        return await self._in_thread(lambda: problems(new, earlier, level))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RecursionError:
            raise InvalidSchema("it is nested too deep") from None

    def _parse(self, resolved: Resolved) -> Parsed:
        kind = resolved.schema.kind
        if kind is not Kind.PROTOBUF:
            return AvroSchema(resolved) if kind is Kind.AVRO else JsonSchema(resolved)
        if self._compile is None:
            raise InvalidSchema("protobuf is not served here: install anabranch[protobuf] on all nodes")
        return ProtobufSchema(resolved, self._compile)


def _characters(place: _Place) -> int:
    schema, texts = place
    return len(schema.text) + sum(len(text) for _, text in texts)


def _check_size(resolved: Resolved) -> None:
    if not resolved.schema.text.strip():
        raise RegistryError(ErrorKind.INVALID_SCHEMA, "Empty schema")
    size = len(resolved.schema.text) + sum(map(len, resolved.texts.values()))
    if size > SCHEMA_CHARACTERS_MAX:
        raise RegistryError(
            ErrorKind.SCHEMA_TOO_LARGE,
            f"Schema has {size} characters with those that it refers to; at most {SCHEMA_CHARACTERS_MAX} are possible",
        )
