"""Parsing of the configs of topics that are tables."""

import base64
from collections.abc import Mapping

import pytest

from anabranch.s3stream.catalog.table_values import TableRetention
from anabranch.tables.framing import Framing
from anabranch.tables.requests import Asked, Registry
from anabranch.tables.upkeep.options import DEFAULTS, PartOptions, TableOptions

REGISTRY = Registry("http://registry")


def parse(configs: Mapping[str, str]) -> TableOptions | None:
    return TableOptions.parse(lambda name: configs.get(name, DEFAULTS[name]))


def test_a_topic_is_no_table_until_it_is_asked_for() -> None:
    assert parse({}) is None
    assert parse({"table.value": "avro"}) is None
    found = parse({"table.enable": "true"})
    assert found == TableOptions(
        PartOptions(), PartOptions(), 60_000, 256 << 20, 24 * 60 * 60_000, TableRetention.TOPIC
    )


def test_every_config_counts() -> None:
    found = parse(
        {
            "table.enable": "true",
            "table.value": "protobuf",
            "table.value.schema": base64.b64encode(b"descriptors").decode(),
            "table.value.message": "shop.Order",
            "table.key": "avro",
            "table.key.subject": "keys",
            "table.key.framing": "apicurio-8-byte",
            "table.commit.interval.ms": "1000",
            "table.target.file.bytes": "2000",
            "table.snapshot.retention.ms": "3000",
            "table.retention": "keep",
            "table.compression.type": "lz4",
        }
    )
    assert found is not None
    assert found.value.asked("orders-value", REGISTRY) == Asked(
        "protobuf", b"descriptors", None, "orders-value", "shop.Order"
    )
    assert found.key.asked("orders-key", REGISTRY) == Asked(
        "avro", None, REGISTRY, "keys", framing=Framing.APICURIO_8_BYTE
    )
    assert (found.commit_interval_ms, found.target_file_bytes, found.snapshot_retention_ms) == (1000, 2000, 3000)
    assert (found.retention, found.codec) == (TableRetention.KEEP, "lz4")


def test_a_published_table_keeps_its_snapshots_for_readers_that_are_behind() -> None:
    configs = {"table.enable": "true", "table.publish": "lake", "table.snapshot.retention.ms": "3599999"}
    with pytest.raises(ValueError, match=r"^table\.snapshot\.retention\.ms=3599999: expected at least 3600000 with"):
        parse(configs)
    found = parse(configs | {"table.snapshot.retention.ms": "3600000"})
    assert found is not None
    assert found.publish == "lake"


@pytest.mark.parametrize(
    ("part", "registry"),
    [
        (PartOptions("raw"), None),
        (PartOptions("json"), None),
        (PartOptions("json", subject="mine"), REGISTRY),
        (PartOptions("json", schema="{}", subject="mine"), None),
        (PartOptions("avro"), REGISTRY),
        (PartOptions("auto"), REGISTRY),
    ],
)
def test_only_those_with_a_registered_schema_ask_the_registry(part: PartOptions, registry: Registry | None) -> None:
    assert part.asked("orders-value", REGISTRY).registry == registry


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"table.value": "xml"}, "table.value=xml: expected one of raw, json, avro, protobuf, auto"),
        ({"table.value.schema": "{}"}, "table.value.schema: set, but table.value=raw uses none"),
        ({"table.key": "auto", "table.key.schema": "{}"}, "table.key.schema: set, but table.key=auto uses none"),
        ({"table.value": "protobuf", "table.value.schema": "a-"}, "table.value.schema: expected a descriptor set in"),
        ({"table.value.encodings": "{}"}, "table.value.encodings: set, but only JSON with a schema has encodings"),
        (
            {"table.key": "json", "table.key.subject": "k", "table.key.encodings": '["at"]'},
            "table.key.encodings: expected an object with a text for each field",
        ),
        (
            {"table.value": "json", "table.value.schema": "{}", "table.value.encodings": "at"},
            "table.value.encodings: Expecting value",
        ),
        (
            {"table.value": "avro", "table.value.framing": "x"},
            "table.value.framing=x: expected one of none, confluent,",
        ),
        ({"table.key": "json", "table.key.framing": "none"}, "table.key.framing=none: set, but there is no schema"),
        (
            {"table.value": "avro", "table.value.framing": "glue"},
            "table.value.framing=glue: the registry of Glue is not",
        ),
        (
            {"table.value": "protobuf", "table.value.framing": "apicurio-header"},
            "table.value.framing=apicurio-header: messages of protobuf are found by Confluent's headers only",
        ),
        ({"table.retention": "delete"}, "table.retention=delete: expected one of topic, keep"),
    ],
)
def test_what_cannot_be_done_is_refused(configs: Mapping[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match="^" + reason):
        parse({"table.enable": "true", **configs})
