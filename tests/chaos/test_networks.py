"""A bad network between a node with real clients and its object store or its catalog."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.rig import SETTINGS, clients_on
from tests.faults.rig import Decide, faulty_node
from tests.support.fault_proxy import PASS, Fault
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.postgres_proxy import LossyServer, lossy_server
from tests.support.s3 import S3Bucket
from tests.support.soak import LONG
from tests.support.waiting import wait_until

pytestmark = [LONG, pytest.mark.timeout(400)]

FAULTS_MIN = 4
"""Faults of each kind."""
STALL_S = 3.0
"""Longer than the lease of the catalog."""
RESET = Fault(reset_before=True, reset=True)
WEATHERS = {
    "resets": RESET,
    "stalls": Fault(delay_ms=1_500),
    "lost answers": Fault(lose_answer=True, reset=True),
    "overload": Fault(status=503, code="SlowDown"),
}


def every_second(fault: Fault) -> Decide:
    """The fault for every second request."""
    turns: Iterator[int] = itertools.count()
    return lambda _: fault if next(turns) % 2 else PASS


def test_a_bad_network_before_the_objects(tmp_path: Path, bucket: S3Bucket) -> None:
    with faulty_node(tmp_path, bucket, **SETTINGS) as rig, clients_on(rig.node) as chaos:
        for fault in WEATHERS.values():
            rig.weather.faults = 0
            rig.weather.decide = every_second(fault)
            wait_until(lambda: rig.weather.faults >= FAULTS_MIN, "the weather was met")
            chaos.wait_for_acks(100)
        rig.weather.decide = lambda _: RESET
        wait_until(lambda: bool(rig.node.events("upload waits")), "the store is away")
        chaos.wait_for_acks(100)
        rig.node.kill9()
        rig.weather.clear()
        rig.node.start()
        chaos.end()


async def test_a_bad_network_before_the_catalog(tmp_path: Path, postgres: PostgresServer) -> None:
    async with lossy_server(postgres.new_database()) as proxy:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(under_a_bad_catalog, tmp_path, proxy, loop)
        assert proxy.lost == FAULTS_MIN


def under_a_bad_catalog(tmp_path: Path, proxy: LossyServer, loop: asyncio.AbstractEventLoop) -> None:
    """Bring lost answers, resets, stalls and refused connections to a node under load."""
    with NodeProcess(tmp_path, catalog_url=proxy.url, **SETTINGS) as node, clients_on(node) as chaos:
        proxy.losses = FAULTS_MIN
        wait_until(lambda: proxy.losses == 0, "answers are lost")
        chaos.wait_for_acks(100)
        for _ in range(FAULTS_MIN):
            loop.call_soon_threadsafe(proxy.reset_all)
            chaos.wait_for_acks(100)
        loop.call_soon_threadsafe(proxy.passing.clear)
        time.sleep(STALL_S)  # the length of the fault itself
        loop.call_soon_threadsafe(proxy.passing.set)
        chaos.wait_for_acks(100)
        proxy.refusing = True
        loop.call_soon_threadsafe(proxy.reset_all)
        wait_until(lambda: bool(node.status()["outages"]), "the catalog is away")
        chaos.wait_for_acks(100)
        proxy.refusing = False
        wait_until(lambda: not node.status()["outages"], "the outage is over")
        chaos.end()
