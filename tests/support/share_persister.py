"""A persister of share partitions in memory, which satisfies `broker.kafka.share.interface.SharePersister`.

It has the rules of the share coordinator without its log. With `hold` set, calls wait for `release`; `refusal` is what
calls fail with, before they have any effect.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from anabranch.broker.kafka.share.interface import InitialState, ShareKey, ShareState, ShareSummary, StateBatch
from anabranch.broker.kafka.share.state import stored
from anabranch.broker.kafka.share.state.coordinator import NO_STATE
from anabranch.broker.kafka.share.state.stored import StateWrite, StoredState
from anabranch.protocol.errors import ErrorCode, KafkaError

UPDATES_PER_SNAPSHOT = 10


class MemoryPersister:
    """States of share partitions in memory."""

    def __init__(self) -> None:
        self.states: dict[ShareKey, StoredState] = {}
        self.refusal: KafkaError | None = None
        self.hold = False
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the calls that wait go on."""
        self._released.set()
        self._released = asyncio.Event()

    async def _begin(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.hold:
            await self._released.wait()

    async def initialize(self, states: Mapping[ShareKey, InitialState]) -> Mapping[ShareKey, ErrorCode]:
        """Begin state epochs."""
        codes = {}
        for key, initial in states.items():
            try:
                await self._begin()
                change = stored.initialize(self.states.get(key), initial, UPDATES_PER_SNAPSHOT, 0)
                if change is not None:
                    self.states[key] = change.state
                codes[key] = ErrorCode.NONE
            except KafkaError as error:
                codes[key] = error.code
        return codes

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return a state, and shut out leaders with a lower epoch."""
        await self._begin()
        before = self._state(key)
        change = stored.read(before, leader_epoch, UPDATES_PER_SNAPSHOT, 0)
        if change is not None:
            self.states[key] = change.state
        return before.as_read

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Write changed batches."""
        await self._begin()
        wanted = StateWrite(state_epoch, leader_epoch, start_offset, delivery_complete_count, batches)
        self.states[key] = stored.write(self._state(key), wanted, UPDATES_PER_SNAPSHOT, 0).state

    async def delete(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ErrorCode]:
        """Delete states."""
        codes = {}
        for key in keys:
            try:
                await self._begin()
                self.states.pop(key, None)
                codes[key] = ErrorCode.NONE
            except KafkaError as error:
                codes[key] = error.code
        return codes

    async def summaries(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ShareSummary | ErrorCode]:
        """Return states without their batches."""
        return {key: self.states[key].summary if key in self.states else NO_STATE for key in keys}

    def _state(self, key: ShareKey) -> StoredState:
        if key not in self.states:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "never initialised")
        return self.states[key]
