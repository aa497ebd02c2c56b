"""Checks by clients when all faults are over: everything that was promised can be read."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.simulation.consumers import LATEST, Committer, Reader, list_offset
from tests.simulation.copies import Copier
from tests.simulation.groups import GroupHistory, check_group
from tests.simulation.history import History, TopicPartition
from tests.simulation.routing import Client
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.world import World


async def check_all(
    world: World,
    history: History,
    partitions: Sequence[TopicPartition],
    groups: Sequence[GroupHistory],
    actors: Sequence[Any],
) -> None:
    """Read everything, and compare it with what is known."""
    world.note("final checks")
    for actor in actors:
        if isinstance(actor, Committer):
            await actor.check()
        elif isinstance(actor, TransactionalProducer):
            await actor.check_offsets()
    client = Client(world, "final")
    starts: dict[TopicPartition, int] = {}
    committed: dict[TopicPartition, dict[int, str]] = {}
    for where in partitions:
        await _until_stable(world, history, client, where)
        readers = [Reader(world, history, f"final-{where}-{level}", where, committed=level) for level in (False, True)]
        for reader in readers:
            await reader.read_all()
        all_, stable = readers
        starts[where] = max(all_.start, stable.start)
        committed[where] = stable.found
        history.check_final(where, starts[where], all_.high_watermark, all_.found, stable.found)
        if where[0] in history.compacted:
            history.check_cleaned(where, all_.found, stable.found)
    history.check_transactions(starts, committed)
    for actor in actors:
        if isinstance(actor, Copier):
            await actor.check_copies(committed[actor.target], committed[actor.source])
    for group in groups:
        await check_group(world, group)
    history.check_order(producer_and_number)


async def _until_stable(world: World, history: History, client: Client, where: TopicPartition) -> None:
    """Wait until no transaction is open: each ends by itself, or by its time-out."""
    reader = Reader(world, history, f"stable-{where}", where, committed=True)
    while True:
        reader.offset = await list_offset(client, where, LATEST)
        if await reader.step() and reader.stable == reader.high_watermark:
            break
        await asyncio.sleep(0.5)
    await reader.client.drop()


def producer_and_number(value: str) -> tuple[str, int]:
    """Split a value into its producer and its number."""
    name, _, number = value.rpartition(":")
    return name, int(number)
