"""`anabranch spark status`: checkpoints as Spark writes them, and the offsets of a real node. No Java is started."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from anabranch.spark.cli import main
from tests.support.events import Event, send

T0 = 1_700_000_000_000
FILE = """\
name = "flights"
checkpoint = "{checkpoint}"
[source]
bootstrap_servers = "{servers}"
topics = ["{topic}"]
{more}
[table]
name = "lake.db.flights"
"""
NO_JAVA = {"JAVA_HOME": None, "PATH": "/nowhere", "ANABRANCH_CACHE": "/nowhere"}
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000050000,"conf":{}}'


def write(
    folder: Path, servers: str = "127.0.0.1:1", topic: str = "t", checkpoint: str = "checkpoint", more: str = ""
) -> str:
    path = folder / "flights.toml"
    path.write_text(FILE.format(servers=servers, topic=topic, checkpoint=checkpoint, more=more))
    return str(path)


def make_checkpoint(folder: Path, offsets: list[object], commits: int) -> Path:
    """A checkpoint with micro-batches of those offsets, of which the first `commits` are done."""
    checkpoint = folder / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"2b8a"}')
    for number, each in enumerate(offsets):
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{METADATA}\n{json.dumps(each)}")
        (checkpoint / "offsets" / f".{number}.crc").write_text("crc")
    for number in range(commits):
        file = checkpoint / "commits" / str(number)
        file.write_text('v1\n{"nextBatchWatermarkMs":0}')
        os.utime(file, (T0 / 1000, T0 / 1000))
    return checkpoint


def status(path: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["status", path, *arguments], env=NO_JAVA)


def found(path: str) -> Any:
    result = status(path, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.interop
def test_a_pipeline_that_is_behind(servers: str, topic: str, tmp_path: Path) -> None:
    send(servers, topic, [Event(n % 2, b"v", timestamp_ms=T0 + n * 1000) for n in range(10)])
    make_checkpoint(tmp_path, [{topic: {"0": 1, "1": 1}}, {topic: {"0": 3, "1": 5}}, {topic: {"0": 5, "1": 5}}], 2)
    path = write(tmp_path, servers, topic)
    first = found(path)
    ages = [each.pop("lag_ms") for each in first["partitions"]]
    assert first.pop("lag_ms") == ages[0]
    # The first record of partition 0 that is not done is the one of T0 + 6000.
    assert ages[0] > 86_400_000
    assert ages[1:] == [0, 0]
    assert first == {
        "pipeline": "flights",
        "table": "lake.db.flights",
        "checkpoint": str(tmp_path / "checkpoint"),
        "query": "2b8a",
        "batch": 1,
        "committed_ms": T0,
        "planned": {"batch": 2, "planned_ms": T0 + 50_000},
        "lag": 2,
        "lag_unknown": None,
        "partitions": [
            {"topic": topic, "partition": 0, "done": 3, "end": 5, "lag": 2},
            {"topic": topic, "partition": 1, "done": 5, "end": 5, "lag": 0},
            {"topic": topic, "partition": 2, "done": None, "end": 0, "lag": 0},
        ],
    }
    assert yaml.safe_load(status(path, "--output", "yaml").stdout)["partitions"][0]["done"] == 3
    lines = status(path).stdout.splitlines()
    assert lines[0] == "flights  lake.db.flights"
    assert lines[1].startswith("micro-batch 1 was done at 2023-11-14T22:13:20Z, ")
    assert lines[2].startswith("micro-batch 2 was planned at 2023-11-14T22:14:10Z, ")
    assert lines[2].endswith(" d ago, and is not done: it is being written, or its driver has stopped")
    assert lines[3].startswith("lag 2 offsets, ")
    assert lines[4].split() == ["topic", "partition", "done", "end", "lag", "lag", "in", "time"]
    assert lines[5].split()[:5] == [topic, "0", "3", "5", "2"]
    assert lines[7].split() == [topic, "2", "-", "0", "0", "0.0", "s"]


@pytest.mark.interop
def test_a_topic_that_the_query_has_not_begun(servers: str, topic: str, tmp_path: Path) -> None:
    send(servers, topic, [Event(0, b"v", timestamp_ms=T0)])
    make_checkpoint(tmp_path, [{}], 1)
    values = found(write(tmp_path, servers, topic))
    assert [(each["done"], each["lag"]) for each in values["partitions"]] == [(None, 1), (None, 0), (None, 0)]


@pytest.mark.interop
def test_a_topic_that_was_created_anew(servers: str, topic: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, [{topic: {"0": 9, "1": 0, "2": 0}}], 1)
    lines = status(write(tmp_path, servers, topic)).stdout.splitlines()
    assert lines[-1] == f"{topic}-0 ends before what is done of it: the topic has been created anew since"


def test_before_the_first_run_and_during_the_first_micro_batch(tmp_path: Path) -> None:
    path = write(tmp_path)  # no broker is asked
    folder = tmp_path / "checkpoint"
    result = status(path)
    assert (result.exit_code, result.stdout) == (
        0, f"flights  lake.db.flights\nit has not run yet: there is no checkpoint in {folder}\n",
    )  # fmt: skip
    values = found(path)
    assert (values["query"], values["batch"], values["lag"], values["partitions"]) == (None, None, None, [])
    make_checkpoint(tmp_path, [{"t": {"0": 1}}], 0)
    lines = status(path).stdout.splitlines()
    assert lines[1] == "no micro-batch is done yet"
    assert lines[2].startswith("micro-batch 0 was planned at 2023-11-14T22:14:10Z, ")
    assert found(path)["planned"]["batch"] == 0


def test_only_offsets_of_the_direct_source_are_known(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, [{"t": {"0": 4, "id": "00ff"}}], 1)
    path = write(tmp_path, more='kind = "direct"\noptions = { dataDir = "data" }')
    values = found(path)
    assert values["lag_unknown"] == "the direct source has no broker to ask"
    assert values["partitions"] == [
        {"topic": "t", "partition": 0, "done": 4, "end": None, "lag": None, "lag_ms": None}
    ]  # fmt: skip
    assert "the lag is not known: the direct source has no broker to ask" in status(path).stdout


def test_properties_that_only_java_can_use_leave_the_lag_unknown(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, [{"t": {"0": 4}}], 1)
    path = write(
        tmp_path, more='options = { "kafka.security.protocol" = "SASL_PLAINTEXT", "kafka.sasl.mechanism" = "GSSAPI" }'
    )
    assert found(path)["lag_unknown"].startswith("property sasl.mechanism")


@pytest.mark.parametrize("url", ["s3a://lake/checkpoint", "hdfs://host:8020/checkpoint"])
def test_a_checkpoint_that_only_hadoop_can_read_is_refused(url: str, tmp_path: Path) -> None:
    path = write(tmp_path, checkpoint=url)
    result = status(path)
    scheme = url.partition(":")[0]
    said = (
        f"Error: {path}:2: checkpoint: a checkpoint on {scheme}: cannot be read without Spark, only a folder of "
        "this machine; a running pipeline shows its lag with operations.metrics_port\n"
    )
    assert (result.exit_code, result.output) == (2, said)


def test_a_checkpoint_may_be_a_url_of_a_folder(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, [{"t": {"0": 1}}], 0)
    assert found(write(tmp_path, checkpoint=f"file://{tmp_path}/checkpoint"))["query"] == "2b8a"


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, [{"t": {"0": 1}}], 1)
    result = status(write(tmp_path))
    assert (result.exit_code, result.output) == (
        1, "Error: cannot connect to 127.0.0.1:1: Connection refused; is the node running?\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("metadata", "not JSON", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("offsets/0", "v2\n{}", "expected offsets of version v1, found 'v2'"),
        ("offsets/0", f'v1\n{METADATA}\n{{"t"', "not JSON: Expecting ':' delimiter: line 1 column 5 (char 4)"),
    ],
)
def test_a_damaged_checkpoint_is_named_in_one_line(file: str, text: str, error: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, [{"t": {"0": 1}}], 1)
    (checkpoint / file).write_text(text)
    result = status(write(tmp_path))
    assert (result.exit_code, result.output) == (1, f"Error: {checkpoint / file}: {error}\n")


def test_each_command_with_a_result_prints_it_in_three_forms() -> None:
    option = next(each for each in main.commands["status"].params if each.name == "output")
    assert list(getattr(option.type, "choices", ())) == ["table", "json", "yaml"]
