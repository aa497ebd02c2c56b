"""`anabranch produce` and `anabranch consume` with a real node."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from anabranch.broker.operator.cli import consume_source, main
from anabranch.testing import Broker
from tests.support.waiting import WAIT_S


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).replace("[", ".").replace("]", "").replace(" ", "")[-200:]
    node.create_topic(name)
    return name


def run(node: Broker, command: str, *arguments: str, typed: bytes | str = b"") -> Result:
    servers = ["--bootstrap-server", node.bootstrap_servers]
    return CliRunner().invoke(main, [command, *arguments, *servers], input=typed)


def ok(node: Broker, command: str, *arguments: str, typed: bytes | str = b"") -> str:
    result = run(node, command, *arguments, typed=typed)
    assert result.exit_code == 0, result.output
    return result.stdout


def values(node: Broker, topic: str, *arguments: str) -> Sequence[str]:
    return ok(node, "consume", topic, "--format", "raw", *arguments).splitlines()


def test_lines_come_back_in_order(node: Broker, topic: str) -> None:
    result = run(node, "produce", topic, typed="one\n\ntwo \r\nlast")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"produced 4 records to {topic}\n"
    assert ok(node, "consume", topic, "--format", "%o=%v;") == "0=one;1=;2=two \r;3=last;"


def test_keys_headers_and_tombstones(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, "--key-separator", ":", "--header", "a=1", "--header", "a=", typed="k1:v:1\n:v2\n")
    ok(node, "produce", topic, "--tombstone", "--key", "k1")
    ok(node, "produce", topic, "--tombstone", typed="k2\n")
    ok(node, "produce", topic, "--key", "k3", typed="v3\n")
    shown = ok(node, "consume", topic, "--format", r"%t %p %o %K:%k %S:%v [%h] %%\n")
    assert shown.splitlines() == [
        f"{topic} 0 0 2:k1 3:v:1 [a=1,a=] %",
        f"{topic} 0 1 0: 2:v2 [a=1,a=] %",
        f"{topic} 0 2 2:k1 -1: [] %",
        f"{topic} 0 3 2:k2 -1: [] %",
        f"{topic} 0 4 2:k3 2:v3 [] %",
    ]


def test_text_and_hex_show_everything_and_control_no_terminal(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    producer.produce(
        topic, b"\x1b[31mred\xff", b"k\n", headers=[("h", b"\x07"), ("n", None)], timestamp=1_764_057_600_123
    )
    producer.produce(topic, None, "é".encode(), timestamp=1_764_057_600_123)
    assert producer.flush(WAIT_S) == 0
    time = "2025-11-25T08:00:00.123Z"
    assert ok(node, "consume", topic).splitlines() == [
        rf"0:0  {time}  key=k\n  [h=\x07]  [n=null]  \x1b[31mred\xff",
        f"0:1  {time}  key=é  (tombstone)",
    ]
    assert ok(node, "consume", topic, "--format", "hex", "--limit", "1") == (
        f"0:0  {time}  key=6b0a  [h=07]  [n=null]  1b5b33316d726564ff\n"
    )


def test_hex_is_produced(node: Broker, topic: str) -> None:
    typed = "6b,00ff\n,\n"
    ok(node, "produce", topic, "--format", "hex", "--key-separator", ",", typed=typed)
    ok(node, "produce", topic, "--format", "hex", "--key", "6B", typed="01")
    assert run(node, "produce", topic, "--format", "hex", "--key", "x").exit_code == 2
    lines = [json.loads(line) for line in ok(node, "consume", topic, "--format", "json").splitlines()]
    assert [(line["key"], line["value"]) for line in lines] == [("k", {"base64": "AP8="}), ("", ""), ("k", "\x01")]


def test_json_copies_records_with_everything(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(50):
        headers: list[tuple[str, str | bytes | None]] = [("same", b"1"), ("same", None), ("raw", b"\xff")]
        producer.produce(
            topic, bytes([number, 255 - number]), f"k{number}".encode(), timestamp=1_000 + number, headers=headers
        )
    producer.produce(topic, None, None, timestamp=5)
    producer.produce(topic, b"", b"", timestamp=6)
    assert producer.flush(WAIT_S) == 0
    copy = f"{topic}-copy"
    node.create_topic(copy, 3)
    written = ok(node, "consume", topic, "--format", "json")
    ok(node, "produce", copy, "--format", "json", "--keep-partitions", typed=written)
    copied = ok(node, "consume", copy, "--format", "json")
    assert copied == written.replace(f'"{topic}"', f'"{copy}"')
    assert len(copied.splitlines()) == 52
    by_key = f"{topic}-by-key"
    node.create_topic(by_key, 3)
    ok(node, "produce", by_key, "--format", "json", typed=written)
    assert {json.loads(line)["partition"] for line in ok(node, "consume", by_key, "--format", "json").splitlines()} == {
        0,
        1,
        2,
    }


def test_what_failed_is_said_by_its_line(node: Broker, topic: str) -> None:
    lines = ['{"value": "a"}', "{", '{"value": 1}', '{"key": "k"}', '{"value": null, "headers": [1]}', '{"value": "b"}']
    result = run(node, "produce", topic, "--format", "json", typed="\n".join(lines))
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in said[:4]] == ["line 2", "line 3", "line 4", "line 5"]
    assert said[4:] == [f"produced 2 records to {topic}", f"Error: 4 of 6 lines were not written to {topic}"]
    assert values(node, topic) == ["a", "b"]


def test_an_invalid_name_has_the_same_words_everywhere(node: Broker) -> None:
    said = "Error: topic not/valid: INVALID_TOPIC_EXCEPTION: topics have 1 to 249 letters, digits, `.`, `_` and `-` as "
    said += "names\n"
    servers = ["--bootstrap-server", node.bootstrap_servers]
    for command in (["topic", "create"], ["produce"], ["consume"], ["topic", "describe"]):
        result = CliRunner().invoke(main, [*command, "not/valid", *servers], input="x\n")
        assert (result.exit_code, result.stderr) == (1, said)
    node.create_topic("a.b")
    result = CliRunner().invoke(main, ["topic", "create", "a_b", *servers])
    assert "Topic 'a_b' collides with existing topic: a.b" in result.stderr


def test_a_record_that_is_too_large_takes_no_other_with_it(node: Broker) -> None:
    node.create_topic("small", configs={"max.message.bytes": 2_000})
    typed = "a\n" + "x" * 5_000 + "\nb\n"
    result = run(node, "produce", "small", typed=typed)
    assert result.exit_code == 1
    assert result.stderr.startswith("line 2: MSG_SIZE_TOO_LARGE: ")
    assert result.stderr.endswith("\nError: 1 of 3 lines was not written to small\n")
    assert values(node, "small") == ["a", "b"]


def test_many_failures_are_counted(node: Broker, topic: str) -> None:
    result = run(node, "produce", topic, "--format", "json", typed="x\n" * 30)
    assert result.stderr.count("not JSON") == 20
    assert "more lines failed" in result.stderr
    assert result.stderr.endswith(f"\nError: 30 of 30 lines were not written to {topic}\n")
    assert "produced" not in result.stderr


def test_a_file(node: Broker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(3_000)))
    ok(node, "produce", topic, "--file", str(file), "--compression", "zstd")
    assert values(node, topic) == [str(number) for number in range(3_000)]
    result = run(node, "produce", topic, "--file", str(tmp_path / "none"))
    assert (result.exit_code, "No such file" in result.output) == (2, True)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(node: Broker, topic: str, compression: str) -> None:
    typed = "".join(f"{number:0100}\n" for number in range(200))
    ok(node, "produce", topic, "--compression", compression, typed=typed)
    assert values(node, topic) == typed.splitlines()


def test_places(node: Broker, topic: str) -> None:
    lines = [json.dumps({"value": str(number), "timestamp": 1_000_000 + number * 1_000}) for number in range(10)]
    ok(node, "produce", topic, "--format", "json", typed="\n".join(lines))
    everything = [str(number) for number in range(10)]
    for arguments, expected in (
        (["--from", "earliest"], everything),
        (["--from", "beginning"], everything),
        (["--from", "start"], everything),
        (["--from", "latest"], []),
        (["--from", "end"], []),
        (["--from", "7"], everything[7:]),
        (["--from", "-3"], everything[7:]),
        (["--from", "-30"], everything),
        (["--from", "70"], []),
        (["--from", "1970-01-01T00:16:45Z"], everything[5:]),
        (["--from", "2h ago"], []),
        (["--until", "3"], everything[:3]),
        (["--until", "-2"], everything[:8]),
        (["--until", "1h"], everything),
        (["--from", "2", "--until", "1970-01-01T00:16:45Z"], everything[2:5]),
        (["--limit", "4"], everything[:4]),
        (["--contains", "7"], ["7"]),
        (["--partition", "0", "--key", "x"], []),
    ):
        assert values(node, topic, *arguments) == expected, arguments


def test_a_place_without_records_is_said_to_have_none(node: Broker) -> None:
    node.create_topic("short", 5)
    ok(node, "produce", "short", "--partition", "0", typed="a\nb\nc\n")
    zero, rest = "short-0 has offsets 0 to 2", "short-1 has no records, short-2 has no records, and 2 more partitions"
    for arguments, said in (
        (["--from", "5000"], f"no record is at or after --from: {zero}, {rest}\n"),
        (["--from", "2099-01-01", "--partition", "0"], f"no record is at or after --from: {zero}\n"),
        (["--until", "2020-01-01", "--partition", "0"], f"no record is before --until: {zero}\n"),
        (["--from", "-1", "--until", "1", "--partition", "0"], f"no record is between --from and --until: {zero}\n"),
        (["--from", "2"], ""),
        (["--partition", "1"], ""),
        (["--limit", "1", "--until", "2"], ""),
    ):
        result = run(node, "consume", "short", *arguments)
        assert (result.exit_code, result.stderr) == (0, said)


def test_what_cannot_be_read_is_said_in_one_line(node: Broker, topic: str) -> None:
    for arguments, code, said in (
        ([topic, "--partition", "1"], 1, f"topic {topic} has no partition 1: it has 1"),
        (["missing"], 1, "Error: topic missing does not exist\n"),
        (["not/valid"], 1, "topic not/valid: INVALID_TOPIC_EXCEPTION: topics have 1 to 249 letters"),
        ([topic, "--format", "xml"], 2, "expected text, json, raw, hex"),
        ([topic, "--format", "%x"], 2, "unknown %x in the format; known are %t topic, %p partition, "),
        ([topic, "--from", "3", "--until", "1"], 2, "Error: --from is after --until\n"),
        ([topic, "--from", "1h ago", "--until", "2h ago"], 2, "Error: --from is after --until\n"),
        ([topic, "--from", "-1", "--until", "-2"], 2, "Error: --from is after --until\n"),
        ([topic, "--from", "soon"], 2, "expected earliest, latest, an offset"),
        ([topic, "--group", "g", "--from", "5"], 2, "--group: its offsets say where to read"),
    ):
        result = run(node, "consume", *arguments)
        assert (result.exit_code, said in result.stderr) == (code, True), result.output
    result = run(node, "produce", topic, "--partition", "3")
    assert (result.exit_code, "has no partition 3" in result.stderr) == (1, True)


def test_transactions(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(WAIT_S) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(WAIT_S) == 0
    assert values(node, topic) == ["committed"]
    assert values(node, topic, "--isolation-level", "read_uncommitted") == ["aborted", "committed", "open"]
    producer.abort_transaction(WAIT_S)


def test_the_last_records_are_counted_where_offsets_have_none(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for number in range(12):
        producer.begin_transaction()
        producer.produce(topic, f"{number}")
        assert producer.flush(WAIT_S) == 0
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)(WAIT_S)
    everything = [str(number) for number in range(12) if number % 3 != 2]
    for count in (1, 2, 5, 8, 100):
        assert values(node, topic, "--from", f"-{count}") == everything[-count:], count
    assert values(node, topic, "--until", "-2") == everything[:-2]
    uncommitted = ("--isolation-level", "read_uncommitted")
    assert values(node, topic, "--from", "-2", *uncommitted) == ["10", "11"]
    ok(node, "produce", topic, typed="plain\n")
    assert values(node, topic, "-o", "-2") == ["10", "plain"]


def test_rows_of_several_topics_name_theirs(node: Broker, topic: str) -> None:
    other = f"{topic}-other"
    node.create_topic(other)
    ok(node, "produce", topic, typed="a\n")
    ok(node, "produce", other, typed="b\n")
    for form, shown in (("text", ("a", "b")), ("hex", ("61", "62"))):
        lines = ok(node, "consume", topic, other, "--format", form).splitlines()
        assert sorted((line.split()[0], line.split()[2]) for line in lines) == [
            (f"{topic}-0:0", shown[0]),
            (f"{other}-0:0", shown[1]),
        ]
    assert ok(node, "consume", topic, topic).startswith("0:0  "), "one topic needs no name"


def test_json_values_are_objects_where_that_is_wished(node: Broker, topic: str) -> None:
    lines = ['{"value": {"a": [1, "é", 1.10]}}', '{"value": [1]}', '{"value": {"base64": "AP8="}}', '{"value": "{x"}']
    ok(node, "produce", topic, "-f", "json", typed="\n".join(lines))
    ok(node, "produce", topic, typed='{"exact": 12345678901234567890.10, "a": 1, "a": 2}\n{"x": NaN}\n"text"\n5\n')
    plain = [json.loads(line)["value"] for line in ok(node, "consume", topic, "-f", "json").splitlines()]
    assert plain[:4] == ['{"a":[1,"é",1.1]}', "[1]", {"base64": "AP8="}, "{x"]
    shown = ok(node, "consume", topic, "-f", "json", "--json-values").splitlines()
    found = [json.loads(line)["value"] for line in shown]
    assert found[:4] == [{"a": [1, "é", 1.1]}, [1], {"base64": "AP8="}, "{x"]
    assert '"value": {"exact": 12345678901234567890.10, "a": 1, "a": 2}, "headers"' in shown[4], "as it was produced"
    assert found[5:] == ['{"x": NaN}', '"text"', "5"]
    result = run(node, "consume", topic, "--json-values")
    assert (result.exit_code, "--json-values needs --format json" in result.stderr) == (2, True)


def committed(node: Broker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_S)
    consumer.close()
    return int(found.offset)


def test_a_group_commits_what_was_printed(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, typed="a\nb\nc\n")
    assert values(node, topic, "--group", topic, "--limit", "2") == ["a", "b"]
    assert committed(node, topic, topic) == 2
    assert values(node, topic, "--group", topic) == ["c"]
    assert values(node, topic, "--group", topic) == []
    assert committed(node, topic, topic) == 3
    assert values(node, topic, "--group", f"{topic}-new", "--from", "latest") == []


def test_follow_waits_and_ctrl_c_ends_it(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, typed="old\n")
    command = [sys.executable, "-m", "anabranch", "consume", topic, "--follow"]
    # A shell that starts tests in the background has them ignore the signal, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reader = subprocess.Popen(
        [*command, "--from", "earliest", "--format", "raw", "--bootstrap-server", node.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "old\n"
        ok(node, "produce", topic, typed="new\n")
        assert reader.stdout.readline() == "new\n"
        reader.send_signal(signal.SIGINT)
        _, errors = reader.communicate()
    assert reader.returncode == 130, errors
    assert errors == ""


def test_follow_ends_when_its_reader_has_ended(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, typed="old\n")
    command = [sys.executable, "-m", "anabranch", "consume", topic, "--follow", "--from", "earliest", "--format", "raw"]
    read, write = os.pipe()
    with subprocess.Popen([*command, "--bootstrap-server", node.bootstrap_servers], stdout=write) as reader:
        os.close(write)
        assert os.read(read, 10) == b"old\n"
        os.close(read)
    assert reader.returncode == 0


def test_a_terminal_is_told_that_a_group_is_joined(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, typed="a\n")
    command = [sys.executable, "-m", "anabranch", "consume", topic, "--group", topic, "--format", "raw"]
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*command, "--bootstrap-server", node.bootstrap_servers], stdout=subprocess.PIPE, stderr=terminal
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read() == b"a\n"
    os.close(terminal)
    assert os.read(master, 1000) == f"joining group {topic} ...\r\n".encode()
    os.close(master)


def test_a_reader_that_ends_is_no_error(node: Broker, topic: str) -> None:
    ok(node, "produce", topic, typed="".join(f"{number:0200}\n" for number in range(5_000)))
    command = [sys.executable, "-m", "anabranch", "consume", topic, "--format", "raw"]
    read, write = os.pipe()
    with subprocess.Popen(
        [*command, "--bootstrap-server", node.bootstrap_servers], stdout=write, stderr=subprocess.PIPE
    ) as reader:
        os.close(write)
        assert os.read(read, 10) == b"0" * 10
        os.close(read)
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode == 0


def test_a_topic_is_created_if_the_node_does_that(node: Broker) -> None:
    ok(node, "produce", "made-by-use", typed="x\n")
    assert values(node, "made-by-use") == ["x"]


def test_standard_streams_that_fail_are_one_line(node: Broker, topic: str) -> None:
    command = f'"{sys.executable}" -m anabranch {{}} {topic} --bootstrap-server {node.bootstrap_servers}'

    def shell(command_line: str) -> tuple[int, str, str]:
        done = subprocess.run(["bash", "-c", command_line], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    produce, consume = command.format("produce"), command.format("consume --format raw")
    assert shell(f"seq 3 | {produce} >&-") == (0, "", f"produced 3 records to {topic}\n")
    assert shell(f"seq 3 | {produce} 2>&-") == (0, "", "")
    assert shell(f"{produce} <&-") == (1, "", "Error: standard input: it is closed\n")
    assert shell(f"{consume} > /dev/full") == (1, "", "Error: standard output: No space left on device\n")
    assert shell(f"{consume} --group {topic} >&-")[::2] == (1, "Error: standard output: it is closed\n")
    assert committed(node, topic, topic) < 0
    assert shell(f"{consume} <&- 2>&-") == (0, "1\n2\n3\n" * 2, "")


@pytest.mark.parametrize("member", [(), ("--group", "silence")])
def test_a_node_that_sends_nothing_of_what_there_is_is_named(
    node: Broker, topic: str, member: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer is not told while a leader cannot read its store: it asks again and again."""
    ok(node, "produce", topic, typed="one\n")
    monkeypatch.setattr(consume_source, "SILENCE_S", 1)
    node.fail_next("Fetch", "KAFKA_STORAGE_ERROR", times=1_000_000)
    result = run(node, "consume", topic, *member)
    node.heal()
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"nothing has come of {topic}-0 for 1 s: perhaps a leader, or its object store, is away" in result.stderr
