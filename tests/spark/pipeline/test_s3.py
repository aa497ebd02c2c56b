"""Everything in S3: the node's objects, the checkpoint and the tables; PostgreSQL has the catalogs of both."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from anabranch.spark.pipeline.check import check_pipeline
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.files import HadoopFolder
from anabranch.spark.pipeline.iceberg import catalog_settings
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from tests.conftest import QUICK_SQL
from tests.spark.pipeline.support import every_offset_once, make_pipeline, need, numbered, offsets, run
from tests.support.events import create_topic, send
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Bucket, S3Server
from tests.support.soak import LONG

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

FILE = """\
name = "{topic}"
checkpoint = "s3a://{bucket}/checkpoints/{topic}"

[source]
kind = "direct"
topics = ["{topic}"]

[source.options]
config = "{config}"

[decode]
format = "json"
schema_file = "values.ddl"

[table]
name = "everything.db.t"
partition_by = "none"

[catalog]
type = "jdbc"
uri = "{jdbc}"
warehouse = "s3a://{bucket}/lake"
options = {{ "jdbc.user" = "anabranch" }}

[spark.conf]
"spark.hadoop.fs.s3a.endpoint" = "{endpoint}"
"spark.hadoop.fs.s3a.path.style.access" = true
"spark.local.dir" = "{local}"
""" + "".join(f'"{name}" = "{value}"\n' for name, value in QUICK_SQL.items())


@dataclass(frozen=True, slots=True)
class Stored:
    """A node whose objects are in a bucket and whose catalog is in PostgreSQL."""

    node: NodeProcess
    bucket: S3Bucket
    config: Path

    def root(self, name: str) -> str:
        """URL of a folder in the bucket."""
        return f"s3a://{self.bucket.name}/{name}"


@pytest.fixture(scope="module")
def stored(
    spark: SparkSession,
    s3: S3Server,
    postgres: PostgresServer,
    aws_credentials: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stored]:
    """A node for all tests; the session reaches the bucket. Keys are in the usual file of AWS only."""
    bucket = s3.new_bucket()
    aws_credentials.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    use_bucket(spark, bucket)
    folder = tmp_path_factory.mktemp("stored")
    config = folder / "node.toml"
    config.write_text(
        f'[node]\ndata_dir = "{folder / "data"}"\n[catalog]\nurl = "{postgres.new_database()}"\n'
        f'[objects]\nstore = "s3"\nbucket = "{bucket.name}"\nendpoint = "{bucket.endpoint}"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws_credentials))
        patch.setenv("AWS_REGION", "us-east-1")
        with NodeProcess(folder, config=config, storage_upload_age_ms=100) as node:
            yield Stored(node, bucket, config)
            assert node.terminate() == 0


def use_bucket(spark: SparkSession, bucket: S3Bucket) -> None:
    """Make a bucket known to a session that has started already."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - Python has no other way
    for name, value in (
        ("endpoint", bucket.endpoint),
        ("endpoint.region", "us-east-1"),
        ("path.style.access", "true"),
    ):
        settings.set(f"fs.s3a.bucket.{bucket.name}.{name}", value)


def forget_last_commit(bucket: S3Bucket, checkpoint: str) -> None:
    """Restore the state of a driver that died after the table's commit and before the query's own."""
    commits = bucket.folder / checkpoint.partition(f"{bucket.name}/")[2] / "commits"
    (commits / str(max(int(path.name) for path in commits.glob("[0-9]*")))).unlink()


