"""States of share partitions on three nodes, one of which is killed: no acknowledged write is lost."""

import asyncio
from asyncio import to_thread
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from anabranch.broker.kafka.share.interface import DeliveryState, ShareKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.differential.scripts import share_states
from tests.support.node_processes import node_processes, terminate_all
from tests.support.raw_client import RawClient, connect
from tests.support.waiting import until

GROUPS: Final = [f"group-{at}" for at in range(9)]
WRITES_AFTER: Final = 5
"""Writes of each key that must be answered after the death of its coordinator."""


class Leader:
    """A leader of share partitions that writes one acknowledgement after the other, at whichever node is asked for."""

    def __init__(self, key: ShareKey, addresses: dict[int, str]) -> None:
        self.key = key
        self.acknowledged: list[int] = []
        """Offsets whose write was answered with success."""
        self.node_id = -1
        self._addresses = addresses
        self._client: RawClient | None = None

    async def run(self) -> None:
        """Write until cancelled."""
        offset = 0
        while True:
            try:
                if self._client is None:
                    self._client = await self._connect()
                await self._write(self._client, offset)
                self.acknowledged.append(offset)
                offset += 2  # offsets with gaps stay apart in the state
            except (OSError, EOFError, TimeoutError, _Refused):
                await self._forget()
                await asyncio.sleep(0.05)  # what is being taken over now is asked for again

    async def _connect(self) -> RawClient:
        for address in self._addresses.values():
            with suppress(OSError, EOFError, TimeoutError):
                client = await connect(address)
                request = FindCoordinatorRequest(key_type=2, coordinator_keys=[self.key.text])
                (found,) = (await client.call(request, 6)).coordinators
                await client.close()
                if not found.error_code:
                    self.node_id = found.node_id
                    return await connect(f"{found.host}:{found.port}")
        raise _Refused

    async def _write(self, client: RawClient, offset: int) -> None:
        group, topic_id, partition = self.key
        batch = (offset, offset, DeliveryState.ACKNOWLEDGED, 1)
        request = share_states.write(group, topic_id, partition, (1, 1), 0, len(self.acknowledged) + 1, batch)
        (result,) = (await client.call(request, 1)).results[0].partitions
        if result.error_code:
            assert result.error_code in {ErrorCode.NOT_COORDINATOR, 14, 15}, result
            raise _Refused

    async def begin(self) -> None:
        """Begin the state."""
        while self._client is None:
            with suppress(_Refused):
                self._client = await self._connect()
        group, topic_id, partition = self.key
        for request in (
            share_states.initialize(group, topic_id, (partition, 1, 0)),
            share_states.read(group, topic_id, (partition, 1)),
        ):
            (result,) = (await self._client.call(request, 0)).results[0].partitions
            assert not result.error_code, result

    async def stored(self) -> set[int]:
        """The offsets that are acknowledged in the state, as the next leader reads it."""
        await self._forget()
        client = await self._connect()
        group, topic_id, partition = self.key
        (result,) = (await client.call(share_states.read(group, topic_id, (partition, 2)), 0)).results[0].partitions
        await client.close()
        assert not result.error_code, result
        return {at for each in result.state_batches for at in range(each.first_offset, each.last_offset + 1)}

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError):
                await client.close()


class _Refused(Exception):
    """The node does not keep the state."""


@pytest.mark.slow
async def test_no_acknowledged_write_is_lost_with_the_node_of_a_state(tmp_path: Path) -> None:
    nodes = node_processes(
        tmp_path, 3, f"sqlite:///{tmp_path}/catalog.db", cluster_internal_port=0, share_state_partitions=6
    )
    with nodes as processes:
        addresses = {at + 1: node.bootstrap for at, node in enumerate(processes)}
        client = await connect(processes[0].bootstrap)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        await client.close()
        topic_id = bytes(created.topics[0].topic_id)
        leaders = [Leader(ShareKey(group, topic_id, 0), addresses) for group in GROUPS]
        for leader in leaders:
            await leader.begin()
        killed = max(addresses, key=lambda node_id: sum(each.node_id == node_id for each in leaders))
        moved = [each for each in leaders if each.node_id == killed]
        async with asyncio.TaskGroup() as tasks:
            writing = [tasks.create_task(each.run()) for each in leaders]
            await until(lambda: all(len(each.acknowledged) >= WRITES_AFTER for each in leaders), pause_s=0.01)
            before = {each.key: len(each.acknowledged) for each in moved}
            processes[killed - 1].kill9()
            await until(
                lambda: all(len(each.acknowledged) >= before[each.key] + WRITES_AFTER for each in moved), pause_s=0.01
            )
            for task in writing:
                task.cancel()
        assert {each.node_id for each in moved}.isdisjoint({killed})
        for leader in leaders:
            assert await leader.stored() >= set(leader.acknowledged)
        await to_thread(terminate_all, [node for node in processes if node.running])
