"""A pipeline's file: errors in it are reported in one line, with the line number in the file."""

import pickle
from pathlib import Path

import pytest

from anabranch.spark.pipeline.errors import PipelineError, SettingError
from anabranch.spark.pipeline.sections import LatePolicy, PartitionPeriod, TableFormat
from anabranch.spark.pipeline.toml_file import line_of, located, parse_pipeline, read_pipeline

FILE = Path("/pipes/flights.toml")
SMALL = """\
checkpoint = "checkpoint"

[source]
topics = ["flights"]

[table]
name = "lake.db.flights"
"""
FULL = """\
name = "flights"
checkpoint = "s3a://bucket/checkpoint"

[source]
bootstrap_servers = "a:1,b:2"
topics = [
  "flights",   # with [brackets] in a comment
  "more]",
]
starting_offsets = { flights = { 0 = 17 } }
offsets_per_batch_max = 1000
options = { "kafka.security.protocol" = "SSL", "kafka.max.poll.records" = 5, failOnDataLoss = false }

[decode]
format = "json"
schema_file = "flights.ddl"

[table]
format = "delta"
location = "table"
partition_by = "hour"
event_time = '''
to_timestamp(data.time_hour)
'''

[watermark]
delay = "1 hour"
late = "drop"

[trigger]
mode = "processing-time"
interval = "5 seconds"

[operations]
metrics_port = 0

[spark.conf]
"spark.sql.shuffle.partitions" = 4
"""


def test_a_small_file_has_defaults_beside_it() -> None:
    pipeline = parse_pipeline(SMALL, FILE)
    assert (pipeline.checkpoint, pipeline.catalog.warehouse) == ("/pipes/checkpoint", "/pipes/lake")
    assert (pipeline.table.format, pipeline.table.partition_by) == (TableFormat.ICEBERG, PartitionPeriod.DAY)
    assert (pipeline.table.catalog_name, pipeline.dead_letter_place) == ("lake", "lake.db.flights_dead_letters")
    assert not pipeline.has_dead_letters


@pytest.mark.parametrize(("kind", "warehouse"), [("rest", "prod"), ("jdbc", "/pipes/prod"), ("hadoop", "/pipes/prod")])
def test_a_warehouse_is_a_folder_unless_a_service_has_named_it(kind: str, warehouse: str) -> None:
    catalog = f'[catalog]\ntype = "{kind}"\nuri = "http://127.0.0.1:1"\nwarehouse = "prod"\n'
    assert parse_pipeline(SMALL + catalog, FILE).catalog.warehouse == warehouse


@pytest.mark.parametrize(("kind", "path"), [("direct", "/etc/data"), ("kafka", "data")])
def test_paths_of_the_direct_source_are_relative_to_the_file(kind: str, path: str) -> None:
    text = f"""checkpoint = "c"
        [source]
        kind = "{kind}"
        topics = ["t"]
        options = {{ dataDir = "data" }}
        [table]
        name = "l.d.t"
    """
    assert parse_pipeline(text, Path("/etc/p.toml")).source.options == {"dataDir": path}


