"""`anabranch spark verify` with the real Spark: sound storage, and each kind of damage."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from anabranch.s3stream.maintain.findings import FindingKind
from anabranch.s3stream.model import object_key
from anabranch.spark import storage_commands
from anabranch.spark.cli import main
from anabranch.spark.java import SessionError
from anabranch.spark.verify import verify
from tests.spark.kafka_objects import KafkaObjects, kafka_objects
from tests.support.catalog_node import CLUSTER

pytestmark = pytest.mark.spark


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[KafkaObjects]:
    with kafka_objects(tmp_path / "storage") as made:
        made.upload(list(asyncio.run(made.made.start(3))), objects=6)
        yield made


def path_of(filled: KafkaObjects, number: int) -> Path:
    """File of an object, by its turn."""
    infos = asyncio.run(filled.made.catalog.list_objects(after=0, limit=100))
    return filled.objects / object_key(CLUSTER, infos[number].object_id)


def use_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands run in the session of the tests."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(storage_commands, "started", shared)


def test_a_sound_cluster(spark: SparkSession, filled: KafkaObjects, tmp_path: Path) -> None:
    summary = verify(spark, filled.location, report=str(tmp_path / "report"))
    assert summary.ok
    assert (summary.objects, summary.batches, summary.records, summary.streams) == (6, 36, 360, 3)
    rows = spark.read.parquet(str(tmp_path / "report")).collect()
    assert Counter((row["subject"], row["kind"], row["trouble"]) for row in rows) == {("object", "SSO", None): 6}
    assert sum(row["records"] for row in rows) == 360


def test_each_damage_is_found_and_named(
    spark: SparkSession, filled: KafkaObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped = bytearray(path_of(filled, 1).read_bytes())
    flipped[3000] ^= 1
    path_of(filled, 1).write_bytes(flipped)
    path_of(filled, 3).unlink()
    path_of(filled, 4).write_bytes(path_of(filled, 5).read_bytes()[:-300])
    asyncio.run(filled.made.store.put(object_key(CLUSTER, 999), [b"stray"], writer_id="nobody"))

    use_session(spark, monkeypatch)
    report = tmp_path / "report"
    done = CliRunner().invoke(
        main,
        ["verify", "--catalog", filled.location.catalog_url, "--objects", str(filled.objects), "--cluster", CLUSTER,
         "--report", str(report)],
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "CRC32C" in done.output
    rows = spark.read.parquet(str(report)).where("trouble IS NOT NULL").collect()
    found = {(row["trouble"], row["place"].rsplit("/", 1)[-1]) for row in rows}
    names = [path_of(filled, number).name for number in (1, 3, 4)]
    assert found == {
        (FindingKind.CORRUPT.name, names[0]), (FindingKind.MISSING.name, names[1]),
        (FindingKind.CORRUPT.name, names[2]),
        (FindingKind.UNACCOUNTED.name, "999"),
    }  # fmt: skip
    assert spark.read.parquet(str(report)).where("trouble IS NULL").count() == 6


def test_a_report_in_a_place_that_cannot_be_is_refused_first(
    spark: SparkSession, filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object, **__: object) -> None:
        pytest.fail("everything was read for a report that cannot be written")

    use_session(spark, monkeypatch)
    monkeypatch.setattr("anabranch.spark.verify.verify", unread)
    place = ["--catalog", filled.location.catalog_url, "--objects", str(filled.objects), "--cluster", CLUSTER]
    done = CliRunner().invoke(main, ["verify", *place, "--report", "s4://bucket/report"])
    said = 'Error: --report s4://bucket/report: No FileSystem for scheme "s4"\n'
    assert (done.exit_code, done.output) == (1, said)


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        ([], {"s3": False, "table_formats": ()}),
        (["--report", "report"], {"s3": False, "table_formats": []}),
        (["--report", "s3a://bucket/report"], {"s3": True, "table_formats": []}),
        (["--report", "s3://bucket/report", "--format", "delta"], {"s3": True, "table_formats": ["delta"]}),
    ],
)
def test_a_session_can_write_the_report(
    filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch, arguments: list[str], needs: dict[str, object]
) -> None:
    asked: list[dict[str, object]] = []

    def build(name: str, **options: object) -> None:
        asked.append({key: options[key] for key in needs})
        raise SessionError(name)

    monkeypatch.setattr("anabranch.spark.session.build_session", build)
    place = ["--catalog", filled.location.catalog_url, "--objects", str(filled.objects), "--cluster", CLUSTER]
    done = CliRunner().invoke(main, ["verify", *place, *arguments])
    assert (done.output, asked) == ("Error: anabranch verify\n", [needs])
