"""Errors before a session is started are reported in one clear line."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException, StreamingQueryException

from anabranch.broker.operator.cli.spark import spark as spark_command
from anabranch.spark import cli, jobs
from anabranch.spark.cli import main
from anabranch.spark.jars import all_jars, installed_spark_version, table_jars
from anabranch.spark.java import SessionError, find_java_home
from anabranch.spark.pipeline.errors import PipelineError

FILE = """\
checkpoint = "checkpoint"
[source]
bootstrap_servers = "{servers}"
topics = ["{topic}"]
[table]
name = "lake.db.t"
"""


def write(folder: Path, servers: str = "127.0.0.1:1", topic: str = "t", more: str = "") -> str:
    path = folder / "pipeline.toml"
    path.write_text(FILE.format(servers=servers, topic=topic) + more)
    return str(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ingest", str(tmp_path / "none.toml")])
    assert (result.exit_code, result.output) == (2, f"Error: {tmp_path}/none.toml: No such file or directory\n")


def test_a_bad_setting_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, more="period = 'week'\n")
    result = CliRunner().invoke(main, ["ingest", path])
    assert result.exit_code == 2
    assert result.output.startswith(
        f"Error: {path}:7: table.period is not a setting; [table] takes: format, mode, deletes"
    )


def test_a_schema_file_is_looked_for_before_anything_is_started(tmp_path: Path) -> None:
    path = write(tmp_path, more="[decode]\nformat = 'json'\nschema_file = 'none.ddl'\n")
    result = CliRunner().invoke(main, ["ingest", "--check", path])
    found = f"Error: {path}:9: decode.schema_file: {tmp_path}/none.ddl: No such file or directory\n"
    assert (result.exit_code, result.output) == (2, found)


def test_a_parquet_table_is_not_maintained(tmp_path: Path) -> None:
    path = write(tmp_path, more="format = 'parquet'\n")
    text = Path(path).read_text().replace('name = "lake.db.t"', 'location = "t"')
    Path(path).write_text(text)
    result = CliRunner().invoke(main, ["maintain", path])
    found = f"Error: {path}:7: table.format: a table of format parquet has no old versions, and is not rewritten\n"
    assert (result.exit_code, result.output) == (2, found)


@pytest.mark.parametrize(
    ("location", "dead_letters", "setting"),
    [("s3a://bucket/t", "", "6: table.location"), ("t", "s3a://bucket/dead", "9: dead_letters.location")],
)
def test_a_delta_table_in_s3_is_maintained_only_while_nothing_writes_to_it(
    tmp_path: Path, location: str, dead_letters: str, setting: str
) -> None:
    more = f"[dead_letters]\nlocation = '{dead_letters}'\n" if dead_letters else ""
    path = write(tmp_path, more=f"format = 'delta'\n{more}")
    text = Path(path).read_text().replace('name = "lake.db.t"', f"location = '{location}'")
    Path(path).write_text(text)
    result = CliRunner().invoke(main, ["maintain", path])
    assert result.exit_code == 2
    assert result.output == (
        f"Error: {path}:{setting}: two writers of a Delta table in S3 can lose each other's commits: "
        "stop the pipeline, and say --stopped\n"
    )


def test_what_has_no_dead_letters_to_put_back_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    result = CliRunner().invoke(main, ["replay", path])
    assert result.exit_code == 2
    assert result.output.endswith("decode.format: nothing is decoded, so this pipeline has no dead letters\n")
    path = write(tmp_path, more="format = 'parquet'\n")
    text = Path(path).read_text().replace('name = "lake.db.t"', 'location = "t"')
    Path(path).write_text(text)
    result = CliRunner().invoke(main, ["replay", path])
    found = "dead letters of format parquet cannot be deleted one by one, so none is put back\n"
    assert (result.exit_code, result.output) == (2, f"Error: {path}:7: table.format: {found}")


def test_jars_that_are_there_are_printed_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "installed_spark_version", lambda: "4.2.0")
    environ = {"ANABRANCH_CACHE": str(tmp_path), "PATH": str(tmp_path), "JAVA_HOME": None}
    # Without Maven and Java nothing can be fetched.
    result = CliRunner().invoke(main, ["jars"], env=environ)
    assert result.exit_code == 1
    assert "Error: Spark needs Java 17 " in result.output
    folder = tmp_path / "spark-4.2.0"
    for jar in all_jars("4.2.0"):
        (folder / jar.file_name).touch()
    for arguments, wanted in ((["--s3"], all_jars("4.2.0")), (["--format", "delta"], table_jars("4.2.0", "delta"))):
        result = CliRunner().invoke(main, ["jars", *arguments], env=environ)
        assert result.exit_code == 0, result.output
        found = [Path(place) for place in result.stdout.strip().split(",")]
        assert {folder / jar.file_name for jar in wanted} <= set(found)
        assert ("hadoop-aws-3.5.0.jar" in {place.name for place in found}) is ("--s3" in arguments)
    result = CliRunner().invoke(main, ["jars", "--format", "iceberg"], env=environ)
    assert result.output.startswith("Error: there is no iceberg for Spark 4.2")


def test_an_option_without_a_value_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ingest", write(tmp_path), "--conf", "novalue"])
    assert result.exit_code == 2
    assert "'novalue' is not of the form name=value" in result.output


@pytest.mark.parametrize("command", ["compact", "table orders", "verify"])
def test_a_job_without_a_place_is_used_wrongly(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 2
    assert "Error: no catalog is given: set a settings file (config), a dataDir, or a catalog URL" in result.output
    result = CliRunner().invoke(main, [*command.split(), "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        2, f"Error: there is no catalog in the data directory {tmp_path}",
    )  # fmt: skip


LIGHT = """\
import sys
from click.testing import CliRunner
from anabranch.spark.cli import main
for command in sys.argv[1].splitlines():
    print(CliRunner().invoke(main, command.split()).output)
