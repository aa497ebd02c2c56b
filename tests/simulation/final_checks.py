"""Checks by clients when all faults are over: everything that was promised can be read."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.simulation.consumers import LATEST, Committer, Reader, list_offset
from tests.simulation.copies import Copier
from tests.simulation.groups import GroupHistory, check_group
from tests.simulation.history import History, TopicPartition, Violation
from tests.simulation.producers import Producer
from tests.simulation.routing import Client, Lost
from tests.simulation.share import ShareConsumer
from tests.simulation.streams import StreamsMember
from tests.simulation.tables import Tables
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.views import check_views
from tests.simulation.world import World

SEEN_S = 2.0
"""Time within which all nodes show a new topic, without faults."""
NEW_FLIGHTS = 4


async def check_all(
    world: World,
    history: History,
    partitions: Sequence[TopicPartition],
    groups: Sequence[GroupHistory],
    actors: Sequence[Any],
    tables: Tables | None,
    last_share_consumer: ShareConsumer | None,
) -> None:
    """Read everything, and compare it with what is known."""
    world.note("final checks")
    await check_views(world)
    for actor in actors:
        if isinstance(actor, Committer):
            await actor.check()
        elif isinstance(actor, TransactionalProducer):
            await actor.check_offsets()
    client = Client(world, "final")
    starts: dict[TopicPartition, int] = {}
    committed: dict[TopicPartition, dict[int, str]] = {}
    found: dict[TopicPartition, dict[int, str]] = {}
    if last_share_consumer is not None:
        await last_share_consumer.take_all()
    for where in partitions:
        await _until_stable(world, history, client, where)
        readers = [Reader(world, history, f"final-{where}-{level}", where, committed=level) for level in (False, True)]
        for reader in readers:
            await reader.read_all()
        all_, stable = readers
        starts[where] = max(all_.start, stable.start)
        committed[where] = stable.found
        found[where] = all_.found
        history.check_final(where, starts[where], all_.high_watermark, all_.found, stable.found)
        if where[0] in history.compacted:
            history.check_cleaned(where, all_.found, stable.found)
        if tables is not None:
            await tables.check_final(stable)
        if last_share_consumer is not None and where in last_share_consumer.places:
            shares = last_share_consumer.shares
            shares.check_final(where, starts[where], stable.found if shares.committed else all_.found)
    if last_share_consumer is not None and last_share_consumer.shares.has_dead_letters:
        await last_share_consumer.check_dead_letters(starts, found)
    history.check_transactions(starts, committed)
    for actor in actors:
        if isinstance(actor, Copier):
            await actor.check_copies(committed[actor.target], committed[actor.source])
    streams = [actor for actor in actors if isinstance(actor, StreamsMember)]
    if streams:
        await streams[0].get_all()
    for group in groups:
        await check_group(world, group)
    history.check_order(producer_and_number)
    if len(world.nodes) > 1:
        await _check_new_topic(world)


async def _check_new_topic(world: World) -> None:
    """Create a topic through one node, and use it through all."""
    client = Client(world, "new")
    creator, count = client.any_node(), 2 * len(world.nodes)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=count, replication_factor=1)])
    code = -1
    while code not in {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
        with suppress(Lost):
            code = (await client.call_node(creator, request, 5)).topics[0].error_code
        await client.pause()
    await asyncio.sleep(SEEN_S)
    for node in world.nodes:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=False)
        leaders: list[int] = []
        is_late = False
        while not leaders or (is_late and (len(leaders) != count or -1 in leaders)):
            try:
                topic = (await client.call_node(node, asked, 12)).topics[0]
            except Lost:
                is_late = True  # a node that was taken for dead at the end of the faults starts again
            else:
                leaders = [each.leader_id for each in topic.partitions]
                if not is_late:
                    break
            await client.pause()
        if len(leaders) != count or -1 in leaders:
            raise Violation(f"{node.host} shows leaders {leaders} of a topic that {creator.host} has created")
    await client.drop()
    history = History(world.note, world.now_ms, first_offset=world.first_offset)
    producer = Producer(world, history, "new-producer", {"new": count}, idempotent=True)
    for _ in range(NEW_FLIGHTS):
        await producer.flight()
    await producer.client.drop()
    for index in range(count):
        reader = Reader(world, history, f"new-{index}", ("new", index), committed=False)
        await reader.read_all()
        history.check_final(reader.where, reader.start, reader.high_watermark, reader.found, reader.found)
        await reader.client.drop()


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
