"""The part `bytes`: what a table takes beside its topic, for four kinds of records."""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from anabranch.protocol.compression import Compression
from benchmarks.lab.table_files import TOPICS, Topic
from benchmarks.lab.tables.node import TableNode
from benchmarks.lab.tables.records import Kind, batches_of, enable, fill, json_kind
from benchmarks.support import Report

CODECS = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
LOG_LINES = 400_000
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0", "curl/8.14.1", "kube-probe/1.34")
PATHS = ("/api/v1/orders", "/api/v1/items", "/static/app.js", "/healthz", "/login")


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Fill a topic of each kind with each codec, and make tables of some."""
    share = 16 if options.quick else 1
    kinds = [
        *(real_kind(make(share)) for make in TOPICS.values()),
        Kind("logs", list(log_lines(LOG_LINES // share)), b""),
    ]
    with TableNode(home / "bytes") as node:
        for kind in kinds:
            blocks = {}
            for codec in CODECS:
                topic = f"{kind.name}-{codec.name.lower()}"
                node.create_topic(topic, 1, {"retention.ms": "-1"})
                fill(node, topic, batches_of(kind.values, codec), 1)
                blocks[codec] = node.pointer.range_bytes(topic)
            tables = {"raw": table_bytes(node, kind, "none", typed=False)}
            if kind.schema:
                tables["typed"] = table_bytes(node, kind, "lz4", typed=True)
            report.add(f"{kind.name}: records", len(kind.values), "")
            report.add(f"{kind.name}: value", kind.value_bytes, "B")
            for way, size in tables.items():
                report.add(f"{kind.name}, {way}: table", size / len(kind.values), "B/row")
                for codec in CODECS:
                    report.add(f"{kind.name}, {way}: over blocks, {codec.name.lower()}", size / blocks[codec], "x")


def real_kind(topic: Topic) -> Kind:
    """Return the values of real records."""
    return json_kind(topic.name, [record.value or b"" for record in topic.records])


def table_bytes(node: TableNode, kind: Kind, codec: str, *, typed: bool) -> int:
    """Let a topic become a table, and return the size of its data files."""
    topic = f"{kind.name}-{codec}"
    enable(node, topic, kind.configs(typed=typed))
    totals = node.pointer.totals(topic)
    assert totals.records == len(kind.values)
    return totals.size_bytes


def log_lines(count: int) -> Iterator[bytes]:
    """Yield lines of an access log."""
    dice = random.Random(7)
    for number in range(count):
        second = number // 20
        yield (
            f"10.{dice.randrange(4)}.{dice.randrange(256)}.{dice.randrange(256)} - - "
            f"[29/Nov/2026:{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02} +0000] "
            f'"{dice.choice(("GET", "GET", "GET", "POST"))} {dice.choice(PATHS)}/{dice.randrange(100_000)} HTTP/1.1" '
            f"{dice.choice((200, 200, 200, 200, 304, 404, 500))} {dice.randrange(50_000)} "
            f'"{dice.choice(AGENTS)}" {dice.random():.3f} {dice.getrandbits(64):016x}'
        ).encode()
