"""Creation of the states that share groups ask for, beside the heartbeats that found them missing.

A group that is not told of the end, because its coordinator has moved, asks again in a higher epoch.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from anabranch.broker.kafka.groups.consumer.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.share.requests import StatesCreated, StatesToCreate
from anabranch.broker.kafka.share.interface import SharePersister
from anabranch.protocol.errors import ErrorCode, KafkaError

Finished = Callable[[str, StatesCreated], None]
"""Passes the result to the group with this id. Raises KafkaError if it is not here any more."""

_log = structlog.get_logger(__name__)


class StateCreator:
    """Creates states while `run` is running. `finished` is called with each result."""

    def __init__(self, persister: SharePersister, finished: Finished) -> None:
        self._persister = persister
        self._finished = finished
        self._asked: asyncio.Queue[StatesToCreate] = asyncio.Queue()

    def __call__(self, asked: StatesToCreate | KafkaError) -> None:
        """Have states created, once the group has recorded that it asks for them; after an error it has not."""
        if not isinstance(asked, KafkaError):
            self._asked.put_nowait(asked)

    async def run(self) -> None:
        """Create states until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._create(await self._asked.get()))

    async def _create(self, asked: StatesToCreate) -> None:
        result = await create(self._persister, asked)
        if result.failed:
            _log.warning("states of a share group not created, trying again", group=asked.group_id)
        with suppress(KafkaError):
            self._finished(asked.group_id, result)


async def create(persister: SharePersister, asked: StatesToCreate) -> StatesCreated:
    """Create states, and return which have been created, and which could not be."""
    errors = await persister.initialize(asked.states)
    created: list[TopicIdPartition] = []
    failed: list[TopicIdPartition] = []
    for key in asked.states:
        place = created if errors.get(key, ErrorCode.COORDINATOR_NOT_AVAILABLE) == ErrorCode.NONE else failed
        place.append(TopicIdPartition(key.topic_id, key.partition))
    return StatesCreated(created, failed)
