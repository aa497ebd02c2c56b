"""Kafka Streams with exactly-once semantics, over kills of the node, and Kafka Connect: as their users run them."""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from benchmarks.lab.processes import free_port
from tests.support.events import Event, create_topic, receive, send
from tests.support.kafka_tools import QUICK_JVM, archive_options
from tests.support.node import NodeProcess
from tests.support.streams_application import CountReader
from tests.support.tools import connect_class_path, java, kafka_streams_class_path
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 60
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "dog", "sleeps"]
KILLS = 3
LINES = 2000
"""Between two kills of the node."""


@contextmanager
def application(log: IO[str], *options: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a Java program until the block ends; it is then told to stop, and must."""
    process = subprocess.Popen([java(), *QUICK_JVM, *options], stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
        process.terminate()
        process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def test_a_streams_application_counts_exactly_over_kills_of_the_node(tmp_path: Path) -> None:
    """Its clients use transactions of version 2. Every count must arrive once, in order."""
    with NodeProcess(tmp_path / "node", storage_upload_age_ms=200) as node, (tmp_path / "log").open("w+") as log:
        create_topic(node.bootstrap, "streams-plaintext-input", 2)
        create_topic(node.bootstrap, "streams-wordcount-output", 2)
        settings = tmp_path / "streams.properties"
        settings.write_text(
            f"bootstrap.servers={node.bootstrap}\nprocessing.guarantee=exactly_once_v2\ncommit.interval.ms=100\n"
            f"state.dir={tmp_path / 'state'}\nreconnect.backoff.max.ms=200\n"
        )
        expected: Counter[bytes] = Counter()
        example = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
        with application(log, *archive_options(), "-cp", kafka_streams_class_path(), example, settings) as streams:
            reader = CountReader(node.bootstrap, "streams-wordcount-output", 2)

            def read_until(count: int) -> None:
                reader.read_until(
                    count, lambda: None if streams.poll() is None else pytest.fail("the application has ended")
                )

            for kills in range(KILLS + 1):
                lines = [" ".join(WORDS[n % 7 :]) for n in range(LINES)]
                expected.update(word.encode() for line in lines for word in line.split())
                before = len(reader.said)
                send(
                    node.bootstrap,
                    "streams-plaintext-input",
                    [Event(n % 2, line.encode()) for n, line in enumerate(lines)],
                )
                read_until(before + 1)  # now it is in the middle of it
                if kills < KILLS:
                    node.kill9()
                    node.start()
            read_until(expected.total())
            reader.close()
        for word, count in expected.items():
            assert [found for other, found in reader.said if other == word] == list(range(1, count + 1))


def test_connect_copies_a_file_through_a_topic(tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {n}" for n in range(1000)]
    source.write_text("".join(f"{line}\n" for line in lines))
    converter = "org.apache.kafka.connect.storage.StringConverter"
    file_connectors = "org.apache.kafka.connect.file"
    files = {
        "source": f"connector.class={file_connectors}.FileStreamSourceConnector\nfile={source}\ntopic=lines\n",
        "sink": f"connector.class={file_connectors}.FileStreamSinkConnector\nfile={sink}\ntopics=lines\n",
        "broken": f"connector.class={file_connectors}.FileStreamSinkConnector\nfile={tmp_path}/no/file\ntopics=lines\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(f"name={name}\ntasks.max=1\n{text}")
    port = free_port()
    urls = f"http://127.0.0.1:{port}"
    with NodeProcess(tmp_path / "node", admin_connect_urls=urls) as node, (tmp_path / "log").open("w+") as log:
        create_topic(node.bootstrap, "lines", 1)
        (tmp_path / "worker").write_text(
            f"bootstrap.servers={node.bootstrap}\nkey.converter={converter}\nvalue.converter={converter}\n"
            f"offset.storage.file.filename={tmp_path / 'offsets'}\noffset.flush.interval.ms=500\n"
            f"listeners={urls}\nconsumer.auto.offset.reset=earliest\nplugin.discovery=only_scan\n"
        )
        worker = "org.apache.kafka.connect.cli.ConnectStandalone"
        with application(
            log, "-cp", connect_class_path(), worker, *(tmp_path / name for name in ("worker", *files))
        ) as connect:
            found = receive(node.bootstrap, "lines", {0: len(lines)})
            assert [(event.value or b"").decode() for event in found] == lines
            with source.open("a") as more:
                more.write("one more\n")
            assert receive(node.bootstrap, "lines", {0: len(lines) + 1})[-1].value == b"one more"
            wanted = [*lines, "one more"]
            asyncio.run(
                until(
                    lambda: sink.exists() and len(sink.read_text().splitlines()) >= len(wanted),
                    timeout_s=TIMEOUT_S,
                    pause_s=0.1,
                )
            )
            check_connectors_at(node, f"127.0.0.1:{port}")
            assert connect.poll() is None
        assert sink.read_text().splitlines() == wanted


def check_connectors_at(node: NodeProcess, name: str) -> None:
    """The admin port shows the connectors of the cluster, with what has failed, and passes changes on."""

    def connectors() -> dict[str, dict[str, Any]]:
        (cluster,) = json.loads(node.ask("/api/v1/connect"))["clusters"]
        assert (cluster["name"], cluster["error"]) == (name, None)
        return {each["name"]: each for each in cluster["connectors"]}

    def wait_for(connector: str, state: str) -> None:
        wait_until(
            lambda: [task["state"] for task in connectors().get(connector, {"tasks": []})["tasks"]] == [state],
            f"the task of {connector} is {state}",
            timeout_s=TIMEOUT_S,
        )

    wait_for("broken", "FAILED")
    found = connectors()
    assert "Couldn't find or create file" in found["broken"]["tasks"][0]["trace"]
    assert {each: found[each]["type"] for each in found} == {"source": "source", "sink": "sink", "broken": "sink"}
    wait_for("source", "RUNNING")
    for action, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
        node.ask(f"/api/v1/connect/{name}/connectors/source/{action}", "POST")
        wait_for("source", state)
    node.ask(f"/api/v1/connect/{name}/connectors/broken/tasks/0/restart", "POST")
    node.ask(f"/api/v1/connect/{name}/connectors/sink/restart", "POST")
    wait_for("sink", "RUNNING")
    wait_for("broken", "FAILED")
