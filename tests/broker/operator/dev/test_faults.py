"""The slow store of a test node."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from anabranch.broker.operator.dev.faults import Faults
from anabranch.s3stream.store.interface import ObjectStore
from tests.support.memory_store import MemoryStore


async def listed(store: ObjectStore) -> list[str]:
    return [found.key async for found in store.list()]


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "put": lambda store: store.put("k", [b"x"], writer_id="w"),
    "start_multipart": lambda store: store.start_multipart("m", writer_id="w"),
    "abort_multipart": lambda store: store.abort_multipart("m", "1"),
    "get": lambda store: store.get("there", 0, 1),
    "get_tail": lambda store: store.get_tail("there", 1),
    "writer_id": lambda store: store.writer_id("there"),
    "delete": lambda store: store.delete(["there"]),
    "list": listed,
}


@pytest.mark.parametrize("call", CALLS)
async def test_each_call_waits_and_then_answers_as_the_store_does(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MemoryStore("memory", now_ms=lambda: 0)
    await inner.put("there", [b"old"], writer_id="w")
    faults = Faults()
    store = faults.wrap_stores({"memory": inner})["memory"]
    waits: list[float] = []

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    faults.store_delay_s = 0.25
    slow = await CALLS[call](store)
    assert waits == [0.25]
    faults.clear()
    assert type(await CALLS[call](store)) is type(slow)
    assert waits == [0.25], "no more"
    assert (store.name, store.calls) == (inner.name, inner.calls)


def test_all_calls_of_a_store_are_tried() -> None:
    assert set(CALLS) == {name for name in vars(ObjectStore) if not name.startswith("_")} - {
        "open",
        "close",
        "name",
        "calls",
        "uri",
    }
