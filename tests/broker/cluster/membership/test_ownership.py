"""Reads are answered only while this node has proved not long ago that it owns what it serves."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.broker.cluster.membership.ownership import CHECK_S, Ownership
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.peers.liveness import DEAD_AFTER_S
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.errors import CatalogUnavailable
from anabranch.wal.interface import WalFailed
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import raw_client
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

LEASE_S = 3.0


class AskedWal:
    """A log that proves the ownership while it answers."""

    def __init__(self) -> None:
        self.answers = True
        self.delay_s = 0.0
        self.asked = 0

    async def prove_ownership(self) -> None:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        if not self.answers:
            raise WalFailed("away")


def ownership_of(
    wal: AskedWal, *, is_exclusive: bool = False, on_proved: Callable[[], None] = lambda: None
) -> Ownership:
    return Ownership(cast("Any", wal), is_exclusive=is_exclusive, lease_s=lambda: LEASE_S, on_proved=on_proved)


def is_proved(ownership: Ownership) -> bool:
    return ownership.is_proved


def running(ownership: Ownership, body: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """The body beside the task that asks the log."""

    async def main() -> None:
        task = asyncio.create_task(ownership.run())
        await body
        task.cancel()

    return main()


def test_a_log_that_nobody_else_can_open_needs_no_proof() -> None:
    async def main() -> None:
        ownership = ownership_of(AskedWal(), is_exclusive=True)
        await ownership.run()
        await asyncio.sleep(100 * LEASE_S)
        assert ownership.is_proved
        assert not ownership.may_lapse

    run_virtual(main())


def test_a_proof_holds_for_a_lease_from_when_it_was_asked_for() -> None:
    async def main() -> None:
        proved: list[bool] = []
        ownership = ownership_of(AskedWal(), on_proved=lambda: proved.append(True))
        now_s = asyncio.get_running_loop().time
        await asyncio.sleep(LEASE_S - 0.5)
        assert ownership.is_proved
        ownership.prove(now_s() - 1)
        await asyncio.sleep(LEASE_S - 1.1)
        assert is_proved(ownership)
        await asyncio.sleep(0.2)
        assert not is_proved(ownership)
        ownership.prove(now_s() - LEASE_S)
        assert not is_proved(ownership), "the answer comes too late"
        assert proved == []
        ownership.prove(now_s())
        assert is_proved(ownership)
        assert proved == [True]

    run_virtual(main())


def test_the_log_is_asked_while_no_beat_goes_through_and_only_then() -> None:
    async def main() -> None:
        wal = AskedWal()
        ownership = ownership_of(wal)

        async def body() -> None:
            for _ in range(20):
                await asyncio.sleep(0.5)
                ownership.prove(asyncio.get_running_loop().time())
            assert wal.asked == 0
            await asyncio.sleep(3 * LEASE_S)
            assert is_proved(ownership)
            assert wal.asked >= 3 * LEASE_S / CHECK_S - 2
            wal.answers = False
            await asyncio.sleep(LEASE_S + CHECK_S)
            assert not is_proved(ownership), "neither beat nor log"
            wal.answers, wal.delay_s = True, 2 * LEASE_S
            await asyncio.sleep(5 * LEASE_S)
            assert not is_proved(ownership), "what is proved is over when the answer comes"
            wal.delay_s = 0.0
            await asyncio.sleep(LEASE_S + 2 * CHECK_S)
            assert is_proved(ownership)

        await running(ownership, body())

    run_virtual(main())


def latest(topic: str = "t") -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])


async def leader(node: Node) -> int:
    async with raw_client(node.bootstrap) as client:
        metadata = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    return int(metadata.topics[0].partitions[0].leader_id)


async def test_reads_stop_while_the_ownership_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        assert node.serving.ownership.is_proved
        assert not node.serving.ownership.may_lapse, "the file's lock is proof enough"
        proof = SimpleNamespace(is_proved=False, may_lapse=True)
        node.serving.ownership = cast("Any", proof)
        assert await leader(node) == -1
        with monkeypatch.context() as patch:
            patch.setattr("anabranch.broker.kafka.topics.parking.PARKED_S", 0.2)
            async with raw_client(node.bootstrap) as client:
                client.send(latest())
                assert await client.closed()
        async with raw_client(node.bootstrap) as client:
            assert (await client.produce("t", [b""])).responses, "it is not a read"
            client.send(latest())
            await until(lambda: len(node.serving.parking) == 1)
            proof.is_proved = True
            node.serving.parking.wake()
            assert (await client.receive(ListOffsetsRequest))[1].topics[0].partitions[0].error_code == 0
        assert await leader(node) == node.serving.node_id


async def test_a_node_whose_catalog_is_away_reads_on_while_its_log_proves_that_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each was alone at first, and its proof from then holds for a lease.
    async with running_nodes(tmp_path, 2, wal_kind="object", catalog_lease_ms=6_000) as (first, second):
        await first.serving.topic_commands.create("t", partitions=1, configs={})
        (leading,) = [node for node in (first, second) if list(node.serving.topics.led_partitions())]
        assert leading.serving.ownership.may_lapse

        async def no_beat(*_: object, **__: object) -> None:
            raise CatalogUnavailable("away")

        for node in (first, second):  # while a single one is cut off, the other takes it over
            monkeypatch.setattr(node.serving.catalog, "beat", no_beat)
        asked: list[float] = []
        prove = leading.wal.prove_ownership

        async def proving() -> None:
            await prove()
            asked.append(asyncio.get_running_loop().time())

        monkeypatch.setattr(leading.wal, "prove_ownership", proving)
        began = asyncio.get_running_loop().time()
        await until(lambda: bool(asked) and asked[-1] - began > DEAD_AFTER_S - CHECK_S, timeout_s=60, pause_s=0.05)
        assert leading.serving.ownership.is_proved
        monkeypatch.undo()  # a node that cannot beat stops only after all it could wait for
