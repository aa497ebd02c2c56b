"""kcat: librdkafka in the version of Linux distributions, a few years old."""

import json
import subprocess
from typing import Any

import pytest

from tests.interop.records import PARTITIONS
from tests.support.tools import kcat

pytestmark = pytest.mark.interop

TIMEOUT_S = 60


def run(servers: str, *arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [kcat(), "-b", servers, "-q", *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_comes_back(servers: str, topic: str, codec: str) -> None:
    lines = b"".join(b"key%d:value %d\n" % (n, n) for n in range(500))
    run(servers, "-P", "-t", topic, "-K:", "-z", codec, "-H", "a=1", "-H", "b=2", stdin=lines)
    found = run(servers, "-C", "-t", topic, "-o", "beginning", "-e", "-f", "%k:%s %h\\n")
    assert sorted(found.splitlines()) == sorted(f"key{n}:value {n} a=1,b=2" for n in range(500))


def test_a_group_reads_on_where_it_stopped(servers: str, topic: str) -> None:
    group = ("-G", f"{topic}-group", "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=30000", "-e", topic)
    run(servers, "-P", "-t", topic, "-K:", stdin=b"a:1\nb:2\nc:3\n")
    assert sorted(run(servers, "-f", "%s\\n", *group).splitlines()) == ["1", "2", "3"]
    run(servers, "-P", "-t", topic, "-K:", stdin=b"a:4\nd:5\n")
    assert sorted(run(servers, "-f", "%s\\n", *group).splitlines()) == ["4", "5"]


def test_metadata(servers: str, topic: str) -> None:
    found: dict[str, Any] = json.loads(run(servers, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in found["brokers"]] == [servers]
    partitions = found["topics"][0]["partitions"]
    assert [partition["partition"] for partition in partitions] == list(range(PARTITIONS))
    assert {partition["leader"] for partition in partitions} == {found["brokers"][0]["id"]}


def test_offsets_by_time_and_from_the_end(servers: str, topic: str) -> None:
    run(servers, "-P", "-t", topic, "-p", "0", stdin=b"one\ntwo\nthree\n")
    assert run(servers, "-Q", "-t", f"{topic}:0:0").split() == [topic, "[0]", "offset", "0"]
    assert run(servers, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "3"
    assert run(servers, "-C", "-t", topic, "-p", "0", "-o", "-2", "-e", "-f", "%o %s\\n") == "1 two\n2 three\n"


def test_an_idempotent_producer(servers: str, topic: str) -> None:
    lines = b"".join(b"%d\n" % n for n in range(5000))
    settings = ("-X", "enable.idempotence=true", "-X", "batch.num.messages=100")
    run(servers, "-P", "-t", topic, "-p", "1", *settings, stdin=lines)
    assert run(servers, "-C", "-t", topic, "-p", "1", "-o", "beginning", "-e") == lines.decode()
