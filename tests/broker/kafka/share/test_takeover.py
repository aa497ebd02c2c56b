"""A share group on three real nodes, one of which is killed and another drained: nothing lost, nothing done twice."""

import asyncio
import time
from asyncio import to_thread
from collections import Counter
from pathlib import Path

import pytest

from anabranch.client.connection import Connection
from anabranch.s3stream.catalog.catalog import Catalog
from benchmarks.lab.cluster import NumberedLoad, bootstrap, create, leaders
from benchmarks.lab.share_members import configure
from benchmarks.lab.share_workers import GROUP, share_workers, wait_all_taken
from tests.support.node_processes import node_processes, terminate_all
from tests.support.waiting import until

TOPIC, PARTITIONS = "bench", 6


@pytest.mark.slow
async def test_what_is_acknowledged_stays_so_when_leaders_die_and_move(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    with node_processes(tmp_path, 3, url, cluster_internal_port=0, share_state_partitions=6) as nodes:
        await to_thread(create, nodes, TOPIC, PARTITIONS)
        with Connection(nodes[0].host, nodes[0].port) as connection:
            configure(connection, GROUP)
        load = NumberedLoad(bootstrap(nodes), PARTITIONS, at_once=PARTITIONS, pause_s=0.01)
        catalog = Catalog(url)
        await catalog.open(cluster="anabranch")
        async with share_workers([node.bootstrap for node in nodes], TOPIC, PARTITIONS) as (promises, keeper):

            async def all_take() -> None:
                """Wait until records that are fetched from now on were acknowledged in each partition."""
                now_s = time.monotonic()
                await until(lambda: len(promises.taken_since(now_s)) == PARTITIONS, pause_s=0.01)

            load.start()
            await all_take()
            led = await to_thread(leaders, nodes, TOPIC)
            killed = max(set(led), key=led.count)
            nodes[killed - 1].kill9()
            await all_take()
            drained = next(node_id for node_id in (1, 2, 3) if node_id != killed)
            await catalog.drain_node(drained, draining=True)
            while await catalog.count_open_streams(drained):  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0.01)
            await all_take()
            await to_thread(load.stop)
            await wait_all_taken(keeper)
        await catalog.close()
        assert not load.failed
        assert promises.released
        assert promises.lost(Counter(ack.partition for ack in load.acks)) == []
        await to_thread(terminate_all, nodes)
