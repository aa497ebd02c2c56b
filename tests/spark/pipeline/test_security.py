"""Pipelines over SASL_SSL and TLS with real Spark. No secret gets out: not in plans, event logs, errors or output."""

import io
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Final
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.spark.cli import main
from anabranch.spark.jobs import run_pipeline
from anabranch.spark.kafka_options import read_kafka_options
from anabranch.spark.pipeline.errors import PipelineError, reason_of
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import read_stream
from anabranch.spark.session import REDACTION
from tests.conftest import QUICK_SQL
from tests.spark.pipeline.support import WAIT_S, every_offset_once, make_pipeline, numbered, offsets
from tests.support.certificates import Issued
from tests.support.events import create_topic, send
from tests.support.secrets import MARK, assert_unmarked
from tests.support.secure_node import PASSWORD, PLAIN, STORE_PASSWORD, WRONG, SecureNode, login, secure_node

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

TOPIC: Final = "secured"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("secure")) as made:
        create_topic(made.server("PLAINTEXT"), TOPIC, 3)
        send(made.server("PLAINTEXT"), TOPIC, numbered(0, 90))
        yield made


def write_properties(folder: Path, properties: Mapping[str, str]) -> str:
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def pipeline_of(node: SecureNode, folder: Path, properties: Mapping[str, str], **sections: object) -> PipelineSettings:
    """A pipeline into Parquet, whose client properties are in a file."""
    source = {"client_config": write_properties(folder, properties)}
    server = properties["bootstrap.servers"]
    return make_pipeline(server, folder, TOPIC, "parquet", source=source, **sections)


