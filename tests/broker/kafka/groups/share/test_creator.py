"""Creation of the states of share groups."""

import asyncio

from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.share.creator import keep_creating
from anabranch.broker.kafka.groups.share.requests import StatesCreated, StatesToCreate
from anabranch.broker.kafka.share.interface import (
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    InitialState,
    ShareKey,
    StateBatch,
)
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.share_persister import MemoryPersister
from tests.support.waiting import until

TOPIC = b"t" * 16
KEYS = [ShareKey("g", TOPIC, partition) for partition in (0, 1)]
PLACES = [TopicIdPartition(TOPIC, partition) for partition in (0, 1)]


async def created(persister: MemoryPersister, epoch: int) -> StatesCreated:
    """Let the states be created in an epoch of the group, and return what the group is told."""
    told: list[StatesCreated] = []
    asked: asyncio.Queue[StatesToCreate] = asyncio.Queue()
    asked.put_nowait(StatesToCreate("g", dict.fromkeys(KEYS, InitialState(epoch, UNINITIALIZED_START_OFFSET))))
    creating = asyncio.create_task(keep_creating(asked, persister, lambda _, result: told.append(result)))
    await until(lambda: bool(told))
    creating.cancel()
    return told[0]


async def test_a_state_that_is_there_is_left_as_it_is() -> None:
    """The group was not told that it was created, and asks again; a member has acknowledged a record meanwhile."""
    persister = MemoryPersister()
    await persister.initialize({KEYS[0]: InitialState(2, UNINITIALIZED_START_OFFSET)})
    done = StateBatch(0, 0, DeliveryState.ACKNOWLEDGED, 1)
    await persister.write(
        KEYS[0], state_epoch=2, leader_epoch=1, start_offset=0, delivery_complete_count=1, batches=[done]
    )
    before = persister.states[KEYS[0]]
    assert await created(persister, 5) == StatesCreated(PLACES, [])
    assert persister.states[KEYS[0]] == before
    assert persister.states[KEYS[1]].summary.state_epoch == 5


async def test_a_group_that_asks_twice_begins_nothing_anew() -> None:
    """The first creation ends late, after the group has asked again."""
    persister = MemoryPersister()
    persister.hold = True
    told: list[StatesCreated] = []
    asked: asyncio.Queue[StatesToCreate] = asyncio.Queue()
    creating = asyncio.create_task(keep_creating(asked, persister, lambda _, result: told.append(result)))
    for epoch in (2, 5):
        asked.put_nowait(StatesToCreate("g", {KEYS[0]: InitialState(epoch, UNINITIALIZED_START_OFFSET)}))
        await drain(asked)
    persister.hold = False
    persister.release()
    await until(lambda: len(told) == 2)
    creating.cancel()
    assert persister.states[KEYS[0]].summary.state_epoch == 2


async def drain(asked: asyncio.Queue[StatesToCreate]) -> None:
    """Wait until what was asked for has begun, as far as it can."""
    await until(asked.empty)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_group_hears_of_states_that_could_not_be_created() -> None:
    persister = MemoryPersister()
    persister.refusal = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await created(persister, 1) == StatesCreated([], PLACES)
    assert not persister.states