print("imported:", *sorted({"numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy"} & set(sys.modules)))
"""


def test_what_starts_no_spark_does_not_import_it(tmp_path: Path) -> None:
    """Importing PySpark and the catalog's database costs more than all that these commands do."""
    checkpoint = tmp_path / "checkpoint"
    for name, text in (
        ("metadata", '{"id":"2b8a"}'),
        ("offsets/0", 'v1\n{"batchTimestampMs":1700000050000}\n{"t":{"0":5}}'),
        ("commits/0", "v1\n{}"),
    ):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    path = write(tmp_path)
    direct = tmp_path / "direct.toml"
    direct.write_text(Path(path).read_text().replace('topics = ["t"]', 'topics = ["t"]\nkind = "direct"'))
    wanted = {
        "--help": "Put a pipeline's dead letters back",
        "ingest none.toml": "No such file",
        f"ingest --check {path}": "cannot connect to 127.0.0.1:1",
        f"replay {path}": "nothing is decoded",
        f"status {path}": "cannot connect to 127.0.0.1:1",
        f"status {direct}": "micro-batch 0 was done",
        f"verify --data-dir {tmp_path}": "there is no catalog",
    }
    done = subprocess.run([sys.executable, "-c", LIGHT, "\n".join(wanted)], check=False, capture_output=True, text=True)
    for text in wanted.values():
        assert text in done.stdout, done
    assert done.stdout.splitlines()[-1] == "imported:"


def test_java_is_asked_for_before_anything_is_started(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": None, "PATH": str(tmp_path), "ANABRANCH_CACHE": str(tmp_path)}
    result = CliRunner().invoke(main, ["ingest", write(tmp_path)], env=environ)
    assert result.exit_code == 1
    assert "Error: Spark needs Java 17 " in result.output
    assert " Found: nothing in JAVA_HOME" in result.output


def test_a_spark_without_the_tables_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(cli, "installed_spark_version", lambda: "4.2.0")
    result = CliRunner().invoke(main, ["ingest", write(tmp_path)])
    assert result.output == (
        "Error: there is no iceberg for Spark 4.2: install 'pyspark==4.1.*', or write format delta or parquet\n"
    )


def test_jars_that_are_missing_are_not_looked_for_in_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Mapping[str, str]] = []
    monkeypatch.setattr(cli, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr("anabranch.spark.session.spark_environment", dict)
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))

    def start(settings: Mapping[str, str]) -> None:
        started.append(settings)
        raise SessionError("Java is started")

    monkeypatch.setattr("anabranch.spark.session._start_java", start)
    path = write(tmp_path)
    text = Path(path).read_text().replace('topics = ["t"]', 'topics = ["t"]\nkind = "direct"')
    text = text.replace('name = "lake.db.t"', 'format = "delta"\nlocation = "t"')  # which each Spark has
    Path(path).write_text(text)
    result = CliRunner().invoke(main, ["ingest", path])
    version = installed_spark_version()
    missing = f"Error: not all jars for Spark {version} are in {tmp_path}/spark-{version}: fetch them once, with "
    assert (result.output, started) == (f"{missing}`anabranch spark jars`\n", [])
    Path(path).write_text(text.replace('"checkpoint"', '"s3a://b/c"'))
    assert CliRunner().invoke(main, ["ingest", path]).output == f"{missing}`anabranch spark jars --s3`\n"
    # Who names packages has a registry, and these come from there, too.
    Path(path).write_text(text)
    assert (
        CliRunner()
        .invoke(main, ["ingest", path, "--conf", "spark.jars.packages=a:b:1"])
        .output.endswith("Java is started\n")
    )
    assert "spark-sql-kafka" in started[0]["spark.jars.packages"]


