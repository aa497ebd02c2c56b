"""Records that are bombs cost a node little: it shows each as a line, serves others meanwhile, and stops cleanly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Producer

from tests.broker.operator.admin.api.test_decoder import HOSTILE
from tests.broker.operator.admin.api.test_decoder_worker import written
from tests.broker.operator.admin.api.test_schemas import PLACE, with_id
from tests.spark.pipeline.registry_server import running_registry
from tests.support.admin_api import lines_of
from tests.support.node import NodeProcess

pytestmark = pytest.mark.slow

BOMBS = ("nested records of nulls", "protobuf that takes time")
GROWTH_BYTES_MAX = 100 << 20


def peak_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


async def test_bombs_cost_a_node_little(tmp_path: Path) -> None:
    with running_registry() as registry:
        settings: dict[str, object] = {"admin_schema_registry_url": registry.url, "topic_num_partitions": 1}
        with NodeProcess(tmp_path, **settings) as node:
            place = registry.add("place", PLACE)
            producer = Producer({"bootstrap.servers": node.bootstrap})
            topics = [name.replace(" ", "-") for name in BOMBS]
            for topic, name in zip(topics, BOMBS, strict=True):
                source, data = HOSTILE[name]
                schema_id = registry.add(topic, source.text, source.kind)
                for value in (with_id(schema_id, data), with_id(place, written(PLACE, {"city": "Oslo"})), b"plain"):
                    producer.produce(topic, value)
            assert producer.flush(60) == 0
            before = peak_bytes(node.pid)
            async with aiohttp.ClientSession(f"http://{node.admin}") as session:

                async def read(topic: str) -> list[str]:
                    async with session.get(f"/api/v1/topics/{topic}/records?from=earliest") as response:
                        return [each["value"]["format"] for each in (await response.json())["records"]]

                async with asyncio.TaskGroup() as group:
                    reads = [group.create_task(read(topic)) for topic in topics]
                    for each in reads:
                        async with session.get("/health/live") as response:
                            assert response.status == 200
                        await each
                for bomb, _, plain in (each.result() for each in reads):
                    assert (bomb, plain) == ("hex", "text")
                path = f"/api/v1/topics/{topics[0]}/tail?from=earliest"
                async with session.get(path) as tail:
                    formats = [each["value"]["format"] async for each in _records_of(tail)]
                    assert (formats[0], formats[2]) == ("hex", "text")
                assert peak_bytes(node.pid) - before < GROWTH_BYTES_MAX
                async with asyncio.TaskGroup() as group:
                    group.create_task(_until_stopped(read(topics[0])))
                    await asyncio.to_thread(node.ask, "/health/live")  # the read has begun
                    assert await asyncio.to_thread(node.terminate) == 0


async def _records_of(tail: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The first three records of a stream."""
    left = 3
    async for line in lines_of(tail):
        if "value" in line:
            yield line
            left -= 1
        if not left:
            return


async def _until_stopped(reading: Awaitable[object]) -> None:
    with suppress(aiohttp.ClientError):
        await reading
