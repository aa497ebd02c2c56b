"""Pipelines whose values have the ids of their schemas in headers of records, or in a frame of their vendor."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.decode import DecoderFactory
from anabranch.spark.pipeline.errors import UnusableSchema
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.spark.pipeline.toml_file import read_pipeline
from anabranch.tables.framing import Framing
from tests.spark.pipeline.registry_server import running_registry
from tests.spark.pipeline.test_decoders import NEWER, PLAIN, avro
from tests.tables.test_framing import GUID, OTHER, glue

OLD = {"carrier": "AA", "delay": 5}
ROW = {**OLD, "gate": None}


def section(**settings: Any) -> DecodeSection:
    return DecodeSection.model_validate({"format": "avro", **settings})


@pytest.mark.spark
@pytest.mark.slow
def test_avro_with_ids_in_headers_and_with_glues_frame(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "new.avsc").write_text(json.dumps(NEWER))
    (tmp_path / "old.avsc").write_text(json.dumps(PLAIN))
    body = avro(PLAIN, OLD)
    guid, eight = b"\1" + GUID.bytes, (1).to_bytes(8, "big")
    with running_registry() as server:
        first, _ = server.add("s", PLAIN), server.add("s", NEWER)
        assert first == 1
        server.guids[str(GUID)] = {"schema": json.dumps(PLAIN)}
        registry = {"registry": server.url, "subject": "s"}
        glued = {"schema_file": str(tmp_path / "new.avsc"), "schemas": {str(OTHER).upper(): str(tmp_path / "old.avsc")}}
        for settings, name, header, value, name_of in (
            ({**registry, "header": "confluent-header"}, "decode", guid, body, "__value_schema_id"),
            ({**registry, "header": "confluent-header"}, "key", guid, body, "__key_schema_id"),
            ({**registry, "header": "apicurio-header"}, "decode", eight, body, "apicurio.value.contentId"),
            ({**registry, "header": "apicurio-8-byte"}, "decode", b"", b"\0" + eight + body, ""),
            ({**glued, "header": "glue"}, "decode", b"", glue(body, version=OTHER), ""),
        ):  # fmt: skip
            decoding = DecoderFactory(name, section(**settings), "s").current()
            assert decoding is not None
            rows = [(0, bytearray(value), [(name_of, bytearray(header))]), (1, None, None), (2, bytearray(b"\5"), None)]
            given = spark.createDataFrame(rows, "at int, v binary, headers array<struct<key: string, value: binary>>")
            found = given.select("at", decoding.column(f.col("v")).alias("d")).orderBy("at").collect()
            assert found[0]["d"].asDict(recursive=True) == {"data": ROW, "error": None}, settings
            assert tuple(found[1]["d"]) == (None, None)
            assert found[2]["d"]["error"].startswith("no ")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"header": "glue"}, "the registry of Glue is not asked: name a schema_file"),
        ({"format": "protobuf", "header": "apicurio-8-byte"}, "messages of protobuf are found by Confluent's headers"),
        (
            {"format": "json", "strict": False, "header": "confluent-header"},
            "without strict decoding there is none",
        ),
        ({"schemas": {"7": "x"}}, "has no effect: only avro with a schema_file and a header"),
        ({"schema_file": "x", "header": "glue", "schemas": {"x": "x"}}, "String should match pattern"),
        (
            {"header": "avro"},
            "Input should be 'none', 'confluent', 'confluent-header', 'apicurio-8-byte'",
        ),
    ],
)
def test_headers_that_do_not_fit_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        section(**settings)


def test_files_of_schemas_are_beside_the_pipelines(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        'checkpoint = "c"\n[source]\ntopics = ["t"]\n[table]\nname = "lake.db.t"\n[decode]\nformat = "avro"\n'
        f'schema_file = "new.avsc"\nheader = "glue"\n[decode.schemas]\n{OTHER} = "old.avsc"\n'
    )
    settings = read_pipeline(path).decode
    assert (settings.framing, settings.schemas) == (Framing.GLUE, {str(OTHER): str(tmp_path / "old.avsc")})
    for content, error in ((None, "No such file or directory"), ('{"type": "x"}', "not an Avro schema")):
        if content is not None:
            (tmp_path / "old.avsc").write_text(content)
        with pytest.raises(UnusableSchema, match=f"^decode.schemas.{OTHER}: .*{error}"):
            DecoderFactory("decode", settings, "")
