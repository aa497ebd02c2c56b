"""Keys, values and names of headers may be any bytes: whatever shows or rewrites records takes them as they are."""

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from anabranch.broker.api.handlers.traced import trace_contexts
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.cli import main
from anabranch.protocol.compression import Compression
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import Record, build_batch, decode_records, header_name_bytes
from tests.support.admin_api import api_client
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client
from tests.tables.test_records import decode as decode_directly

TIME_MS = 1_700_000_000_000
NAMES = (b"\xff\xfe", b"\xed\xa0\x80", b"", b"caf\xc3\xa9", b"\x00\x1b[31m")
HEADERS = tuple((name.decode(errors="surrogateescape"), value) for name in NAMES for value in (b"\x80\xff", None))
OLD, KEPT = (
    Record(b"\xff\xfe", value, TIME_MS + at, HEADERS) for at, value in enumerate((b"old", b"\x80\x00not text\xc3"))
)
TRACE = Record(b"trace", b"", TIME_MS, (*HEADERS, ("traceparent", b"\xff")))


def consumed(node: Node, form: str, topic: str = "t") -> bytes:
    arguments = ["consume", topic, "--bootstrap-server", node.bootstrap, "--format", form]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


async def stored(client: RawClient) -> list[Record]:
    topic = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
    answer = await client.call(FetchRequest(max_bytes=1 << 20, topics=[topic]), 11)
    return decode_records(answer.responses[0].partitions[0].records)


async def test_every_reader_takes_any_bytes(tmp_path: Path) -> None:
    batch = build_batch([OLD, KEPT], compression=Compression.LZ4)
    configs = [
        CreatableTopicConfig(name=name, value=value)
        for name, value in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"))
    ]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client, api_client(node) as api:
        await client.call(CreateTopicsRequest(topics=[topic]), 7)
        answer = (await client.produce("t", [batch])).responses[0].partition_responses[0]
        assert not answer.error_code, "a compacted topic takes them"
        await node.serving.storage.flush()
        await node.upkeep.compaction.run_once()
        (found,) = await stored(client)
        assert (found.key, found.value, found.offset) == (KEPT.key, KEPT.value, 1)
        assert [(header_name_bytes(name), value) for name, value in found.headers] == [
            (name, value) for name in NAMES for value in (b"\x80\xff", None)
        ], "the cleaner keeps every byte"

        (shown,) = (await api.get("/topics/t/records", from_="earliest"))["records"]
        assert [each["name"] for each in shown["headers"][::2]] == [name.decode(errors="replace") for name in NAMES]
        printed = {form: await asyncio.to_thread(consumed, node, form) for form in ("text", "json", "raw", "hex", "%h")}
    assert rb"[\xff\xfe=\x80\xff]" in printed["text"]
    assert rb"[\xff\xfe=80ff]" in printed["hex"]
    assert b"\x80\x00not text\xc3\n" in printed["raw"]
    assert b"\xff\xfe=\x80\xff,\xff\xfe=NULL,\xed\xa0\x80=" in printed["%h"]
    (line,) = (line for line in printed["json"].splitlines() if line.startswith(b'{"topic"'))  # the node logs as well
    names = [each["name"] for each in json.loads(line)["headers"][::2]]
    assert names == [{"base64": "//4="}, {"base64": "7aCA"}, "", "café", "\x00\x1b[31m"]

    ((_, _, key, value, headers),) = decode_directly([bytes(build_batch([KEPT]))])
    assert (key, value) == (KEPT.key, KEPT.value)
    assert [name for name, _ in headers[::2]] == [name.decode(errors="replace") for name in NAMES]
    assert list(trace_contexts(build_batch([TRACE]))) == [("\ufffd", "")]


async def test_names_are_read_however_often_the_code_has_run(tmp_path: Path) -> None:
    """The interpreter calls what is warm without a look at the exceptions that a binding has left behind."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="many")]), 9)  # creates the topic
        await client.produce("many", [build_batch([KEPT] * 100)])
        printed = await asyncio.to_thread(consumed, node, "hex", "many")
    lines = [line for line in printed.splitlines() if b"key=" in line]
    assert len(lines) == 100
    assert all(rb"[\xff\xfe=80ff]" in line for line in lines)
