"""Puts sealed batches, several side by side, and reports them durable in order.

Invariants, at every await:

- A batch's `Durable` completes without error only when its object and those of all earlier sequences are stored.
- Each key is put with one content only: a repeated PUT, or the second one for a slow batch, has the same bytes.
- A PUT of unknown outcome is repeated until it succeeds or meets another writer's object. An outage fails nothing.
- After the first failure nothing is acked.
"""

import asyncio
from asyncio import get_running_loop
from collections import deque
from typing import Final, Protocol

import structlog

from anabranch.wal.interface import WalError, WalFailed, WalFenced
from anabranch.wal.object.batch import Batch
from anabranch.wal.object.format import END_BYTES, Flags, LogName, Position, decode_header, ended_by
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.object.store import LogStore, StoreAway
from anabranch.wal.stats import WalStats

_LOG = structlog.get_logger(__name__)
_SLOW_FACTOR: Final = 3.0
"""A PUT that takes this many times the usual time is sent a second time."""
_MEAN_WEIGHT: Final = 0.1
_WARN_S: Final = 10.0
"""Least time between two warnings about a store that does not answer."""


class BatchOwner(Protocol):
    """The log that a writer puts batches for."""

    def batch_durable(self, batch: Batch) -> None:
        """Note a batch whose `Durable` completes next."""
        ...

    def writer_idle(self) -> None:
        """Note that no batch is queued or in flight."""
        ...

    def failed(self, error: WalError) -> None:
        """Stop the log."""
        ...


class ObjectWriter:
    """Batches in the order of their sequences: those queued, and those in flight or stored ahead of an earlier one."""

    def __init__(
        self, store: LogStore, name: LogName, settings: ObjectWalSettings, owner: BatchOwner, stats: WalStats
    ) -> None:
        self._store: Final = store
        self._name: Final = name
        self._settings: Final = settings
        self._owner: Final = owner
        self._stats: Final = stats
        self._queued: deque[Batch] = deque()
        self._in_flight: deque[Batch] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._usual_s = 0.0
        """Moving mean of the time of PUTs that succeeded; 0 before the first."""
        self._warned_at = -_WARN_S
        self._stopped = False

    @property
    def puts_in_flight(self) -> int:
        """Batches that are at the store now."""
        return len(self._tasks)

    @property
    def oldest(self) -> Batch | None:
        """The sealed batch that becomes durable first; None if there is none."""
        return self._in_flight[0] if self._in_flight else self._queued[0] if self._queued else None

    @property
    def newest(self) -> Batch | None:
        """The sealed batch that becomes durable last; None if there is none."""
        return self._queued[-1] if self._queued else self._in_flight[-1] if self._in_flight else None

    def add(self, batch: Batch) -> None:
        """Queue a sealed batch, and put it as soon as a place is free."""
        self._queued.append(batch)
        self._pump()

    def stop(self) -> list[Batch]:
        """Put nothing more; return the batches that are not durable, in order."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        left = [*self._in_flight, *self._queued]
        self._in_flight.clear()
        self._queued.clear()
        return left

    async def ended(self) -> None:
        """Wait until no task is left, after `stop` or the last batch."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _pump(self) -> None:
        # Objects that are stored ahead of an earlier one count: they are not acked, and what waits stays bounded.
        while self._queued and len(self._in_flight) < self._settings.puts_in_flight:
            batch = self._queued.popleft()
            self._in_flight.append(batch)
            task = get_running_loop().create_task(self._put(batch))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._owner.failed(error if isinstance(error, WalError) else WalFailed(f"object log: {error!r}"))

    async def _put(self, batch: Batch) -> None:
        """Create the batch's object, however long that takes. Raises WalFenced."""
        key = self._name.key(batch.header.position)
        pause_ms = self._settings.retry_ms_min
        while True:
            began = get_running_loop().time()
            try:
                if not await self._put_once_or_twice(key, batch):
                    raise await self.why_fenced(batch.header.position)
            except StoreAway as error:
                self._stats.repeated_writes += 1
                self._warn(error)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, self._settings.retry_ms_max)
            else:
                break
        if not self._stopped:
            self._stored(batch, get_running_loop().time() - began)

    async def _put_once_or_twice(self, key: str, batch: Batch) -> bool:
        """Put the object, a second time if the first takes much longer than usual; the first answer counts.

        No task is left when this returns: a PUT that was cancelled may still take effect, with the same bytes.
        """
        first = self._start_put(key, batch)
        tasks = [first]
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._slow_s())
            if not done:
                self._stats.repeated_writes += 1
                tasks.append(self._start_put(key, batch))
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                answered = [task for task in done if task.exception() is None]
                if answered:
                    return answered[0].result()
            return first.result()  # raises its error
        finally:
            if not all(task.done() for task in tasks):
                batch.recyclable = False  # a thread of the store may still read the bytes of a PUT that is cancelled
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # retrieved, so that asyncio does not report it

    def _start_put(self, key: str, batch: Batch) -> asyncio.Task[bool]:
        self._stats.writes += 1
        return get_running_loop().create_task(self._create(key, batch))

    async def _create(self, key: str, batch: Batch) -> bool:
        return await self._store.create(key, batch.parts())

    def _slow_s(self) -> float | None:
        """Return the time after which a PUT is slow; None while nothing is known."""
        if not self._usual_s:
            return None
        return max(self._settings.hedge_ms_min / 1000, _SLOW_FACTOR * self._usual_s)

    def _stored(self, batch: Batch, seconds: float) -> None:
        """Note a stored object, and complete the leading batches that are stored."""
        self._usual_s = seconds if not self._usual_s else self._usual_s + _MEAN_WEIGHT * (seconds - self._usual_s)
        batch.stored = True
        in_flight = self._in_flight
        while in_flight and in_flight[0].stored:
            done = in_flight.popleft()
            self._owner.batch_durable(done)
            done.durable.complete()
        if self._stopped:
            return  # by a callback of a waiter
        self._pump()
        if not in_flight:
            self._owner.writer_idle()

    async def why_fenced(self, position: Position) -> WalFenced:
        """Describe the object of another writer that has the key of a position."""
        where = f"{self._store.name}:{self._name.key(position)}"
        who = "another writer's object has this key"
        try:
            data = await self._store.read(self._name.key(position), END_BYTES)
        except StoreAway as error:
            who += f" ({error})"
        else:
            header = "it is gone" if data is None else decode_header(self._name, position, data)
            if isinstance(header, str):
                who += f" ({header})"
            elif header.flags & Flags.FENCE and data is not None and len(data) == END_BYTES:
                node_id, node_epoch = ended_by(data)
                who = f"the log was fenced by node {node_id} with epoch {node_epoch}"
        return WalFenced(f"{where}: {who}: this node refuses writes")

    def _warn(self, error: StoreAway) -> None:
        now = get_running_loop().time()
        if now >= self._warned_at + _WARN_S:
            self._warned_at = now
            _LOG.warning("the log's store does not take a batch; it is put again", reason=str(error))
