"""Creation of the states that share groups ask for, beside the heartbeats that found them missing.

A group that is not told of the end, because its coordinator has moved, asks again in a higher epoch. A state that is
there by then is left as it is: members may have acknowledged records already, which would be delivered again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.share.requests import StatesCreated, StatesToCreate
from anabranch.broker.kafka.share.interface import InitialState, ShareKey, SharePersister
from anabranch.broker.kafka.share.state.coordinator import NO_STATE
from anabranch.protocol.errors import ErrorCode, KafkaError

_log = structlog.get_logger(__name__)


async def keep_creating(
    asked: asyncio.Queue[StatesToCreate], persister: SharePersister, finished: Callable[[str, StatesCreated], None]
) -> None:
    """Create states as they are asked for, until cancelled.

    `finished` passes a result to the group with this id. It raises KafkaError if the group is not here any more.
    """
    last: dict[str, asyncio.Task[None]] = {}
    """The newest creation of each group. The next one waits for it: otherwise it could miss a state, and begin it anew
    after members were told of it."""

    async def create(wanted: StatesToCreate, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        result = outcome(wanted, await _create_missing(persister, wanted.states))
        if result.failed:
            _log.warning("states of a share group not created, trying again", group=wanted.group_id)
        with suppress(KafkaError):
            finished(wanted.group_id, result)
        if last[wanted.group_id] is asyncio.current_task():
            del last[wanted.group_id]

    async with asyncio.TaskGroup() as tasks:
        while True:
            wanted = await asked.get()
            last[wanted.group_id] = tasks.create_task(create(wanted, last.get(wanted.group_id)))


async def _create_missing(
    persister: SharePersister, states: Mapping[ShareKey, InitialState]
) -> Mapping[ShareKey, ErrorCode]:
    found = await persister.summaries(states)
    codes = {key: each if isinstance(each, ErrorCode) else ErrorCode.NONE for key, each in found.items()}
    missing = {key: initial for key, initial in states.items() if found[key] == NO_STATE}
    return {**codes, **await persister.initialize(missing)}


def outcome(asked: StatesToCreate, errors: Mapping[ShareKey, ErrorCode]) -> StatesCreated:
    """Return which states have been created, and which could not be, from the persister's answer."""
    created: list[TopicIdPartition] = []
    failed: list[TopicIdPartition] = []
    for key in asked.states:
        place = failed if errors.get(key, ErrorCode.COORDINATOR_NOT_AVAILABLE) else created
        place.append(TopicIdPartition(key.topic_id, key.partition))
    return StatesCreated(created, failed)
