"""Direct source, audit and compaction of a cluster whose topics are in a bucket and in a second store."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.spark.cli import main
from anabranch.spark.direct import register
from tests.spark.direct.conftest import Lake
from tests.spark.test_verify import use_session
from tests.support.events import Event, create_topic, send
from tests.support.node import NodeProcess
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.interop]

COUNTS = {"hot": 150, "cold": 90}


@pytest.fixture
def shared_file(aws_credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that node, driver and tasks read from a shared file."""
    aws_credentials.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws_credentials))


def test_a_bucket_and_a_second_store(
    spark: SparkSession, s3: S3Server, shared_file: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(spark)
    bucket = s3.new_bucket()
    config = tmp_path / "node.toml"
    table = f'type = "local"\npath = "{tmp_path / "cold"}"\n'
    without = (
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[compaction]\nenabled = false\n'
        f'[objects]\nstore = "s3"\nbucket = "{bucket.name}"\nendpoint = "{bucket.endpoint}"\n'
    )
    config.write_text(f"{without}[stores.cold]\n{table}")
    with NodeProcess(tmp_path, config=config, storage_upload_age_ms=100, storage_split_bytes=64 << 10) as node:
        lake = Lake(node, tmp_path / "data", spark)
        create_topic(lake.servers, "hot", 2)
        create_topic(lake.servers, "cold", 2, {"storage.policy": "cold"})
        for part in range(3):
            for topic, count in COUNTS.items():
                some = range(part * count // 3, (part + 1) * count // 3)
                send(lake.servers, topic, [Event(n % 2, b"%s %d" % (topic.encode(), n) * 99) for n in some])
                lake.wait_committed(topic)
        columns = ("topic", "partition", "offset", "value", "timestamp")
        kafka = lake.kafka(subscribe="hot,cold").select(*columns)
        expected = sorted(tuple(row) for row in kafka.collect())

        def direct(**options: str) -> list[tuple[object, ...]]:
            source = spark.read.format("anabranch").options(subscribe="hot,cold", columns=",".join(columns), **options)
            return sorted(tuple(row) for row in source.load().collect())

        assert Counter(row[0] for row in expected) == COUNTS
        assert direct(config=str(config)) == expected
        run(spark, monkeypatch, "verify", "--config", str(config), "--report", str(tmp_path / "report"))
        report = spark.read.parquet(str(tmp_path / "report")).collect()
        assert {row["store"] for row in report} == {"s3", "cold"}
        compacted = run(spark, monkeypatch, "compact", "--config", str(config)).split()
        at = compacted.index("->")
        assert int(compacted[at - 1]) > int(compacted[at + 1]) > 0, "fewer objects, in both stores"
        assert direct(config=str(config)) == expected
        # The second store by an option, and the error without it.
        config.write_text(without)
        own = {"stores.cold.type": "local", "stores.cold.path": str(tmp_path / "cold")}
        assert direct(config=str(config), **own) == expected
        with pytest.raises(PySparkException, match="the store 'cold', which is not configured"):
            direct(config=str(config))
        assert node.terminate() == 0


def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Run a command of `anabranch spark` in the session of the tests; returns its output."""
    use_session(spark, monkeypatch)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output
