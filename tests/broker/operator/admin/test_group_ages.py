"""The lag of groups in time, on real nodes: from the log cache, and from objects after a restart."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.samples import Sample

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.metrics.exposition import scrape
from anabranch.broker.operator.admin.metrics.group_ages import LOOK_UPS_MAX, GroupAges, first_time_ms
from anabranch.protocol.batch import DELETE_HORIZON_MASK
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.model import ReadResult, StreamBatch
from tests.support.metrics import Samples
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import WAIT_S, until

pytestmark = pytest.mark.asyncio

NAME = "anabranch_consumergroup_lag_seconds"
COLD_READS = "anabranch_storage_cold_reads_total"
T0 = 1_700_000_000_000


async def fill(node: Node, client: RawClient) -> None:
    """Two batches of three records in one partition: at T0 and a minute later."""
    await node.serving.topic_commands.create("t", partitions=2, configs={"retention.ms": "-1"})
    for minute in (0, 1):
        await client.produce("t", [batch_of(b"a", b"b", b"c", timestamp_ms=T0 + minute * 60_000)])
    await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))


async def scraped(node: Node, ages: GroupAges) -> Samples:
    return Samples((await scrape(node, "", ages)).body)


def lag(samples: Samples, group: str) -> float | None:
    return samples.get(NAME, consumergroup=group, topic="t", partition="0")


async def test_the_age_is_that_of_the_first_batch_that_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await fill(node, client)
        for group, offset in (("begin", 0), ("within", 1), ("second", 3), ("end", 6), ("ahead", 9)):
            await client.commit_offset(group, "t", 0, offset)
        await client.commit_offset("empty", "t", 1, 0)
        monkeypatch.setattr(node.serving, "now_ms", lambda: T0 + 100_000)
        ages = GroupAges(node)
        samples = await scraped(node, ages)
        assert {group: lag(samples, group) for group in ("begin", "within", "second", "end", "ahead")} == {
            "begin": 100, "within": 100, "second": 40, "end": 0, "ahead": 0,
        }  # fmt: skip
        assert samples.get(NAME, consumergroup="empty", topic="t", partition="1") == 0
        assert samples.value(COLD_READS) == 0
        await client.produce("t", [build_batch([Record(None, b"untimed")])], partition=1)
        assert (await scraped(node, ages)).get(NAME, consumergroup="empty", topic="t", partition="1") is None
        # Records that were deleted are not waited for.
        await node.serving.topics.partition("t", 0).stream.trim(3)
        assert lag(await scraped(node, ages), "begin") == 40
        await node.serving.topic_commands.delete("t")
        assert not (await scraped(node, ages)).of(NAME)


async def test_old_records_are_looked_up_once_and_after_the_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await fill(node, client)
        await client.commit_offset("stopped", "t", 0, 3)
        await client.commit_offset("other", "t", 0, 3)
        await client.commit_offset("end", "t", 0, 6)
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
        monkeypatch.setattr(node.serving, "now_ms", lambda: T0 + 100_000)
        ages = GroupAges(node)
        await until(
            lambda: node.serving.groups.shards_loading == 0 and node.serving.groups.group_count() == 3, timeout_s=WAIT_S
        )
        before = (await scraped(node, ages)).value(COLD_READS)
        samples = await scraped(node, ages)
        assert samples.value("kafka_consumergroup_lag", consumergroup="stopped", topic="t", partition="0") == 3
        assert (lag(samples, "stopped"), samples.value(COLD_READS)) == (None, before), "a scrape reads no objects"
        # Another scrape begins before the look-up, and ends after it.
        pieces = ages.collect()
        next(pieces)
        ages.look_up()
        await until(lambda: len(samples_of(ages)) == 3, timeout_s=WAIT_S)
        assert not list(pieces)
        samples = await scraped(node, ages)
        assert (lag(samples, "stopped"), lag(samples, "other")) == (40, 40)
        assert samples.value(COLD_READS) == before + 1
        ages.look_up()
        assert (await scraped(node, ages)).value(COLD_READS) == before + 1
        await client.commit_offset("stopped", "t", 0, 0)
        async with asyncio.timeout(WAIT_S):
            while lag(samples, "stopped") != 100:
                samples = Samples(await asyncio.to_thread(read_page, node.ports.admin_address))


def samples_of(ages: GroupAges) -> Sequence[Sample]:
    return [sample for piece in ages.collect() for sample in piece.samples]


def read_page(address: str) -> bytes:
    with urlopen(f"http://{address}/metrics", timeout=WAIT_S) as response:
        return bytes(response.read())


async def test_what_cannot_be_read_does_not_hold_up_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await fill(node, client)
        await client.produce("t", [batch_of(*[b"x"] * LOOK_UPS_MAX, timestamp_ms=T0)])
        for offset in range(LOOK_UPS_MAX + 1):
            await client.commit_offset(f"group-{offset:02}", "t", 0, offset)
        failed: set[int] = set()

        async def read(_stream: object, offset: int, _bytes_max: int) -> ReadResult:
            if offset in failed or len(failed) < LOOK_UPS_MAX:
                failed.add(offset)
                raise StoreError("the store does not answer")
            return ReadResult((StreamBatch(1, offset, offset + 1, 1, T0, batch_of(b"v", timestamp_ms=T0)),), offset)

        stream = type(node.serving.topics.partition("t", 0).stream)
        monkeypatch.setattr(stream, "cached_batch", lambda *_: None)
        monkeypatch.setattr(stream, "read", read)
        monkeypatch.setattr(node.serving, "now_ms", lambda: T0 + 1000)
        ages = GroupAges(node)
        async with asyncio.timeout(WAIT_S):
            while not (found := samples_of(ages)):
                ages.look_up()
                await asyncio.sleep(0)
        assert [each.value for each in found] == [1]


async def test_the_time_of_a_batch_comes_from_its_header() -> None:
    def time_of(data: bytearray) -> int:
        return first_time_ms(StreamBatch(1, 0, 2, 2, 0, data))

    assert time_of(batch_of(b"a", b"b", timestamp_ms=T0)) == T0
    assert time_of(build_batch([Record(None, b"untimed")])) == -1
    cleaned = build_batch([Record(None, b"v", T0 + 5)], attributes=DELETE_HORIZON_MASK, base_timestamp=T0 - 9)
    assert time_of(cleaned) == T0 + 5
    assert time_of(bytearray(100)) == -1