def librdkafka(node: SecureNode, client: Issued) -> dict[str, str]:
    """Properties with the names of librdkafka."""
    return {
        "bootstrap.servers": node.server("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(node.authority.file),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
    }


def lines_of(client: Issued) -> list[str]:
    """Lines of a private key, which must not be seen."""
    return [line for line in client.key.read_text().splitlines() if "-----" not in line]


def test_a_pipeline_over_sasl_ssl_commits_to_its_group(
    spark: SparkSession, node: SecureNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = {"metrics_port": 0, "consumer_group": "secured-pipeline"}
    pipeline = pipeline_of(node, tmp_path, node.properties("SASL_SSL"), operations=operations)
    said, pages = io.StringIO(), list[str]()

    def look(*_: object) -> None:
        url = re.search(r"metrics on (\S+)", said.getvalue())
        assert url is not None
        with urlopen(url[1], timeout=30) as response:
            pages.append(response.read().decode())

    monkeypatch.setattr("anabranch.spark.jobs.print_failures", look)
    run_pipeline(spark, pipeline, Console(file=said, width=200))
    assert offsets(spark.read.parquet(str(tmp_path / "table"))) == every_offset_once(90)
    assert "anabranch_pipeline_group_commit_failures_total 0" in pages[0]
    assert re.search(r"anabranch_pipeline_group_commits_total \d", pages[0])
    assert_unmarked({"output": said.getvalue(), "metrics": pages[0]})


def test_source_and_sink_of_ones_own_and_their_plans(
    spark: SparkSession, node: SecureNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(node.server("PLAINTEXT"), "copied", 3)
    client = node.authority.issue("client", file_name="unlocked")  # Java 17 cannot read PEM encrypted by PBES2
    options: dict[str, str] = {}
    for properties in (
        node.properties("SASL_SSL"),
        {**node.properties("SASL_SSL", **login("admin", module=PLAIN)), "sasl.mechanism": "PLAIN"},
        librdkafka(node, client),
    ):
        options = read_kafka_options(write_properties(tmp_path, properties), {})
        assert any(MARK in value or "PRIVATE KEY" in value for value in options.values())
        records = spark.read.format("kafka").options(**options).option("subscribe", TOPIC).load()
        records.select("key", "value").write.format("kafka").options(**options).option("topic", "copied").save()
        records.explain(extended=True)
        assert_unmarked({"plans": capsys.readouterr().out}, lines_of(client))
    copied = spark.read.format("kafka").options(**options).option("subscribe", "copied").load()
    assert copied.count() == 3 * 90


def test_a_wrong_password_fails_the_query_without_showing_it(
    spark: SparkSession, node: SecureNode, tmp_path: Path
) -> None:
    pipeline = pipeline_of(node, tmp_path, node.properties("SASL_SSL", **login("admin", WRONG)))
    with pytest.raises(PipelineError, match=f"topic {TOPIC} cannot be looked up: .*SaslAuthentication") as refused:
        start_pipeline(spark, pipeline)
    query = read_stream(spark, pipeline).writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(WAIT_S)
    text = str(caught.value)
    assert "SaslAuthenticationException" in text
    errors = {"error": text, "reason": reason_of(caught.value), "repr": repr(caught.value)}
    assert_unmarked({**errors, "refused": str(refused.value), "cause": str(refused.value.__cause__)})


def test_a_driver_shows_no_secret_in_its_log_and_event_log(node: SecureNode, tmp_path: Path) -> None:
    """A process of its own, which logs all that it can."""
    client = node.authority.issue("client", file_name="unlocked")
    keys = {"ssl.certificate.location": str(client.certificate), "ssl.key.location": str(client.key)}
    file = write_file(tmp_path, {**node.properties("SASL_SSL"), **keys})
    events = tmp_path / "events"
    events.mkdir()
    logging = tmp_path / "log4j2.properties"
    logging.write_text(LOGGING)
    settings = {"spark.log.level": "DEBUG", "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    settings |= {"spark.eventLog.compress": "false", "spark.master": "local[2]", **QUICK_SQL}
    settings |= {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}"}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "anabranch.spark", "ingest", str(file), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "90 rows from this run" in done.stdout
    logs = {str(path): path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()}
    checkpoint = {str(path): path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*")
                  if path.is_file()}  # fmt: skip
    assert TOPIC in "".join(logs.values())
    assert checkpoint
    assert "ssl.truststore.location" in done.stderr  # the client's configs are in the log
    shown = {"stdout": done.stdout, "stderr": done.stderr, **logs, **checkpoint}
    assert_unmarked(shown, lines_of(client))


def test_the_redaction_covers_what_sparks_own_does_not() -> None:
    for text in (
        "kafka.ssl.keystore.key",
        "kafka.sasl.jaas.config",
        "-----BEGIN PRIVATE KEY-----",
        "kafka.sasl.password",
    ):
        assert re.search(REDACTION, text)


LOGGING = """\
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
"""
FILE = """\
checkpoint = "checkpoint"
[source]
topics = ["{topic}"]
client_config = "client.properties"
[table]
format = "parquet"
location = "table"
partition_by = "none"
"""


def write_file(folder: Path, properties: Mapping[str, str], more: str = "", topic: str = TOPIC) -> Path:
    write_properties(folder, properties)
    path = folder / "pipeline.toml"
    path.write_text(FILE.format(topic=topic) + more)
    return path


def check(file: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run `--check`; return its output, which must have no secret."""
    done = CliRunner().invoke(main, ["ingest", "--check", str(file)], env=environment)
    assert_unmarked({"output": done.output, "error": repr(done.exception)})
    assert (done.exit_code == 0) == done.output.endswith("ready to run\n")
    (line,) = done.output.splitlines()
    return line


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the check does in a session of its own, after it has connected."""
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("anabranch.spark.pipeline.check.check_pipeline", lambda *_: [])


@pytest.mark.usefixtures("spark", "no_session")  # jars and Java, which the check looks for first
def test_the_check_connects_as_the_pipeline_will(node: SecureNode, tmp_path: Path) -> None:
    sasl = node.properties("SASL_SSL")
    assert check(write_file(tmp_path, sasl)).endswith("ready to run")
    assert check(write_file(tmp_path, {**librdkafka(node, node.client), "ssl.key.password": STORE_PASSWORD})).endswith(
        "ready to run"
    )
    without = {name: value for name, value in sasl.items() if name != "sasl.jaas.config"}
    file = write_file(tmp_path, {**without, "sasl.username": "admin"})
    assert f"{file}:4: source.client_config: the mechanism SCRAM-SHA-512 needs a password" in check(file)
    assert check(file, {"KAFKA_CLIENT_SASL_PASSWORD": PASSWORD}).endswith("ready to run")
    assert "does not accept the user admin" in check(file, {"KAFKA_CLIENT_SASL_PASSWORD": WRONG})
    assert "has no topic 'other'" in check(write_file(tmp_path, sasl, topic="other"))
    denied = write_file(tmp_path, node.properties("SASL_SSL", **login("bob")))
    assert "topic 'secured': TOPIC_AUTHORIZATION_FAILED" in check(denied)
    (tmp_path / "client.properties").unlink()
    assert f"{file}:4: source.client_config: {tmp_path}/client.properties: No such file" in check(file)


def test_secrets_in_the_pipelines_file_are_refused_and_not_shown(node: SecureNode, tmp_path: Path) -> None:
    cases = {
        f'[source.options]\n"kafka.sasl.password" = "{MARK}"\n': "source.options.kafka.sasl.password: a secret: put it",
        f'[source.options]\n"kafka.sasl.password" = ["{MARK}"]\n': "source.options.kafka.sasl.password: input should",
        f'[catalog]\noptions = "{MARK}"\n': "catalog.options: input should",
        f'[spark.conf]\n"spark.x" = ["{MARK}"]\n': "spark.conf.spark.x: input should",
    }
    for more, reason in cases.items():
        line = check(write_file(tmp_path, node.properties("SASL_SSL"), more))
        assert reason in line, line
        assert re.search(r"pipeline\.toml:\d+: ", line)
