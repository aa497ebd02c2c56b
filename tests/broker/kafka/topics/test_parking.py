"""Requests that wait until their node serves what they name."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.kafka.topics.parking import PARKED_S, REQUEST_BYTES, Parking, parked_until_s
from tests.support.waiting import until


def exchange_of(frame_bytes: int = 0) -> Any:
    """A request whose connection is open."""
    return SimpleNamespace(
        frame_bytes=frame_bytes,
        closed=False,
        connection=SimpleNamespace(draining=False),
        on_close=None,
        on_drain=None,
    )


async def parked(parking: Parking, count: int) -> None:
    await until(lambda: len(parking) == count)


async def test_a_request_waits_until_what_it_names_is_served() -> None:
    parking, exchange, pending = Parking(), exchange_of(), [True]
    waiting = asyncio.create_task(parking.wait_while(lambda: pending[0], exchange, parked_until_s()))
    await parked(parking, 1)
    parking.begin("partition")
    parking.end("another one")
    parking.wake()
    await asyncio.sleep(0)
    assert not waiting.done(), "it looked, and has to wait on"
    pending[0] = False
    parking.end("partition")
    assert await waiting
    assert (len(parking), parking.bytes_held, parking.opening) == (0, 0, set())
    assert (exchange.on_close, exchange.on_drain) == (None, None)


async def test_what_is_served_already_is_not_waited_for() -> None:
    assert await Parking().wait_while(lambda: False, exchange_of(), 0.0)


async def test_a_request_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    assert 0 < parked_until_s() - loop.time() <= PARKED_S
    monkeypatch.setattr("anabranch.broker.kafka.topics.parking.PARKED_S", 0.01)
    parking = Parking()
    assert not await parking.wait_while(lambda: True, exchange_of(), parked_until_s())
    assert (len(parking), parking.bytes_held) == (0, 0)


@pytest.mark.parametrize("reason", ["closed", "draining"])
async def test_a_request_does_not_wait_for_a_client_that_is_gone_nor_at_a_node_that_stops(reason: str) -> None:
    parking, exchange = Parking(), exchange_of()
    waiting = asyncio.create_task(parking.wait_while(lambda: True, exchange, parked_until_s()))
    await parked(parking, 1)
    if reason == "closed":
        exchange.closed = True
        exchange.on_close()
    else:
        exchange.connection.draining = True
        exchange.on_drain()
    assert not await waiting
    assert len(parking) == 0


async def test_the_requests_that_wait_are_bounded_in_bytes() -> None:
    parking = Parking(bytes_max=3 * REQUEST_BYTES)
    pending = [True]
    waiting = [
        asyncio.create_task(parking.wait_while(lambda: pending[0], exchange_of(size), parked_until_s()))
        for size in (0, REQUEST_BYTES)
    ]
    await parked(parking, 2)
    assert parking.bytes_held == 3 * REQUEST_BYTES
    assert not await parking.wait_while(lambda: pending[0], exchange_of(), parked_until_s()), "there is no room"
    pending[0] = False
    parking.wake()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await parking.wait_while(lambda: pending[0], exchange_of(), parked_until_s())