def test_a_full_file() -> None:
    pipeline = parse_pipeline(FULL, FILE)
    assert pipeline.checkpoint == "s3a://bucket/checkpoint"
    assert pipeline.source.topics == ("flights", "more]")
    assert pipeline.source.starting_offsets == {"flights": {"0": 17}}
    assert pipeline.source.options == {
        "kafka.security.protocol": "SSL", "kafka.max.poll.records": "5", "failOnDataLoss": "false"
    }  # fmt: skip
    assert pipeline.table.event_time is not None
    assert pipeline.table.event_time.strip() == "to_timestamp(data.time_hour)"
    assert pipeline.decode.schema_file == "/pipes/flights.ddl"
    assert pipeline.dead_letter_place == "/pipes/table_dead_letters"
    assert pipeline.watermark is not None
    assert pipeline.watermark.late is LatePolicy.DROP
    assert pipeline.spark.conf == {"spark.sql.shuffle.partitions": "4"}


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 1),
        (("source", "offsets_per_batch_max"), 11),
        (("source", "starting_offsets", "flights", "0"), 10),
        (("source", "fail_on_data_loss"), 4),
        (("table", "event_time"), 22),
        (("watermark", "late"), 28),
        (("spark", "conf", "spark.sql.shuffle.partitions"), 38),
        (("compaction",), 1),
    ],
)
def test_the_line_of_a_setting(path: tuple[str, ...], line: int) -> None:
    assert line_of(FULL, path) == line


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "lake.db.flights"', 'name = "lake.db.flights', ":7: "),
        ("[table]", "[table", ":6: "),
        ('topics = ["flights"]', "topics = 7", ":4: source.topics = 7: input should be a list"),
        ('topics = ["flights"]', "topic = 7", ":4: source.topic is not a setting; [source] takes: kind, bootstrap"),
        ('topics = ["flights"]', "", ":3: source.topics: name either topics or a topic_pattern, and not both"),
        ('topics = ["flights"]', 'topics = ["a"]\ntopic_pattern = "b"', ":4: source.topics: name either"),
        ('topics = ["flights"]', 'topics = ["a"]\noffsets_per_batch_max = 0', ":5: source.offsets_per_batch_max = 0: "),
        (
            "[table]",
            "[maintenance]\nsnapshots_max = 9\n[table]",
            ":7: maintenance.snapshots_max = 9: less than snapshots_min = 10: raise it, or lower snapshots_min",
        ),
        ("lake.db.flights", "flights", ":7: table.name = 'flights': expected catalog.namespace.table"),
        ('name = "lake.db.flights"', 'format = "delta"', ":6: table: a table of format delta needs a location"),
        (
            'name = "lake.db.flights"',
            'format = "hudi"',
            ":7: table.format = 'hudi': input should be 'iceberg', 'delta'",
        ),
        ("[table]", '[trigger]\ninterval = "soon"\n[table]', ":7: trigger.interval = 'soon': expected a time such as"),
        (
            "[table]",
            '[decode]\nformat = "json"\nschema_file = "s"\nregistry = "r"\n[table]',
            ":9: decode.registry = 'r': the schema is either in a registry or in a schema_file: leave one of them out",
        ),
        ("[table]", "[watermark]\n[table]", ":6: watermark.delay is missing"),
        ('checkpoint = "checkpoint"', "", ":1: checkpoint is missing"),
        ("topics", "starting_offsets = 'x'\ntopics", ":4: source.starting_offsets = 'x': input should be 'earliest'"),
        (
            "topics",
            "starting_offsets = 'latest'\nstarting_time_ms = 5\ntopics",
            ":5: source.starting_time_ms = 5: begin either",
        ),
        (
            "[table]",
            "kind = 'direct'\n[operations]\nconsumer_group = 'g'\n[table]",
            ":8: operations.consumer_group = 'g': needs source.kind = 'kafka'",
        ),
        (
            "[table]",
            "[columns]\nselect = ['a..b']\n[table]",
            ":7: columns.select.0 = 'a..b': expected a field of the v",
        ),
        (
            "[table]",
            "[columns]\nselect = ['a']\n[table]",
            ":7: columns.select: has no effect: decode.format gives values",
        ),
        ("[table]", "[columns]\ntop = true\n[table]", ":7: columns.top is not a setting; [columns] takes: top_level,"),
        ("[table]", "[columns]\nrename = { a = 'b.c' }\n[table]", ":7: columns.rename.a = 'b.c': string should match"),
        (
            "[table]",
            "[decode]\nformat = 'json'\n[decode.encodings]\n'a.b' = 5\n[table]",
            ":9: decode.encodings.a.b = 5",
        ),
        ("[table]", "[table]\nhistory = true", ":7: table.history = True: has no effect: with mode = 'append'"),
        ("[table]", "[compress]\n[table]", ":6: compress is not a setting; the file takes: name, checkpoint, source"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, words: str) -> None:
    text = SMALL.replace(old, new)
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text, FILE)
    assert f"{FILE}{words}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
@pytest.mark.parametrize(
    ("section", "setting", "formats"),
    [
        ("watermark", "delay = '1 hour'", "parquet"),
        ("compaction", "batches = 5", "parquet"),
        ("compaction", "batches = 0", ""),
        ("compaction", "files_min = 5", "delta parquet"),
        ("maintenance", "enabled = false", "parquet"),
        ("maintenance", "orphan_age = '1 day'", "delta parquet"),
        ("maintenance", "snapshots_max = 500", "delta parquet"),
        ("catalog", "type = 'rest'", "delta parquet"),
        ("dead_letters", "name = 'a.b.c'", "delta parquet"),
        ("dead_letters", "location = 'dead'", ""),
        ("decode", "header = 'confluent'", "delta parquet"),
        ("decode", "subject = 's'", "delta parquet"),
        ("decode", "strict = false", "delta parquet"),
        ("trigger", "interval = '1 second'", "delta parquet"),
        ("operations", "metrics_host = '0.0.0.0'", "delta parquet"),
    ],
)
def test_what_would_have_no_effect_is_refused(table_format: str, section: str, setting: str, formats: str) -> None:
    text = SMALL.replace('name = "lake.db.flights"', f'format = "{table_format}"\nlocation = "table"')
    text += f"[{section}]\n{setting}\n"
    if table_format not in formats.split():
        parse_pipeline(text, FILE)
        return
    line = 9 if section == "watermark" else 10
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text, FILE)
    assert str(caught.value).startswith(f"{FILE}:{line}: {section}")


