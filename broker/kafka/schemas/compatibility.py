"""Levels of compatibility: which earlier versions a new schema is compared with, and in which direction."""

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.broker.kafka.schemas.formats import avro, json_schema, protobuf
from anabranch.broker.kafka.schemas.formats.avro import AvroSchema
from anabranch.broker.kafka.schemas.formats.json_schema import JsonSchema
from anabranch.broker.kafka.schemas.formats.protobuf import ProtobufSchema
from anabranch.broker.kafka.schemas.model import Difference, InvalidSchema, Level, Steps, TooComplex

Parsed = AvroSchema | JsonSchema | ProtobufSchema
"""A schema of any format."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier version of a subject."""

    version: int
    text: str
    parsed: Parsed


def problems(new: Parsed, earlier: Sequence[Earlier], level: Level) -> list[str]:
    """Return the reasons why a new schema is not compatible with earlier versions, in their order; empty: it is.

    The list ends with the version that it is not compatible with, its text, and the level, as in Confluent's messages.
    """
    if level is Level.NONE:
        return []
    for each in reversed(earlier if level.is_transitive else earlier[-1:]):
        found: list[Difference] = []
        if level.reads_earlier:
            found += differences(each.parsed, new)
        if level.is_read_by_earlier:
            found += differences(new, each.parsed)
        if found:
            return [
                *(str(difference) for difference in dict.fromkeys(found)),
                f"{{oldSchemaVersion: {each.version}}}",
                f"{{oldSchema: '{each.text}'}}",
                f"{{compatibility: '{level}'}}",
            ]
    return []


def differences(writer: Parsed, reader: Parsed) -> list[Difference]:
    """Return the reasons why data written with one schema cannot be read with another one."""
    steps = Steps()
    try:
        if isinstance(writer, AvroSchema) and isinstance(reader, AvroSchema):
            return avro.differences(writer, reader, steps)
        if isinstance(writer, JsonSchema) and isinstance(reader, JsonSchema):
            return json_schema.differences(writer, reader, steps)
        if isinstance(writer, ProtobufSchema) and isinstance(reader, ProtobufSchema):
            return protobuf.differences(writer, reader, steps)
    except (TooComplex, RecursionError):
        return [Difference("TOO_COMPLEX", "/", "The schemas take too many steps to be compared")]
    except InvalidSchema as error:  # a $ref that is followed only now
        return [Difference("INVALID_SCHEMA", "/", str(error))]
    return [Difference("SCHEMA_TYPE_CHANGED", "/", "The schema is of another format")]
