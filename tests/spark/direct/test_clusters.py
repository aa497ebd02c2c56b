"""A session on a cluster of separate processes, and one of Spark Connect with it as server: what works in each.

At last its processes are killed.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.kafka_sink import ExactlyOnceSink
from tests.conftest import QUICK_JVM, QUICK_SQL
from tests.spark.direct.conftest import Lake
from tests.spark.pipeline.support import numbered
from tests.spark.programs import Program, program
from tests.spark.test_kafka_sink import copy, options
from tests.support.events import committed_records, create_topic, send
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

SOURCE, TARGET = "clusters", "clusters-copied"
COUNT = 300
KILLED_SOURCE, KILLED_TARGET, KILLED_COUNT = "killed", "killed-copied", 6000
PER_BATCH = 150
CORES = 2
"""Of the one executor."""

SERVER = f"""
import json, signal, sys
from pathlib import Path
from anabranch.spark.direct import register
from anabranch.spark.kafka_sink import ExactlyOnceSink
from anabranch.spark.session import build_session
from anabranch.spark.storage import find_storage
from anabranch.spark.verify import verify

data_dir, folder, brokers = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
settings = {{"spark.driver.memory": "1g", "spark.executor.memory": "1g", "spark.local.dir": f"{{folder}}/local"}}
settings |= {{**{QUICK_SQL}, "spark.executor.extraJavaOptions": "{QUICK_JVM}"}}
settings |= {{"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"}}
settings |= {{"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}}
spark = build_session("cluster", master="local-cluster[1,{CORES},1024]", settings=settings)
register(spark)
records = spark.read.format("anabranch").option("dataDir", data_dir).option("subscribe", "{SOURCE}").load()
verified = verify(spark, find_storage({{"dataDir": data_dir}}), report=None)
found = [records.count(), records.where("partition = 1").count(), verified.objects > 0]
print("found", json.dumps([*found, spark.sparkContext.defaultParallelism]), flush=True)
service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print("port", getattr(service, "MODULE$").localPort(), flush=True)
signal.sigwait([signal.SIGUSR1])

options = {{"kafka.bootstrap.servers": brokers, "subscribe": "{KILLED_SOURCE}", "startingOffsets": "earliest"}}
sink = ExactlyOnceSink(options, "{KILLED_TARGET}")

def write(batch, batch_id):
    sink(batch, batch_id)
    print("batch", batch_id, flush=True)

records = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger="{PER_BATCH}").load()
writer = records.select("key", "value").writeStream.foreachBatch(write)
writer.option("checkpointLocation", f"{{folder}}/checkpoint").start().awaitTermination()
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
    for topic in (SOURCE, TARGET, KILLED_SOURCE, KILLED_TARGET):
        create_topic(lake.servers, topic, 3)
    send(lake.servers, SOURCE, numbered(0, COUNT))
    send(lake.servers, KILLED_SOURCE, numbered(0, KILLED_COUNT))
    lake.wait_committed(SOURCE)
    folder = tmp_path_factory.mktemp("cluster")
    command = [sys.executable, "-c", SERVER, str(lake.data_dir), str(folder), lake.servers]
    with program(command, folder, "driver") as driver:
        driver.wait(lambda: bool(driver.said("port ")))
        yield driver


def test_direct_source_and_audit_on_a_cluster(cluster: Program) -> None:
    (found,) = cluster.said("found (.*)")
    assert json.loads(found) == [COUNT, COUNT // 3, True, CORES]


def test_direct_source_and_sink_in_spark_connect(cluster: Program, lake: Lake, tmp_path: Path) -> None:
    (port,) = cluster.said(r"port (\d+)")
    command = [sys.executable, "-c", CLIENT, port, str(lake.data_dir), lake.servers, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["records"], found["of one partition"]) == (COUNT, COUNT // 3)
    assert found["parallelism"] == CORES
    assert found["without a name"].endswith(
        "SinkError: Spark Connect does not tell a query's id: give the sink a name of its own as `name`"
    )
    assert found["drop_topic_ids"].startswith("drop_topic_ids reads and writes files through a JVM of its own process")
    assert len(committed_records(lake.servers, TARGET)) == COUNT


def test_an_executor_and_the_driver_are_killed(cluster: Program, lake: Lake, spark: SparkSession) -> None:
    os.kill(cluster.process.pid, signal.SIGUSR1)  # it begins to copy
    cluster.wait(lambda: len(cluster.said("batch ")) >= 2)
    cluster.kill_executor()
    done = len(cluster.said("batch "))
    cluster.wait(lambda: len(cluster.said("batch ")) >= done + 2)
    cluster.kill()

    def copied() -> int:
        return len(committed_records(lake.servers, KILLED_TARGET, wait=False))  # a transaction may be left open

    # One that it has committed becomes visible partition by partition.
    wait_until(lambda: copied() % PER_BATCH == 0, "whole micro-batches are there")
    assert 0 < copied() < KILLED_COUNT, "the driver was killed in the middle"
    sink = ExactlyOnceSink(options(lake.servers), KILLED_TARGET)
    copy(spark, lake.servers, KILLED_SOURCE, cluster.log.parent / "checkpoint", sink, per_batch=KILLED_COUNT)
    rows = committed_records(lake.servers, KILLED_TARGET)
    assert Counter(json.loads(value or b"")["n"] for _, _, value in rows) == Counter(range(KILLED_COUNT))
