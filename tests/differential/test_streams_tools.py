"""`kafka-streams-groups.sh` beside a Kafka Streams application on both brokers: what it prints and changes."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.differential.peer import Peer
from tests.support.events import Event, create_topic, delete_topic, send
from tests.support.kafka_tools import CONFIGS, TOOLS, TOPICS, run_tool
from tests.support.streams_application import StreamsApplication
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS_GROUPS = f"{TOOLS}.streams.StreamsGroupCommand"
PARTITIONS = 2
WORDS = 100
WHILE_IT_RUNS = (
    "--list",
    "--list --state",
    "--list --state Stable",
    "--list --state Empty",
    "--describe --group app",
    "--describe --group app --verbose",
    "--describe --group app --state",
    "--describe --group app --state --verbose",
    "--describe --group app --members",
    "--describe --group app --members --verbose",
    "--describe --group app --topology",
    "--describe --group missing",
    "--delete --group app",
    "--delete --group missing",
    "--reset-offsets --group app --all-input-topics --to-earliest --execute",
    "--delete-offsets --group app --all-input-topics",
)
WHEN_IT_HAS_STOPPED = (
    "--list --state",
    "--describe --group app --state",
    "--describe --group app --members",
    "--describe --group app",
    "--reset-offsets --group app --all-input-topics --to-earliest --dry-run",
    "--reset-offsets --group app --all-input-topics --shift-by -5 --dry-run",
    "--reset-offsets --group app --all-input-topics --to-current --dry-run --export",
    "--reset-offsets --group app --input-topic words:0 --to-offset 10 --execute",
    "--reset-offsets --group app --all-input-topics --to-current --dry-run",
    "--reset-offsets --group app --input-topic words --to-datetime 2020-01-01T00:00:00.000 --execute",
    "--delete-offsets --group app --input-topic words:0",
    "--delete-offsets --group app --input-topic missing",
    "--reset-offsets --group app --all-input-topics --to-current --dry-run",
    "--reset-offsets --group app --all-input-topics --to-latest --execute --delete-internal-topic app-store-changelog",
    "--delete --group app --delete-all-internal-topics",
    "--delete --group app",
    "--list",
)
BY_CHANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=\s)[\w-]{22}(?=\s)|127\.0\.0\.1:\d+")
"""Ids and addresses."""
GROUP_CONFIGS = "streams.num.standby.replicas=1,streams.initial.rebalance.delay.ms=0"


def bootstrap(peer: Peer) -> str:
    return f"{peer.host}:{peer.port}"


def said(peer: Peer, tool: str, words: str) -> tuple[int, Sequence[str]]:
    """Exit code of a tool, and its lines without what differs by chance."""
    done = run_tool(tool, ["--bootstrap-server", bootstrap(peer), *words.split()])
    lines = [*done.stdout.splitlines(), *done.stderr.partition("\tat ")[0].splitlines()]
    return done.returncode, sorted(_plain(line) for line in lines)


def _plain(line: str) -> str:
    """A line's words. Leader epochs begin at 1 here, and offsets between transactions count as many as there were."""
    words = BY_CHANCE.sub("?", line).split()
    if words[:1] == ["app"] and len(words) == 7 and words[2].isdigit():
        current, end = words[3], words[5]
        words[3:6] = [current, "?", end] if words[1] == "words" else ["?"] * 3
    return " ".join(words)


def is_done(peer: Peer) -> bool:
    """True if the application has read to the end, also between its halves."""
    _, lines = said(peer, STREAMS_GROUPS, "--describe --group app")
    return [line.split()[-1] for line in lines if line.startswith("app ")] == ["0"] * 2 * PARTITIONS


def test_kafka_streams_groups_prints_and_changes_the_same(kafka: Peer, ours: Peer, tmp_path: Path) -> None:
    peers = (kafka, ours)
    for peer in peers:
        for topic in ("words", "counts"):
            create_topic(bootstrap(peer), topic, PARTITIONS)
        said(peer, CONFIGS, f"--alter --entity-type groups --entity-name app --add-config {GROUP_CONFIGS}")
        send(bootstrap(peer), "words", [Event(n % PARTITIONS, b"word-%d" % (n % 5)) for n in range(WORDS)])
    with ExitStack() as stack:
        instances = [
            stack.enter_context(StreamsApplication(tmp_path / str(number), bootstrap(peer)))
            for number, peer in enumerate(peers)
        ]
        for peer, instance in zip(peers, instances, strict=True):
            instance.wait_running()
            wait_until(partial(is_done, peer), "all is counted")
        for words in WHILE_IT_RUNS:
            assert said(ours, STREAMS_GROUPS, words) == said(kafka, STREAMS_GROUPS, words), words
        for instance in instances:
            instance.stop()
        for words in WHEN_IT_HAS_STOPPED:
            assert said(ours, STREAMS_GROUPS, words) == said(kafka, STREAMS_GROUPS, words), words
    for peer in peers:
        code, topics = said(peer, TOPICS, "--list")
        assert code == 0
        assert [name for name in topics if name.startswith("app")] == []
        for topic in ("words", "counts"):
            delete_topic(bootstrap(peer), topic)