def test_a_broker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(cli, "installed_spark_version", lambda: "4.1.3")
    result = CliRunner().invoke(main, ["ingest", write(tmp_path)])
    assert result.output == "Error: cannot connect to 127.0.0.1:1: Connection refused; is the node running?\n"


@pytest.mark.interop
def test_topics_are_looked_for(servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(cli, "installed_spark_version", lambda: "4.1.3")
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("anabranch.spark.pipeline.check.check_pipeline", lambda *_: ["lake.db.t: sort_by changes"])
    path = write(tmp_path, servers, topic)
    result = CliRunner().invoke(main, ["ingest", "--check", path])
    assert (result.exit_code, result.output) == (0, f"{path}: lake.db.t: sort_by changes\n{path}: ready to run\n")
    result = CliRunner().invoke(main, ["ingest", write(tmp_path, servers, "none-such")])
    assert result.output == f"Error: {servers} has no topic 'none-such'; see `anabranch topic list`\n"


def test_the_command_hands_everything_over(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, arguments: called.append(arguments[1:]))
    CliRunner().invoke(spark_command, ["ingest", "--help", "-t", "a"])
    assert called == [["-m", "anabranch.spark", "ingest", "--help", "-t", "a"]]


def test_what_a_pipeline_failed_with_is_one_line() -> None:
    def end() -> None:
        raise StreamingQueryException(
            "[STREAM_FAILED] Query [id = 1] terminated with exception: called back: "
            "Traceback (most recent call last):\nmany lines"
        )

    def failed_with(failure: Exception | None) -> str:
        query = SimpleNamespace(exception=lambda: None, awaitTermination=end)
        running: Any = SimpleNamespace(queries=[query], batches=SimpleNamespace(failure=failure))
        with pytest.raises(PipelineError) as caught:
            jobs.wait_for_all(running)
        return str(caught.value)

    assert failed_with(PipelineError("values.ddl: gone")) == "values.ddl: gone"
    assert (
        failed_with(PySparkException("Cannot change column\nmore")) == "the pipeline failed: Cannot change column more"
    )
    twice = failed_with(PySparkException("Multiple streaming queries are concurrently using /x/offsets"))
    assert twice.endswith("(does another driver run on the same checkpoint? Only one at a time may)")
    assert failed_with(None) == "the pipeline failed: called back"


def test_java_that_does_not_start_says_why(tmp_path: Path) -> None:
    path = write(tmp_path, more="[spark.conf]\n'spark.driver.memory' = '1k'\n")
    text = Path(path).read_text().replace('topics = ["t"]', 'topics = ["t"]\nkind = "direct"')
    Path(path).write_text(text)
    command = [sys.executable, "-m", "anabranch.spark", "ingest", path]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    *before, last = done.stdout.splitlines()
    assert "Too small maximum heap" in before
    assert last == f"Error: {find_java_home()}: Java ended before Spark had started, and says why above"
    assert not any(line.startswith("Traceback") for line in before)


@pytest.mark.parametrize(
    ("flags", "environ", "found"),
    [
        (["--master", "sc://host"], {}, "master=sc://host"),
        (["--conf", "spark.remote=sc://host"], {}, "spark.remote=sc://host"),
        ([], {"SPARK_REMOTE": "local[2]"}, "SPARK_REMOTE=local[2]"),
        ([], {"SPARK_API_MODE": "connect"}, "SPARK_API_MODE=connect"),
    ],
)
def test_spark_connect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], environ: dict[str, str], found: str
) -> None:
    path = write(tmp_path)
    text = Path(path).read_text().replace('topics = ["t"]', 'topics = ["t"]\nkind = "direct"')
    Path(path).write_text(text)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["ingest", path, *flags])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {found} means Spark Connect, but this needs a driver of its own: "
        "leave it out, and use a master such as local[*] or spark://HOST:7077\n"
    )