@pytest.mark.parametrize(
    "table_format", ["iceberg", *(pytest.param(each, marks=LONG) for each in ("delta", "parquet"))]
)
def test_each_record_is_once_in_a_table_in_s3(
    spark: SparkSession, stored: Stored, postgres: PostgresServer, tmp_path: Path, table_format: str
) -> None:
    topic = f"stored-{table_format}"
    create_topic(stored.node.bootstrap, topic, 3)
    places: dict[str, object] = {"table": {"partition_by": "none"}}
    if table_format == "iceberg":
        places["catalog"] = jdbc_catalog(postgres, stored)
    else:
        places["table"] = {"partition_by": "none", "location": stored.root(topic)}
    checkpoint = stored.root(f"checkpoints/{topic}")
    pipeline = make_pipeline(stored.node.bootstrap, tmp_path, topic, table_format, checkpoint=checkpoint, **places)
    assert pipeline.uses_s3
    for start, end in ((0, 90), (90, 150)):
        send(stored.node.bootstrap, topic, numbered(start, end))
        run(spark, pipeline)
        if start:
            forget_last_commit(stored.bucket, pipeline.checkpoint)
            run(spark, pipeline)
        if table_format == "parquet":
            found = spark.read.parquet(str(pipeline.table.location))
        else:
            found = open_tables(spark, pipeline)[0].read()
        assert offsets(found) == every_offset_once(end)


def test_of_several_that_write_a_new_file_one_does(spark: SparkSession, stored: Stored) -> None:
    folder = HadoopFolder(spark, stored.root("claims"))
    for name in map(str, range(5)):
        with ThreadPoolExecutor(4) as threads:
            written = list(threads.map(partial(folder.write_new, name), "abcd"))
        assert written.count(True) == 1
        assert folder.read(name) == "abcd"[written.index(True)]


def test_the_command_finds_jars_keys_and_the_catalog_by_itself(
    spark: SparkSession, stored: Stored, postgres: PostgresServer, tmp_path: Path
) -> None:
    need("iceberg")
    topic = "stored"
    create_topic(stored.node.bootstrap, topic, 3)
    catalog = jdbc_catalog(postgres, stored)
    (tmp_path / "values.ddl").write_text("n INT, name STRING")
    file = tmp_path / "pipeline.toml"
    text = FILE.format(
        topic=topic,
        bucket=stored.bucket.name,
        config=stored.config,
        jdbc=catalog["uri"],
        endpoint=stored.bucket.endpoint,
        local=tmp_path / "local",
    )
    file.write_text(text)
    send(stored.node.bootstrap, topic, numbered(0, 90))
    stored.node.wait_uploaded()
    done = ingest(file)
    assert done.returncode == 0, done.stdout + done.stderr
    pipeline = make_pipeline("", tmp_path, topic, table={"name": "everything.db.t"}, catalog=catalog)
    for key, value in catalog_settings(pipeline).items():
        spark.conf.set(key, value)
    assert offsets(spark.table("everything.db.t")) == every_offset_once(90)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("checkpoint", {"checkpoint": "s3a://no-such-bucket/checkpoint"}),
        ("table.location", {"table": {"location": "s3a://no-such-bucket/table"}}),
    ],
)
def test_a_bucket_that_is_not_there_is_named_by_the_check(
    spark: SparkSession, stored: Stored, tmp_path: Path, name: str, sections: dict[str, object]
) -> None:
    use_bucket(spark, replace(stored.bucket, name="no-such-bucket"))
    pipeline = make_pipeline(stored.node.bootstrap, tmp_path, "t", "delta", **sections)
    with pytest.raises(SettingError, match=f"{name}: .*no-such-bucket"):
        check_pipeline(spark, pipeline)


def test_a_hadoop_catalog_in_s3_is_refused(tmp_path: Path) -> None:
    def make(**catalog: object) -> PipelineSettings:
        return make_pipeline("", tmp_path, "t", catalog=catalog)

    with pytest.raises(ValidationError, match=r"two writers of a hadoop catalog there can lose each other's commits"):
        make(warehouse="s3a://bucket/lake")
    assert make(warehouse="s3a://bucket/lake", type="rest").uses_s3
    assert make(warehouse="s3a://bucket/lake", options={"lock-impl": "x"}).uses_s3
    assert not make(warehouse="lake").uses_s3


def jdbc_catalog(postgres: PostgresServer, stored: Stored) -> dict[str, object]:
    """`[catalog]` in a new database, with the tables in the bucket."""
    url = make_url(postgres.new_database())
    address = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}"
    options = {"jdbc.user": url.username}
    return {"type": "jdbc", "uri": address, "warehouse": stored.root("lake"), "options": options}


def ingest(file: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command as a user would."""
    command = [sys.executable, "-m", "anabranch.spark", "ingest", "--once", "--master", "local[2]", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
