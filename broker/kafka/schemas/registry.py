"""The registry of this node: its state follows the log, the one partition of `_schemas`, as long as the node leads it.

State changes only by what is read from the log, in its order: what others have written there, such as a mirror, and
what this node has written itself. Before each answer it catches up, so an answer shows every change that was
acknowledged. A change is decided from a state that has caught up, appended as one batch, and answered when it is
durable and applied.

The state belongs to the open partition. There is nothing to start and to stop: the first request reads the log, and a
node that ceases to lead the partition drops the state with the next one.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import structlog

from anabranch.broker.kafka.coordination.log import KeyValue, is_too_large
from anabranch.broker.kafka.schemas.changes import Changes
from anabranch.broker.kafka.schemas.model import ErrorKind, Level, RegistryError
from anabranch.broker.kafka.schemas.parser import SchemaParser
from anabranch.broker.kafka.schemas.queries import Queries
from anabranch.broker.kafka.schemas.records import decode, encode_all
from anabranch.broker.kafka.schemas.requests import (
    Arguments,
    RegistryAnswer,
    RegistryRequest,
    answer_of,
    failure_of,
    parse_body,
    split_target,
)
from anabranch.broker.kafka.schemas.routes import Decision, Query, find_route
from anabranch.broker.kafka.schemas.state import RegistryState
from anabranch.protocol.errors import KafkaError, MalformedMessage
from anabranch.s3stream.errors import StorageError, StorageFull
from anabranch.wal.interface import Durable, WalError

DECISIONS_MAX: Final = 10
"""Decisions on one change that may be outdated by what others write meanwhile."""
CURRENT_S: Final = 3600.0
"""Time after which a state is read anew from the start of the log, not from where it was left: compaction drops delete
markers of what others have deleted meanwhile, by default a day after them."""

_log = structlog.get_logger(__name__)


class SchemaLog(Protocol):
    """The partition, open for writing on this node."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record appended."""
        ...

    def write(self, records: Sequence[KeyValue]) -> Durable:
        """Append one batch. Raises StorageError: nothing was appended."""
        ...

    def read(self, offset: int) -> AsyncIterator[tuple[int, Sequence[KeyValue]]]:
        """Yield the records from an offset on, once they are durable, in batches with the offset that follows.

        Raises StorageError, WalError.
        """
        ...


class SchemaTopic(Protocol):
    """The topic of the log."""

    def log(self) -> SchemaLog | None:
        """Return the log; None: the topic does not exist. Raises RegistryError if this node does not lead it.

        It is the same object until the node ceases to lead it.
        """
        ...

    async def create(self) -> None:
        """Create the topic unless it exists. Raises KafkaError, StorageError, and RegistryError if it loses records."""
        ...


class _Follower:
    """A state that follows a log."""

    def __init__(self, log: SchemaLog) -> None:
        self.log = log
        self.state = RegistryState()
        self.offset = 0
        """Offset up to which records are applied."""
        self._reading = asyncio.Lock()
        self._current_s = asyncio.get_running_loop().time()

    @property
    def is_old(self) -> bool:
        """True if delete markers that follow may be gone from the log."""
        return asyncio.get_running_loop().time() - self._current_s > CURRENT_S

    async def catch_up(self) -> None:
        """Apply what is in the log. Raises StorageError, WalError, MalformedMessage."""
        async with self._reading:
            began_s = asyncio.get_running_loop().time()
            async for end_offset, records in self.log.read(self.offset):
                for record in records:
                    meaning = decode(record)
                    if meaning is not None:
                        self.state.apply(meaning)
                self.offset = end_offset
                await asyncio.sleep(0)  # a large log is read in many turns of the loop
            self._current_s = began_s


class SchemaRegistry:
    """Answers requests on the node that leads the log."""

    def __init__(self, topic: SchemaTopic, parser: SchemaParser, default_level: Level) -> None:
        self._topic = topic
        self._parser = parser
        self._default_level = default_level
        self._follower: _Follower | None = None
        self._changing = asyncio.Lock()

    async def answer(self, request: RegistryRequest) -> RegistryAnswer:
        """Answer a request."""
        steps, query = split_target(request.target)
        try:
            route, path = find_route(request.method, steps)
            call = Arguments(path, query, parse_body(request.body))
            if route.change is not None:
                return answer_of(await self._change(route.change, call))
            assert route.query is not None, "a route has a query or a change"
            return answer_of(await self._ask(route.query, call))
        except RegistryError as error:
            return failure_of(error)
        except StorageFull as error:  # nothing was appended, as while the partition moves: it is worth another try
            return failure_of(RegistryError(ErrorKind.UNKNOWN_LEADER, f"the schema registry cannot write now: {error}"))
        except (StorageError, WalError, KafkaError, MalformedMessage) as error:
            _log.warning("the schema registry cannot answer", target=request.target, reason=str(error))
            return failure_of(RegistryError(ErrorKind.STORE, f"Error in the backend data store: {error}"))

    async def _ask(self, query: Query, call: Arguments) -> object:
        follower = await self._current()
        state = RegistryState() if follower is None else follower.state
        return await query(Queries(state, self._parser, self._default_level), call)

    async def _change(self, decide: Decision, call: Arguments) -> object:
        async with self._changing:
            await self._topic.create()
            for _ in range(DECISIONS_MAX):
                follower = await self._current()
                if follower is None:
                    break  # deleted again
                offset = follower.offset
                change = await decide(Changes(Queries(follower.state, self._parser, self._default_level)), call)
                if not change.records:
                    return change.answer
                # No await from here to the append: the decision is about the state at the end of the log.
                if self._topic.log() is follower.log and follower.log.next_offset == offset:
                    await self._write(follower, encode_all(change.records))
                    return change.answer
        raise RegistryError(ErrorKind.STORE, "Error in the backend data store: others write to the log all the time")

    async def _write(self, follower: _Follower, records: Sequence[KeyValue]) -> None:
        if is_too_large(records):
            raise RegistryError(ErrorKind.SCHEMA_TOO_LARGE, "Schema is too large for a record")
        await follower.log.write(records)
        await follower.catch_up()

    async def _current(self) -> _Follower | None:
        """Return the state at the end of the log; None: there is no log.

        Raises RegistryError, StorageError, WalError, MalformedMessage.
        """
        log = self._topic.log()
        if log is None:
            self._follower = None
            return None
        if self._follower is None or self._follower.log is not log or self._follower.is_old:
            self._follower = _Follower(log)
        follower = self._follower
        await follower.catch_up()
        return follower
