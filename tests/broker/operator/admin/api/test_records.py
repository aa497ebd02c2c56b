"""The JSON API shows records: from an offset or a time on, filtered, page by page, and as they arrive."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api import record_bytes, record_scan, records, streams
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch
from tests.support.admin_api import OPERATE, READ, TOKENS, ApiClient, api_client, lines_of, until_open
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

BASE_MS = 1_700_000_000_000


def batch(*given: tuple[bytes | None, bytes | None], headers: Any = (), **fields: Any) -> bytearray:
    """Records with these keys and values."""
    stored = [
        Record(key=key, value=value, timestamp_ms=BASE_MS + at, headers=headers)
        for at, (key, value) in enumerate(given)
    ]
    return build_batch(stored, **fields)


def texts(found: Any) -> list[str]:
    return [each["value"]["text"] for each in found["records"]]


async def test_a_record_is_shown_in_full(api: ApiClient, client: RawClient) -> None:
    headers = (("content-type", b"application/json"), ("none", None))
    await client.produce("t", [batch((b"k", b'{"a": 1}'), headers=headers)])
    found = await api.get("/topics/t/records", partition=0, from_="earliest")
    text = {"size": 1, "truncated": False, "schema": None, "error": None}
    assert found["records"] == [
        {
            "partition": 0,
            "offset": 0,
            "timestamp_ms": BASE_MS,
            "timestamp_type": "create",
            "size": 1 + 8 + 12 + 16 + 4,
            "key": {"format": "text", "text": "k", **text},
            "value": {"format": "json", "text": '{"a": 1}', **text, "size": 8},
            "headers": [
                {"name": "content-type", "value": {"format": "text", "text": "application/json", **text, "size": 16}},
                {"name": "none", "value": None},
            ],
            "more_headers": False,
            "transactional": False,
            "producer_id": None,
        }
    ]
    assert (found["next"], found["end"], found["scanned"], found["errors"]) == ({"0": 1}, True, 1, [])


async def test_pages_follow_each_other(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(*(b"%d" % at for at in range(7)))])
    found = await api.get("/topics/t/records", partition=0, from_="earliest", limit=3)
    assert (texts(found), found["next"], found["end"]) == (["0", "1", "2"], {"0": 3}, False)
    found = await api.get("/topics/t/records", partition=0, from_="offset:3", limit=4)
    assert (texts(found), found["next"], found["end"]) == (["3", "4", "5", "6"], {"0": 7}, True)
    await client.produce("t", [batch_of(b"b")], partition=1)
    found = await api.get("/topics/t/records", from_="offsets:0=5,1=0")
    assert (sorted(texts(found)), found["next"], found["end"]) == (["5", "6", "b"], {"0": 7, "1": 1}, True)
    found = await api.get("/topics/t/records", from_="offsets:0=6")
    assert (texts(found), found["next"]) == (["6"], {"0": 7})
    found = await api.get("/topics/t/records", partition=0, from_="offset:99")
    assert (texts(found), found["next"], found["end"]) == ([], {"0": 7}, True)


async def test_all_partitions_take_their_share(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(*(b"a%d" % at for at in range(5)))])
    await client.produce("t", [batch_of(b"b0", timestamp_ms=BASE_MS + 2)], partition=1)
    found = await api.get("/topics/t/records", from_="earliest", limit=4)
    assert texts(found) == ["a0", "a1", "a2", "b0"]
    assert (found["next"], found["end"]) == ({"0": 3, "1": 1}, False)
    assert texts(await api.get("/topics/t/records", limit=4)) == ["a2", "b0", "a3", "a4"], "the last of each"


async def test_records_since_a_time(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"1", b"2", b"3")])
    assert texts(await api.get("/topics/t/records", partition=0, from_=f"time:{BASE_MS + 1}")) == ["2", "3"]
    found = await api.get("/topics/t/records", partition=0, from_=f"time:{BASE_MS + 10}")
    assert (texts(found), found["next"]) == ([], {"0": 3})


async def test_records_that_pass_a_filter(api: ApiClient, client: RawClient) -> None:
    given = [(b"a", b"red apple"), (b"b", b"green apple"), (b"ab", b"red rose"), (None, None)]
    await client.produce("t", [batch(*given, compression=Compression.ZSTD)])
    await client.produce("t", [batch((b"c", b"plum"), headers=(("colour", b"red"),))])

    async def passing(**condition: str) -> list[int]:
        found = await api.get("/topics/t/records", from_="earliest", **condition)
        assert (found["scanned"], found["end"]) == (5, True)
        return [each["offset"] for each in found["records"]]

    assert await passing(contains="red") == [0, 4, 2]
    assert await passing(contains="colour") == [4]
    assert await passing(key="a") == [0]
    assert await passing(key="a", contains="rose") == []
    assert await passing(contains="apple", key="b") == [1]


async def test_records_in_objects_are_read(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        async with raw_client(node.bootstrap) as client:
            await client.produce("t", [batch_of(b"1", b"2")])
    async with running_node(tmp_path) as node, api_client(node) as api:
        assert node.serving.storage.log_cache_bytes == 0
        assert texts(await api.get("/topics/t/records", from_="earliest")) == ["1", "2"]


PAYLOADS: Final[list[Any]] = [
    (b"text", "auto", ("text", "text", None)),
    (b"12", "auto", ("json", "12", None)),
    (b"12", "text", ("text", "12", None)),
    (b"[1,", "auto", ("text", "[1,", None)),
    (b"[1,", "json", ("text", "[1,", "the payload is not JSON")),
    (b"a\x00b", "auto", ("hex", "610062", None)),
    (b"\xff", "text", ("hex", "ff", "the payload is not UTF-8")),
    ("ü".encode(), "hex", ("hex", "c3bc", None)),
    (b"", "auto", ("text", "", None)),
    (b"[" * 20_000, "json", ("text", "[" * 16_384, "the payload is too large for JSON")),
    (b"a" + "ü".encode() * 9000, "auto", ("text", "a" + "ü" * 8191, None)),
    (b"x", "avro", ("hex", "78", "avro cannot be decoded: there is no header with the id of a schema")),
]


async def test_payloads_are_shown_as_asked(api: ApiClient, client: RawClient) -> None:
    for at, (value, decode, shown) in enumerate(PAYLOADS):
        await client.produce("t", [batch_of(value)])
        (record,) = (await api.get("/topics/t/records", partition=0, from_=f"offset:{at}", decode=decode))["records"]
        found = record["value"]
        assert (found["format"], found["text"], found["error"]) == shown
        assert (found["size"], found["truncated"]) == (len(value), len(value) > 16_384)


async def test_the_id_of_a_schema_is_shown(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"\0\0\0\0\x2a\x02")])
    (record,) = (await api.get("/topics/t/records", from_="earliest"))["records"]
    assert record["value"]["schema"] == {"id": 42}
    assert (
        record["value"]["error"] == "there is no schema registry: nothing is in the cluster's, and none is configured"
    )


async def test_one_answer_is_bounded(api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.produce("t", [batch_of(*[b"x" * 1000] * 10)])
    monkeypatch.setattr(record_scan, "SHOWN_BYTES_MAX", 2500)
    found = await api.get("/topics/t/records", partition=0, from_="earliest")
    assert (len(found["records"]), found["next"], found["end"]) == (3, {"0": 3}, False)
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 0)
    found = await api.get("/topics/t/records", partition=0, from_="earliest")
    assert (found["records"], found["next"], found["end"]) == ([], {"0": 0}, False)
    monkeypatch.undo()
    monkeypatch.setattr(record_scan, "BATCH_RECORDS_MAX", 9)
    found = await api.get("/topics/t/records", partition=0, from_="earliest")
    assert found["errors"] == ["partition 0, offsets 0 to 9: a batch of 10 records is not shown"]
    assert (found["records"], found["next"], found["end"]) == ([], {"0": 10}, True)


async def test_headers_are_bounded(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch((b"k", b"v"), headers=tuple((f"h{at}", b"") for at in range(101)))])
    (record,) = (await api.get("/topics/t/records", from_="earliest"))["records"]
    assert (len(record["headers"]), record["more_headers"]) == (100, True)


@pytest.mark.parametrize(
    ("allowed", "reader", "operator"), [("nobody", 403, 403), ("operators", 403, 200), ("readers", 200, 200)]
)
async def test_a_setting_says_who_may_read_records(tmp_path: Path, allowed: str, reader: int, operator: int) -> None:
    async with running_node(tmp_path, admin_records=allowed, **TOKENS) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        for token, expected in ((READ, reader), (OPERATE, operator)):
            async with api_client(node, token) as api:
                for path in ("/topics/t/records", "/topics/u/tail", "/topics/t/partitions/0/records/0"):
                    with capture_logs() as logs:
                        status, answer, _ = await api.answer("GET", path)
                    if expected == 403:
                        assert (status, "admin.records" in answer["error"]) == (403, True)
                        assert [each["event"] for each in logs if each.get("listener")] == ["denied"]
                    elif path.endswith("records"):
                        assert status == 200
                        (event,) = [each for each in logs if each["event"] == "records read"]
                        assert (event["principal"], event["resource"]) == (
                            f"Token:{'read' if token == READ else 'operate'}",
                            "t",
                        )


async def first_news(lines: AsyncIterator[Any], since_ms: int) -> Any:
    """The first line that is no heartbeat. What happened at a time is sent before the second heartbeat after it."""
    late_heartbeats = 0
    async for line in lines:
        if "heartbeat_ms" not in line:
            return line
        late_heartbeats += line["heartbeat_ms"] > since_ms
        assert late_heartbeats < 2, "the stream goes on without the news"
    pytest.fail("the stream ended without news")


async def test_records_are_followed_as_they_arrive(
    api: ApiClient, client: RawClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "TAIL_POLL_S", 0.01)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(records, "HEARTBEAT_S", 0.0)
    await client.produce("t", [batch_of(b"before")])
    async with asyncio.timeout(60), api.session.get("/api/v1/topics/t/tail", params={"contains": "a"}) as response:
        assert response.content_type == "application/x-ndjson"
        lines = lines_of(response)
        assert set(await anext(lines)) == {"heartbeat_ms", "errors"}, "it is at the end of the topic"
        await client.produce("t", [batch_of(b"b")])
        await client.produce("t", [batch_of(b"a1")], partition=1)
        line = await first_news(lines, node.serving.now_ms())
        assert (line["value"]["text"], line["partition"], line["offset"]) == ("a1", 1, 0)
        await node.serving.topic_commands.delete("t")
        line = await first_news(lines, node.serving.now_ms())
        assert line == {"error": "the topic 't' is deleted"}
        with pytest.raises(StopAsyncIteration):
            await anext(lines)


async def test_a_stream_of_records_begins_at_once(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 3600.0)
    monkeypatch.setattr(records, "HEARTBEAT_S", 3600.0)
    async with asyncio.timeout(60), api.session.get("/api/v1/topics/t/tail") as response:
        assert set(await anext(lines_of(response))) == {"heartbeat_ms", "errors"}


async def test_few_streams_of_records_are_open_at_a_time(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    monkeypatch.setattr(records, "TAIL_POLL_S", 0.01)
    responses = [await api.session.get("/api/v1/topics/t/tail") for _ in range(records.TAILS_MAX)]
    assert {each.status for each in responses} == {200}
    status, _ = await api.failure("GET", "/topics/t/tail")
    assert status == 503
    for each in responses:
        each.close()

    await until_open(api, "/topics/t/tail")


WRONG_QUERIES: Final[list[Any]] = [
    ("limit=0", 400, "limit: Input should be greater than or equal to 1"),
    ("limit=501", 400, "limit: Input should be less than or equal to 500"),
    ("from=offsets:0=1,2=1", 404, "partition 2 of topic t does not exist"),
    ("from=offsets:0=", 400, "from: String should match pattern"),
    ("from=now", 400, "from: String should match pattern"),
    ("partition=2", 404, "partition 2 of topic t does not exist"),
    ("decode=xml", 400, "decode: Input should be"),
    ("json=id", 400, "json: a JSON path begins with $"),
    ("direction=up", 400, "direction: Input should be 'forward' or 'backward'"),
]


async def test_a_wrong_query_is_refused_in_one_line(api: ApiClient) -> None:
    for query, status, reason in WRONG_QUERIES:
        found, text = await api.failure("GET", f"/topics/t/records?{query}")
        assert (found, text.startswith(reason)) == (status, True), text


async def pages(api: ApiClient, **query: Any) -> AsyncIterator[Any]:
    """Page after page of a topic in one direction, from the newest."""
    found = await api.get("/topics/t/records", **query)
    yield found
    while not found["end"]:
        before = found["next"]
        cursor = "offsets:" + ",".join(f"{index}={offset}" for index, offset in before.items())
        found = await api.get("/topics/t/records", **{**query, "from_": cursor, "direction": "backward"})
        assert found["next"] != before, "each page is a step"
        yield found


async def test_pages_go_back_to_the_beginning(api: ApiClient, client: RawClient) -> None:
    for at in range(0, 40, 4):
        await client.produce("t", [batch_of(*(b"%d" % each for each in range(at, at + 4)))])
    found = [page async for page in pages(api, partition=0, limit=7)]
    numbers = [sorted(map(int, texts(page))) for page in found]
    assert numbers[:2] == [list(range(33, 40)), list(range(26, 33))]
    assert (found[0]["next"], found[0]["remaining"], found[0]["end"]) == ({"0": 33}, 33, False)
    assert sorted(each for page in numbers for each in page) == list(range(40))
    assert (found[-1]["next"], found[-1]["remaining"]) == ({"0": 0}, 0)
    assert sum(page["scanned"] for page in found) == 40
    before = await api.get("/topics/t/records", partition=0, from_="offset:3", direction="backward")
    assert (texts(before), before["end"]) == (["0", "1", "2"], True)


async def test_a_text_is_found_however_far_back_it_is(
    api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scan, "PIECE_BYTES", 4000)
    monkeypatch.setattr(record_scan, "FETCH_BYTES", 1000)
    monkeypatch.setattr(record_scan, "FETCH_BYTES_MIN", 100)
    await client.produce("t", [batch_of(b"needle")])
    for _ in range(30):
        await client.produce("t", [batch_of(*[b"hay" * 30] * 20)])
    found = await api.get("/topics/t/records", partition=0, contains="needle", limit=1)
    assert (texts(found), found["end"], found["next"], found["scanned"]) == (["needle"], True, {"0": 0}, 601)
    monkeypatch.setattr(records, "SCAN_BYTES_MAX", 10_000)
    steps = [page async for page in pages(api, partition=0, contains="needle", limit=1)]
    assert len(steps) > 5
    batch_bytes = 2000
    assert max(page["read_bytes"] for page in steps) < 10_000 + 3 * batch_bytes, "no more is read than is said"
    assert [texts(page) for page in steps if page["records"]] == [["needle"]]
    left = [page["remaining"] for page in steps]
    assert left == sorted(left, reverse=True)


async def test_large_records_are_read_back_in_short_pieces(
    api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scan, "PIECE_BYTES", 3000)
    monkeypatch.setattr(record_scan, "FETCH_BYTES", 1000)
    for at in range(12):
        await client.produce("t", [batch_of(b"%d " % at + b"x" * 2000)])
    found = await api.get("/topics/t/records", partition=0)
    assert [each.split()[0] for each in texts(found)] == [str(at) for at in range(12)]
    assert found["read_bytes"] < 24 * 2200, "a piece that was too long is given up early"


async def test_only_records_in_a_range_of_time_are_read(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch_of(*(b"%d" % at for at in range(10)))])
    late = Record(key=None, value=b"late", timestamp_ms=BASE_MS - 5)
    await client.produce("t", [build_batch([late])])

    async def between(since: int | None, until: int | None, **query: Any) -> list[str]:
        edges = {"since_ms": since, "until_ms": until}
        given = {name: BASE_MS + at for name, at in edges.items() if at is not None}
        return texts(await api.get("/topics/t/records", partition=0, **given, **query))

    for direction in ("latest", "earliest"):
        assert await between(3, 6, from_=direction) == ["3", "4", "5"]
        assert await between(8, None, from_=direction) == ["8", "9"]
        assert await between(None, 2, from_=direction) == ["0", "1"]
        assert await between(20, 30, from_=direction) == []


async def test_records_are_found_by_header_and_by_their_json(api: ApiClient, client: RawClient) -> None:
    await client.produce("t", [batch((b"a", b'{"items": [{"sku": "tea"}], "total": 5}'), headers=(("trace", b"t1"),))])
    await client.produce("t", [batch((b"b", b'{"items": [{"sku": "cup"}], "total": 20}'), headers=(("trace", b"t2"),))])
    await client.produce("t", [batch((b"c", b"[" * 100_000), headers=(("t1", None),))])

    async def found(**condition: str) -> list[int]:
        page = await api.get("/topics/t/records", partition=0, **condition)
        assert page["scanned"] == 3
        return [each["offset"] for each in page["records"]]

    assert await found(header="trace") == [0, 1]
    assert await found(header="trace=t2") == [1]
    assert await found(header="t1") == [2]
    assert await found(json='$.items[*].sku == "tea"') == [0]
    assert await found(json="$.total > 5") == [1]
    assert await found(json="$.items", header="trace=t1", contains="tea") == [0]


KEYS: Final[list[Any]] = [
    (b"42", "json", "42"),
    ((42).to_bytes(4, "big"), "int", "42"),
    ((42).to_bytes(8, "big"), "int", "42"),
    ((-2).to_bytes(8, "big", signed=True), "int", "-2"),
    (bytes.fromhex("6f9619ff8b86d0114a8c00c04fc964ff"), "hex", "6f9619ff8b86d0114a8c00c04fc964ff"),
    (bytes.fromhex("6f9619ff8b864011aa8c00c04fc964ff"), "uuid", "6f9619ff-8b86-4011-aa8c-00c04fc964ff"),
]


async def test_keys_that_are_integers_and_uuids_are_shown_and_found_as_such(api: ApiClient, client: RawClient) -> None:
    for key, _, _ in KEYS:
        await client.produce("t", [batch((key, b"v"))])
    found = await api.get("/topics/t/records", partition=0)
    assert [each["key"]["text"] for each in found["records"]] == [text for _, _, text in KEYS]
    assert [each["key"]["format"] for each in found["records"]] == [kind for _, kind, _ in KEYS]
    for text, offsets in (("42", [0, 1, 2]), ("-2", [3]), ("6F9619FF-8b86-4011-aa8c-00c04fc964ff", [5])):
        found = await api.get("/topics/t/records", partition=0, key=text)
        assert [each["offset"] for each in found["records"]] == offsets
    found = await api.get("/topics/t/records", partition=0, decode_key="uuid")
    assert found["records"][4]["key"]["text"] == "6f9619ff-8b86-d011-4a8c-00c04fc964ff"
    assert found["records"][0]["key"]["error"] == "a UUID has 16 bytes"
    found = await api.get("/topics/t/records", partition=0, decode_key="int")
    assert found["records"][5]["key"]["error"] == "an integer has 1, 2, 4 or 8 bytes"


async def test_a_record_is_read_whole_and_produced_again(api: ApiClient, client: RawClient) -> None:
    value = bytes(range(256)) * 100
    headers = (("trace", b"\xff"), ("none", None))
    await client.produce("t", [batch((b"a", b"first"), (None, value), headers=headers, compression=Compression.ZSTD)])
    found = await api.get("/topics/t/partitions/0/records/1")
    assert (found["partition"], found["offset"], found["timestamp_ms"], found["key"]) == (0, 1, BASE_MS + 1, None)
    assert b64decode(found["value"]) == value
    assert found["headers"] == [{"name": "trace", "value": "/w=="}, {"name": "none", "value": None}]
    again = {name: found[name] for name in ("key", "value", "headers")}
    await api.ask("POST", "/topics/t/records", {**again, "partition": 1, "encoding": "base64"})
    copy = await api.get("/topics/t/partitions/1/records/0")
    assert {name: copy[name] for name in again} == again


async def test_a_record_that_cannot_be_shown_whole_is_named(
    api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.produce("t", [batch((b"a", b"12345"))])
    await client.produce("t", [batch((b"a", b"1"), headers=(("\udcff", b""),))])
    monkeypatch.setattr(record_bytes, "WHOLE_BYTES_MAX", 5)
    for place, status, reason in (
        ("0/records/0", 413, "the record has more than 5 bytes"),
        ("0/records/1", 409, "the name of a header is no text"),
        ("0/records/2", 404, "partition 0 of topic t has no record at offset 2"),
        ("0/records/9", 400, "OFFSET_OUT_OF_RANGE"),
        ("0/records/x", 400, "'x' is no offset"),
        ("7/records/0", 404, "partition 7 of topic t does not exist"),
    ):
        assert await api.failure("GET", f"/topics/t/partitions/{place}") == (status, reason)


async def test_a_search_ends_when_its_client_goes(
    api: ApiClient, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, ended = asyncio.Event(), asyncio.Event()

    async def read(*_: object) -> None:
        reads.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await client.produce("t", [batch_of(b"1")])
    monkeypatch.setattr(record_scan.RecordReader, "fetch", read)
    search = asyncio.create_task(api.get("/topics/t/records", contains="x"))
    async with asyncio.timeout(60):
        await reads.wait()
        search.cancel()
        await ended.wait()
