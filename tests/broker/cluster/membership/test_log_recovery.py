"""The recovery of a dead node's log by another node, in one process."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from structlog.testing import capture_logs

from anabranch.broker.cluster.membership import failover
from anabranch.broker.cluster.membership.environment import DiskLogFiles
from anabranch.broker.cluster.membership.log_recovery import DeadLog, LogRecovery, open_device_of
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.node.peers.liveness import DEAD_AFTER_S, SUSPECT_AFTER_S
from anabranch.s3stream.catalog.values import NodeInfo, Takeover, WalInfo, WalState
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NodeIdentity
from anabranch.wal.interface import WalRefused
from anabranch.wal.log import DeltaWal
from tests.support.node import running_node, settings_for
from tests.support.waiting import until

VALUES = [b"a", b"b", b"c"]


class Killed(Exception):
    """Ends a node as a crash does."""


def shared(folder: Path) -> dict[str, Any]:
    return {"catalog_url": f"sqlite:///{folder}/catalog.db", "objects_path": folder / "objects"}


@asynccontextmanager
async def killed_after(folder: Path, node_id: int, **wanted: Any) -> AsyncIterator[Node]:
    """Run a node that ends as in a crash after the block."""
    with suppress(Killed):
        async with running_node(folder / str(node_id), node_id=node_id, **shared(folder), **wanted) as node:
            yield node
            raise Killed


async def send(node: Node, *values: bytes, topic: str = "t", partition: int = 0) -> None:
    """Append to a partition, acked."""
    async with AIOKafkaProducer(bootstrap_servers=node.bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)


async def read(node: Node, count: int, topic: str = "t") -> list[bytes]:
    where = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap) as consumer:
        consumer.assign([where])
        await consumer.seek_to_beginning(where)
        return [(await consumer.getone()).value for _ in range(count)]


async def log_of(node: Node, node_id: int) -> WalInfo:
    """The newest log of a node, as the catalog knows it."""
    return (await node.serving.catalog.list_wals(node_id))[-1]


async def is_led_by(node: Node, leader: int, name: str = "t") -> None:
    """Wait until the topic's first partition is."""

    def found() -> bool:
        topic = node.serving.topics.get(name)
        return topic is not None and topic.info.partitions[0].owner == leader

    await until(found, timeout_s=60, pause_s=0.01)


async def test_a_recovery_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [StorageError("the store is away"), StorageError("the store is away")]
    run = LogRecovery.run

    async def flaky(self: LogRecovery, wal: WalInfo, node: NodeIdentity, dead_log: DeadLog) -> None:
        if failures:
            await dead_log.close()
            raise failures.pop()
        await run(self, wal, node, dead_log)

    monkeypatch.setattr(LogRecovery, "run", flaky)
    async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
        async with killed_after(tmp_path, 1) as node:
            await node.serving.topic_commands.create("t", partitions=1, configs={})
            await send(node, *VALUES)
        with capture_logs() as said:
            await is_led_by(other, 2)
        assert await read(other, len(VALUES)) == VALUES
        assert (await log_of(other, 1)).state is WalState.DRAINED
        assert not failures
        assert len([line for line in said if line["event"] == "a silent node is not taken over"]) == 1


async def test_a_recoverer_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, run = asyncio.Event(), LogRecovery.run

    async def stuck(self: LogRecovery, wal: WalInfo, node: NodeIdentity, dead_log: DeadLog) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await dead_log.close()

    async with killed_after(tmp_path, 1) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await send(node, *VALUES)
        monkeypatch.setattr(LogRecovery, "run", stuck)
        started = asyncio.create_task(_die_when(begun, tmp_path, node))
    await started
    monkeypatch.setattr(LogRecovery, "run", run)
    async with running_node(tmp_path / "3", node_id=3, **shared(tmp_path)) as third:
        assert (await log_of(third, 1)).recoverer == 2
        await is_led_by(third, 3)
        assert await read(third, len(VALUES)) == VALUES
        async with asyncio.timeout(60):  # the two logs are recovered side by side
            while {(await log_of(third, dead)).state for dead in (1, 2)} != {WalState.DRAINED}:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


async def _die_when(begun: asyncio.Event, folder: Path, _node: Node) -> None:
    async with killed_after(folder, 2):
        await begun.wait()


async def leave_a_gap(folder: Path) -> None:
    """Let node 1 die with a log that lacks records of `t`, and has nothing of `u`."""
    async with killed_after(folder, 1) as node:
        for name in ("t", "u"):
            await node.serving.topic_commands.create(name, partitions=1, configs={})
        await send(node, b"uploaded")
        await node.serving.storage.flush()
        await send(node, *VALUES)
    with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
        database.execute("DELETE FROM ranges")
        database.execute("UPDATE streams SET end_offset = 0")


async def test_a_stream_with_a_gap_waits_for_its_node(tmp_path: Path) -> None:
    await leave_a_gap(tmp_path)
    with capture_logs() as said:
        async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
            await until(
                lambda: any(line["event"] == "a partition waits for the return of its dead node" for line in said),
                timeout_s=60,
                pause_s=0.01,
            )
            await is_led_by(other, 2, "u")
            infos = {topic.name: topic.partitions[0] for topic in await other.serving.catalog.list_topics()}
            assert [(infos[name].leader, infos[name].owner) for name in "tu"] == [(1, 1), (2, 2)]
            assert (await log_of(other, 1)).state is WalState.OPEN
            # Long enough for it to be judged dead once more.
            await until(
                lambda: other.serving.membership.silent()[1].seconds > DEAD_AFTER_S + 0.5, timeout_s=60, pause_s=0.01
            )
            assert len([line for line in said if line["event"] == "a node is dead: it is taken over"]) == 1
    async with running_node(tmp_path / "1", node_id=1, **shared(tmp_path)) as node:
        assert len(node.serving.storage.stopped_streams) == 1


