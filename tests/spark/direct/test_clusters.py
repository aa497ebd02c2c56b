"""A session on a cluster of separate processes, and one of Spark Connect with it as server: what works in each."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK_JVM, QUICK_SQL
from tests.spark.direct.conftest import Lake
from tests.spark.pipeline.support import numbered
from tests.spark.programs import Program, program
from tests.support.events import committed_records, create_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

SOURCE, TARGET = "clusters", "clusters-copied"
COUNT = 300
PARALLELISM = 2
"""The least that Spark says, also of one core."""

SERVER = f"""
import json, signal, sys
from pathlib import Path
from anabranch.spark.direct import register
from anabranch.spark.session import build_session
from anabranch.spark.storage import find_storage
from anabranch.spark.verify import verify

data_dir, local = sys.argv[1:]
settings = {{"spark.driver.memory": "1g", "spark.executor.memory": "1g", "spark.local.dir": local}}
settings |= {{**{QUICK_SQL}, "spark.executor.extraJavaOptions": "{QUICK_JVM}"}}
settings |= {{"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"}}
settings |= {{"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}}
spark = build_session("cluster", master="local-cluster[1,1,1024]", settings=settings)
register(spark)
records = spark.read.format("anabranch").option("dataDir", data_dir).option("subscribe", "{SOURCE}").load()
verified = verify(spark, find_storage({{"dataDir": data_dir}}), report=None)
found = [records.count(), records.where("partition = 1").count(), verified.objects > 0]
print("found", json.dumps([*found, spark.sparkContext.defaultParallelism]), flush=True)
service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print("port", getattr(service, "MODULE$").localPort(), flush=True)
signal.pause()
"""
CLIENT = f"""
import json, sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from anabranch.spark.checkpoints import drop_topic_ids
from anabranch.spark.connect import ConnectError
from anabranch.spark.direct import parallelism_of, register
from anabranch.spark.kafka_sink import ExactlyOnceSink

server, data_dir, brokers, folder = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{{server}}").getOrCreate()
register(spark)
options = {{"dataDir": data_dir, "subscribe": "{SOURCE}", "startingOffsets": "earliest"}}
records = spark.read.format("anabranch").options(**options).load()
found = {{"records": records.count(), "of one partition": records.where("partition = 1").count()}}
found["parallelism"] = parallelism_of(spark)

def copy(name):
    stream = spark.readStream.format("anabranch").options(**options).load().select("key", "value")
    sink = ExactlyOnceSink({{"kafka.bootstrap.servers": brokers}}, "{TARGET}", name)
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", f"{{folder}}/{{name}}")
    writer.trigger(availableNow=True).start().awaitTermination()

copy("copy")
try:
    copy(None)
except PySparkException as error:
    found["without a name"] = [line for line in str(error).splitlines() if "SinkError: " in line][0]
try:
    drop_topic_ids(spark, f"{{folder}}/copy")
except ConnectError as error:
    found["drop_topic_ids"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def cluster(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A driver with an executor of its own process. It has read the topic, and is a server of Spark Connect."""
    for topic in (SOURCE, TARGET):
        create_topic(lake.servers, topic, 3)
    send(lake.servers, SOURCE, numbered(0, COUNT))
    lake.wait_committed(SOURCE)
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-c", SERVER, str(lake.data_dir), str(folder / "local")]
    with program(command, folder, "driver") as driver:
        driver.wait(lambda: bool(driver.said("port ")))
        yield driver


def test_direct_source_and_audit_on_a_cluster(cluster: Program) -> None:
    (found,) = cluster.said("found (.*)")
    assert json.loads(found) == [COUNT, COUNT // 3, True, PARALLELISM]


def test_direct_source_and_sink_in_spark_connect(cluster: Program, lake: Lake, tmp_path: Path) -> None:
    (port,) = cluster.said(r"port (\d+)")
    command = [sys.executable, "-c", CLIENT, port, str(lake.data_dir), lake.servers, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["records"], found["of one partition"]) == (COUNT, COUNT // 3)
    assert found["parallelism"] == PARALLELISM
    assert found["without a name"].endswith(
        "SinkError: Spark Connect does not tell a query's id: give the sink a name of its own as `name`"
    )
    assert found["drop_topic_ids"].startswith("drop_topic_ids reads and writes files through a JVM of its own process")
    assert len(committed_records(lake.servers, TARGET)) == COUNT