def test_a_parquet_table_is_not_rewritten() -> None:
    text = SMALL.replace(
        'name = "lake.db.flights"', 'format = "parquet"\nlocation = "table"\ntarget_file_bytes = 5_000_000'
    )
    with pytest.raises(
        PipelineError, match=r":9: table.target_file_bytes = 5000000: has no effect: small files are rewritten in"
    ):
        parse_pipeline(text, FILE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALL + '"a\\nb" = 1\n', r":6: table.'a\nb' is not a setting; [table] takes"),
        (SMALL + '["a\\u001bb"]\n', r":1: 'a\x1bb' is not a setting; the file takes"),
        (SMALL + 'options = { "x\\u001b.y" = 1 }\n', r":8: table.options.'x\x1b.y': a property of the table"),
        ("a = " + "[" * 5000, "values are nested too deeply"),
    ],
)
def test_whatever_the_names_are_the_error_is_one_line(text: str, words: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse_pipeline(text, FILE)
    assert words in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("topics", "kind = 'direct'\ntopic_pattern = 'p'\ntopics", ":6: source.topics: name either topics or"),
        (
            "[table]",
            "options = { 'kafka.sasl.password' = 'p' }\n[table]",
            ":6: source.options.kafka.sasl.password: a sec",
        ),
        ("[table]", "[decode]\nsubject = 'a@b'\n[table]", ":7: decode.subject: has no effect: there is no registry"),
        ("[table]", "[decode]\nregistry = 'http://r?token=t'\n[table]", ":7: decode.registry: has no effect"),
        (
            'topics = ["flights"]',
            "kind = 'direct'\ntopics = [\"flights\"]\n[key]\nformat = 'avro'",
            ":6: key.registry: the direct source has no node to ask: name the registry, or a schema_file",
        ),
        ("[table]", "[trigger]\ninterval = '1 hour'\n[table]", ":7: trigger.interval = '1 hour': has no effect"),
        ("[table]", "[operations]\nmetrics_host = 'h'\n[table]", ":7: operations.metrics_host = 'h': has no effect"),
        ("[table]", "[table]\nmode = 'changelog'", ":7: table.mode = 'changelog': changelog reads Debezium's"),
    ],
)
def test_settings_that_exclude_each_other_are_shown_unless_they_may_be_secret(old: str, new: str, words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(SMALL.replace(old, new), FILE)
    assert f"{FILE}{words}" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="No such file"):
        read_pipeline(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="not valid UTF-8"):
        read_pipeline(tmp_path / "binary.toml")


def test_fields_with_dots_in_their_names_have_lines(tmp_path: Path) -> None:
    text = f"{SMALL}[decode.encodings]\n'place.since' = 'days'\n\"at\" = 'x'\n[spark.conf]\n'spark.a.b' = '1'\n"
    for setting, line in (
        ("decode.encodings.place.since", 9), ("decode.encodings.at", 10), ("decode.encodings.other", 8),
        ("spark.conf.spark.a.b", 12), ("columns.cast.a.b", 1),
    ):  # fmt: skip
        (tmp_path / "p.toml").write_text(text)
        error = SettingError(setting, "wrong")
        assert located(error, tmp_path / "p.toml") == f"{tmp_path}/p.toml:{line}: {setting}: wrong"


def test_an_error_of_a_running_pipeline_names_the_line_of_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text("checkpoint = 'c'\n[decode]\nformat = 'avro'\nregistry = 'http://r'\n")
    error = SettingError("decode.registry", "subject t-value: gone")
    assert located(error, path) == f"{path}:4: decode.registry: subject t-value: gone"
    assert located(pickle.loads(pickle.dumps(error)), path) == located(error, path)
    assert located(SettingError("decode.schema_file", "gone"), path) == f"{path}:2: decode.schema_file: gone"
    assert located(PipelineError("the pipeline failed"), path) == "the pipeline failed"
    path.unlink()
    assert located(error, path) == f"{path}: decode.registry: subject t-value: gone"