async def test_a_node_that_returned_to_a_stream_with_a_gap_is_taken_over_when_it_dies_again(tmp_path: Path) -> None:
    await leave_a_gap(tmp_path)
    async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
        await is_led_by(other, 2, "u")
        async with killed_after(tmp_path, 1) as node:
            await node.serving.topic_commands.create_all([TopicSpec("v", 1, {}, leaders=[1])])
            await send(node, *VALUES, topic="v")
        await is_led_by(other, 2, "v")
        assert await read(other, len(VALUES), "v") == VALUES


async def test_the_reason_why_a_node_is_not_taken_over_stands_until_it_is(tmp_path: Path) -> None:
    async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
        membership, failover = other.serving.membership, other.upkeep.failover

        def reason() -> str:
            (node,) = [each for each in membership.nodes if each.node_id == 1]
            judgement = failover.judge(node)
            return "" if judgement is None else judgement.reason

        async with killed_after(tmp_path, 1) as node:
            await node.serving.topic_commands.create_all([TopicSpec("t", 1, {}, leaders=[1])])
            path, elsewhere = tmp_path / "1" / "data" / "wal", tmp_path / "elsewhere"
            path.rename(elsewhere)
        with capture_logs() as said:
            await until(lambda: bool(reason()), timeout_s=60, pause_s=0.01)
            for _ in range(6):  # two attempts, and the pause between them
                await membership.observed()
                is_silent = membership.silent()[1].seconds >= SUSPECT_AFTER_S  # after a pause it counts anew
                assert not is_silent or "there is no such file or device" in reason()
        assert len([line for line in said if line["event"] == "a silent node is not taken over"]) == 1
        elsewhere.rename(path)
        await is_led_by(other, 2)
        await until(lambda: not reason(), timeout_s=60, pause_s=0.01)


async def test_a_node_whose_end_was_seen_is_taken_over_before_it_is_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "SUSPECT_AFTER_S", 1e9)
    async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
        async with killed_after(tmp_path, 1) as node:
            await node.serving.topic_commands.create_all([TopicSpec("t", 1, {}, leaders=[1])])
            await send(node, *VALUES)
            other.upkeep.failover.note_ended(1)
            for _ in range(3):
                await other.serving.membership.observed()
            await is_led_by(other, 1)
            assert not node.failed.done(), "what is said of a node that has its log is not believed"
        other.upkeep.failover.note_ended(1)
        await is_led_by(other, 2)
        assert await read(other, len(VALUES), "t") == VALUES


# who may open a log


@pytest.fixture
async def dead(tmp_path: Path) -> tuple[WalInfo, NodeInfo]:
    """The log of a dead node, and the node."""
    async with killed_after(tmp_path, 1) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await send(node, *VALUES)
        log, info = await log_of(node, 1), await node.serving.catalog.get_node(1)
    assert info is not None
    return log, info


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"location": "/nowhere/wal"}, "there is no such file or device"),
        ({"wal_id": "0" * 16}, "not the log 0000000000000000 of node 1"),
        ({"node_epoch": 99}, "or an older copy of it"),
    ],
)
async def test_a_log_that_is_not_to_be_opened_here_is_refused(
    tmp_path: Path, dead: tuple[WalInfo, NodeInfo], change: dict[str, Any], reason: str
) -> None:
    log, info = dead
    with pytest.raises(WalRefused, match=reason):
        await open_device_of(
            DiskLogFiles(), replace(log, **change), info, settings_for(tmp_path), info.holder.host_name
        )


async def test_a_log_on_another_machine_is_refused_unless_its_device_is_shared(
    tmp_path: Path, dead: tuple[WalInfo, NodeInfo]
) -> None:
    log, info = dead
    assert log.takeover is Takeover.MACHINE
    with pytest.raises(WalRefused, match="this is elsewhere"):
        await open_device_of(DiskLogFiles(), log, info, settings_for(tmp_path), "elsewhere")
    device = await open_device_of(
        DiskLogFiles(), replace(log, takeover=Takeover.SHARED), info, settings_for(tmp_path), "elsewhere"
    )
    await device.close()


async def test_the_log_of_a_process_that_lives_is_locked(tmp_path: Path) -> None:
    async with running_node(tmp_path / "1", node_id=1, **shared(tmp_path)) as node:
        log, info = await log_of(node, 1), await node.serving.catalog.get_node(1)
        assert info is not None
        with pytest.raises(WalRefused, match="in use"):
            await open_device_of(DiskLogFiles(), log, info, settings_for(tmp_path), info.holder.host_name)


async def test_a_shared_device_is_fenced_by_the_claim_before_each_ack(tmp_path: Path) -> None:
    async with running_node(tmp_path / "1", node_id=1, wal_takeover="shared", **shared(tmp_path)) as node:
        assert isinstance(node.wal, DeltaWal)
        assert node.wal.is_strict
        assert (await log_of(node, 1)).takeover is Takeover.SHARED
