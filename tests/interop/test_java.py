"""Apache Kafka's own clients, as its command line tools start them."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.records import PARTITIONS
from tests.support.events import Event, receive, send
from tests.support.kafka_tools import CONFIGS, CONSUMER, GROUPS, OFFSETS, PRODUCER, TOOLS, TOPICS, kafka_tool, run_tool

pytestmark = pytest.mark.interop

TIMEOUT_S = 60


def command(servers: str, tool: str, arguments: Sequence[str]) -> list[str]:
    return [*kafka_tool(tool), "--bootstrap-server", servers, *arguments]


def run(servers: str, tool: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool that must succeed, and return its output."""
    done = run_tool(tool, ["--bootstrap-server", servers, *arguments], stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(servers: str, tool: str, *arguments: str) -> str:
    """Run a tool that must fail, and return its output."""
    done = run_tool(tool, ["--bootstrap-server", servers, *arguments])
    assert done.returncode != 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def cells(table: str) -> list[list[str]]:
    """Return the rows of a table that a tool has printed, below its heading."""
    return [line.split() for line in table.splitlines() if line.strip()][1:]


def console_consumer(servers: str, topic: str, *arguments: str, group: str | None = None, count: int) -> list[str]:
    limits = ["--max-messages", str(count), "--timeout-ms", "30000"]
    member = ["--group", group] if group else []
    return run(servers, CONSUMER, "--topic", topic, "--from-beginning", *limits, *member, *arguments).splitlines()


def test_the_console_producer_sends_in_every_codec(servers: str, topic: str) -> None:
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        lines = [f"h:{codec}\t{codec}-{n}\t{'x' * 50}{n}" for n in range(100)]
        properties = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
        run(servers, PRODUCER, "--topic", topic, *properties, "--compression-codec", codec, stdin="\n".join(lines))
        expected += lines
    printed = ["--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"]
    assert sorted(console_consumer(servers, topic, *printed, count=500)) == sorted(expected)
    ends = [line.split(":") for line in run(servers, OFFSETS, "--topic", topic).splitlines()]
    assert sum(int(end) for _, _, end in ends) == 500
    found = receive(servers, topic, {int(partition): int(end) for _, partition, end in ends})
    assert sorted((event.value or b"").decode() for event in found) == sorted(line.split("\t")[2] for line in expected)


def test_the_console_consumer_reads_every_codec_of_librdkafka(servers: str, topic: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        events = [Event(n % PARTITIONS, f"{codec} {n}".encode(), b"k", 1_600_000_000_000 + n) for n in range(50)]
        send(servers, topic, events, **{"compression.type": codec})
    shown = ["--formatter-property", "print.timestamp=true"]
    found = console_consumer(servers, topic, *shown, group=f"{topic}-group", count=250)
    assert sorted(found) == sorted(
        f"CreateTime:{1_600_000_000_000 + n}\t{codec} {n}"
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        for n in range(50)
    )


def test_topics_are_administered(servers: str, topic: str) -> None:
    name = f"{topic}-made"
    run(servers, TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=60000")
    run(servers, TOPICS, "--alter", "--topic", name, "--partitions", "4")
    described = run(servers, TOPICS, "--describe", "--topic", name)
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 1\s+Configs: .*retention.ms=60000", described)
    assert len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 4
    assert name in run(servers, TOPICS, "--list").splitlines()
    run(servers, TOPICS, "--delete", "--topic", name)
    assert name not in run(servers, TOPICS, "--list").splitlines()


def test_offsets_by_time(servers: str, topic: str) -> None:
    send(servers, topic, [Event(0, b"v", None, 1_600_000_000_000 + n * 1000) for n in range(10)])
    for time, offset in (("max-timestamp", 9), ("1600000004500", 5)):
        found = run(servers, OFFSETS, "--topic-partitions", f"{topic}:0", "--time", time)
        assert found.strip() == f"{topic}:0:{offset}"


def test_groups_are_administered(servers: str, topic: str) -> None:
    group = f"{topic}-group"
    send(servers, topic, [Event(n % PARTITIONS, b"%d" % n) for n in range(9)])
    assert len(console_consumer(servers, topic, group=group, count=9)) == 9
    rows = cells(run(servers, GROUPS, "--describe", "--group", group))
    assert sorted(row[:6] for row in rows if row[0] == group) == [
        [group, topic, str(partition), "3", "3", "0"] for partition in range(PARTITIONS)
    ]
    assert [group, "Empty"] in cells(run(servers, GROUPS, "--list", "--state"))
    reset = run(servers, GROUPS, "--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-2", "--execute")
    assert sorted(cells(reset)) == [[group, topic, str(partition), "1"] for partition in range(PARTITIONS)]
    assert len(console_consumer(servers, topic, group=group, count=6)) == 6
    run(servers, GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    left = [row[2] for row in cells(run(servers, GROUPS, "--describe", "--group", group)) if row[0] == group]
    assert sorted(left) == ["0", "2"]
    run(servers, GROUPS, "--delete", "--group", group)
    assert group not in run(servers, GROUPS, "--list").splitlines()


def test_configs_are_administered(servers: str, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run(servers, CONFIGS, *entity, "--alter", "--add-config", "retention.ms=60000,max.message.bytes=2000")
    run(servers, CONFIGS, *entity, "--alter", "--delete-config", "max.message.bytes")
    described = run(servers, CONFIGS, *entity, "--describe")
    assert "retention.ms=60000" in described
    assert "max.message.bytes" not in described
    everything = run(servers, CONFIGS, *entity, "--describe", "--all")
    assert "max.message.bytes=1048588" in everything


def test_records_are_deleted(servers: str, topic: str, tmp_path: Path) -> None:
    send(servers, topic, [Event(0, b"%d" % n) for n in range(10)])
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}
    (tmp_path / "offsets.json").write_text(json.dumps(wanted))
    said = run(servers, f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "offsets.json"))
    assert re.search(rf"{topic}-0\s+low_watermark: 4", said)
    found = run(servers, OFFSETS, "--topic-partitions", f"{topic}:0", "--time", "earliest")
    assert found.strip() == f"{topic}:0:4"
    assert console_consumer(servers, topic, count=6) == [str(n) for n in range(4, 10)]


@contextmanager
def verifiable_consumer(servers: str, topic: str, group: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Run a consumer that prints its events, line by line."""
    arguments = ["--topic", topic, "--group-id", group, "--session-timeout", "30000", "--reset-policy", "earliest"]
    process = subprocess.Popen(
        command(servers, f"{TOOLS}.VerifiableConsumer", arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None, "a pipe was asked for"
        with process.stdout as lines:
            yield (json.loads(line) for line in lines if line.startswith("{"))
            process.terminate()
            process.wait(TIMEOUT_S)  # it leaves its group before it ends
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def partitions_of(happenings: Iterator[dict[str, Any]], event: str) -> list[int]:
    found = next(happening for happening in happenings if happening["name"] == event)
    return sorted(partition["partition"] for partition in found["partitions"])


@pytest.mark.timeout(180)
def test_two_consumers_share_a_topic(servers: str, topic: str) -> None:
    everything = list(range(PARTITIONS))
    with verifiable_consumer(servers, topic, f"{topic}-group") as first:
        assert partitions_of(first, "partitions_assigned") == everything
        with verifiable_consumer(servers, topic, f"{topic}-group") as second:
            theirs = partitions_of(second, "partitions_assigned")
            assert partitions_of(first, "partitions_revoked") == everything
            ours = partitions_of(first, "partitions_assigned")
            assert sorted(ours + theirs) == everything
            assert ours
            assert theirs
        assert partitions_of(first, "partitions_assigned") == everything


def test_an_idempotent_producer_counts_every_record_acked(servers: str, topic: str) -> None:
    words = command(
        servers, f"{TOOLS}.VerifiableProducer", ["--topic", topic, "--max-messages", "2000", "--acks", "-1"]
    )
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])  # as the JVM ends
    assert (summary["sent"], summary["acked"]) == (2000, 2000)
    ends = [int(line.split(":")[2]) for line in run(servers, OFFSETS, "--topic", topic).splitlines()]
    assert sum(ends) == 2000


def test_kafkas_formatters_read_our_groups(servers: str, topic: str) -> None:
    """The state of groups is in Kafka's own record formats."""
    group = f"{topic}-group"
    send(servers, topic, [Event(0, b"v")])
    console_consumer(servers, topic, group=group, count=1)
    formatters = {"offsets": "OffsetsMessageFormatter", "groups": "GroupMetadataMessageFormatter"}
    offsets = read_records(servers, formatters["offsets"], group, lambda key, _: key["partition"] == 0)
    assert {key["partition"]: value["offset"] for key, value in offsets}[0] == 1
    states = read_records(servers, formatters["groups"], group, lambda _, value: not value["members"])
    assert [(state["protocol"], len(state["members"])) for _, state in states] == [("range", 1), (None, 0)]


def read_records(
    servers: str, formatter: str, group: str, is_last: Callable[[dict[str, Any], dict[str, Any]], bool]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Keys and values of a group's records, up to the last that is expected, as a formatter of Kafka's shows them."""
    arguments = ["--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "60000"]
    reader = command(servers, CONSUMER, [*arguments, "--formatter", f"{TOOLS}.consumer.{formatter}"])
    process = subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    decoder, text = json.JSONDecoder(), ""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        assert process.stdout is not None, "a pipe was asked for"
        with process.stdout as output:
            while not any(is_last(*each) for each in found):
                data = os.read(output.fileno(), 1 << 16)
                assert data, f"the tool ended after {found}"
                text += data.decode()
                while text:  # records arrive without separators, and in pieces
                    try:
                        record, end = decoder.raw_decode(text)
                    except json.JSONDecodeError:
                        break
                    assert isinstance(record, dict), f"instead of a record, the tool says {text}"
                    text = text[end:]
                    if record["key"]["data"]["group"] == group:
                        found.append((record["key"]["data"], record["value"]["data"]))
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    return found
