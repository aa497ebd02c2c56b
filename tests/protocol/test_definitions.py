"""Every message of clients in every version, beside the definitions in Apache Kafka's own jar.

They are newer than the independent implementation that `test_messages.py` compares bytes with.
"""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anabranch.protocol.registry import APIS
from anabranch.protocol.wire import ZERO_UUID, Kind, Versions, schema_of
from scripts.tools import KAFKA_VERSION
from tests.protocol.values import fields_of
from tests.support.tools import kafka_class_path

COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
KINDS = {"bool": Kind.BOOLEAN, **{kind.name.lower(): kind for kind in Kind if kind is not Kind.BOOLEAN}}
ZEROS = {Kind.BOOLEAN: False, Kind.STRING: "", Kind.BYTES: b"", Kind.UUID: ZERO_UUID, Kind.RECORDS: None}


class Shape(NamedTuple):
    """A field in one version."""

    name: str
    element: Any
    """A kind, or the fields of a structure in their order, those without a tag first."""
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    """Only of single primitive values."""


@cache
def definitions() -> Mapping[str, Any]:
    """Return all definitions by the names of their messages."""
    jar = Path(kafka_class_path().removesuffix("*")) / f"kafka-clients-{KAFKA_VERSION}.jar"
    with zipfile.ZipFile(jar) as files:
        names = [name for name in files.namelist() if re.fullmatch(r"common/message/\w+\.json", name)]
        found = [json.loads(COMMENT.sub("", files.read(name).decode())) for name in names]
    return {each["name"]: each for each in found}


def kafkas(fields: list[Any], shared: Mapping[str, Any], version: int) -> Iterator[Shape]:
    for field in sorted(fields, key=lambda field: field.get("tag", -1)):
        if version not in Versions.parse(field["versions"]):
            continue
        element = field["type"].removeprefix("[]")
        is_array = field["type"].startswith("[]")
        kind = KINDS.get(element)
        inner = () if kind else tuple(kafkas(field.get("fields") or shared[element], shared, version))
        tagged = Versions.parse(field.get("taggedVersions"))
        yield Shape(
            field["name"].lower(),
            kind or inner,
            is_array,
            version in Versions.parse(field.get("nullableVersions")),
            field["tag"] if version in tagged else None,
            default_of(kind, field.get("default")) if kind and not is_array else None,
        )


def default_of(kind: Kind, text: Any) -> Any:
    if text is None or text == "":
        return ZEROS.get(kind, 0)
    if text == "null":
        return None
    if kind is Kind.BOOLEAN:
        return str(text).lower() == "true"
    return text if kind is Kind.STRING else int(str(text), 0)


def ours(message: type, version: int) -> Iterator[Shape]:
    for field in sorted(fields_of(message, version), key=lambda field: field.tag):
        is_primitive = isinstance(field.element, Kind)
        yield Shape(
            field.name.replace("_", ""),
            field.element if isinstance(field.element, Kind) else tuple(ours(field.element, version)),
            field.is_array,
            version in field.nullable,
            field.tag if version in field.tagged else None,
            field.default if is_primitive and not field.is_array else None,
        )


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_messages_are_as_apache_kafka_defines_them(api: Any) -> None:
    for message in (api.request, api.response):
        definition = definitions()[message.__name__]
        schema = schema_of(message)
        flexible = Versions.parse(definition["flexibleVersions"])
        shared = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
        for version in range(api.min_version, api.max_version + 1):
            assert version in Versions.parse(definition["validVersions"])
            assert (version in schema.flexible) == (version in flexible), (message, version)
            theirs = list(kafkas(definition["fields"], shared, version))
            assert list(ours(message, version)) == theirs, (message, version)
