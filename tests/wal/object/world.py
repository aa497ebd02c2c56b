"""A simulated world around the object log: owners and recoverers of one node's log, a store with faults, a catalog.

Time is virtual. Processes are killed at any callback, or paused for minutes and continued; PUTs land minutes after
their callers gave up; answers get lost. The classes of the log are the real ones. The catalog is reduced to what the
log relies on: an epoch that only grows, and commits that are refused in an older epoch.

Checked are C1 (a record that is acked, at whatever time, is returned by every recovery in a later epoch, or committed),
the order and places of records, exact trims, and C6 (no end is deleted, nor the newest object of the owner's epoch).
A sweep, by a person, deletes old ends: after all processes are gone whose epochs ended before that age.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.wal.interface import OverCapacity, QueueFull, RecoveredRecord, WalCorrupt, WalError, WalFailed, WalFenced
from anabranch.wal.object.format import END_BYTES, EndedBy, Flags, LogName, ObjectHeader, Position, decode_header
from anabranch.wal.object.log import ObjectWal
from anabranch.wal.object.recovery import end_log
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.object.store import StoreAway
from anabranch.wal.object.sweep import plan_sweep
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.store import SimStore, StoreDisk, StoreFaults, Way

NAME = LogName("c", 1, bytes(range(16)))
VALUE = struct.Struct("<qq")
RUN_S = 400.0


class Violation(AssertionError):
    """An invariant is broken."""


class Value(NamedTuple):
    """A record: the epoch it was appended in, and its number there."""

    epoch: int
    number: int


class NotOwner(Exception):
    """A commit in an older epoch."""


@dataclass
class Recovery:
    """Result of a recovery that ran to its end."""

    epoch: int
    found: frozenset[Value]


@dataclass
class World:
    """One history. All of it follows from the seed."""

    seed: int
    check_deletions: bool = True
    list_first: bool = False
    """Planted bug: recover before the epoch is raised."""
    sweep_all_ages: bool = False
    """Planted mistake of a person: old processes may be there when a sweep deletes their ends."""
    epoch: int = 0
    committed: set[Value] = field(default_factory=set)
    trimmed: set[Value] = field(default_factory=set)
    """Values whose trim has been confirmed."""
    trimmed_before: dict[int, frozenset[Value]] = field(default_factory=dict)
    """Those of them that were confirmed when an epoch began."""
    offsets: dict[Value, int] = field(default_factory=dict)
    """Places of all values appended."""
    acked: set[Value] = field(default_factory=set)
    recoveries: list[Recovery] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    epoch_of: dict[Process, int] = field(default_factory=dict)
    """Epochs that processes have registered in."""
    began_s: dict[int, float] = field(default_factory=dict)
    """Times at which epochs began."""
    sweeping: bool = False
    swept: int = 0
    """Ends that sweeps have deleted."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.loop = SimLoop(Random(self.seed + 1))
        self.disk = StoreDisk(self.loop, Random(self.seed + 2), "s")
        self.disk.late_s_max = self.random.choice([20.0, 150.0])
        self.disk.objects.hook = self._on_call
        self.settings = ObjectWalSettings(
            capacity_bytes=self.random.choice([4_000, 20_000, 100_000]),
            batch_bytes_max=self.random.choice([300, 1_000, 4_000]),
            puts_in_flight=self.random.choice([1, 2, 4, 8]),
            queue_bytes_max=self.random.choice([2_000, 10_000]),
            batch_ms=self.random.choice([0, 20, 100]),
            put_interval_ms=50 * (self.seed % 2),
        )

    # --- run

    def run(self) -> None:
        """Run the history, then a last recovery without faults. Raises Violation."""
        self.loop.set_exception_handler(self._unexpected)
        task = self.loop.create_task(self._main())
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        task.result()
        if self.violations:
            raise Violation(self.violations[0])

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.violate(f"{context['message']}: {context.get('exception')!r}")

    def violate(self, text: str) -> None:
        self.violations.append(f"seed {self.seed}, at {self.loop.time():.3f} s: {text}")

    async def _main(self) -> None:
        random = self.random
        self._start(self._own)
        while self.loop.time() < RUN_S and not self.violations:
            await asyncio.sleep(random.choice([0.01, 0.3, 2.0, 20.0]) * random.random())
            if random.random() < 0.1:
                await self._sweep()
            match random.randrange(10):
                case 0 | 1 | 2:
                    self._break()
                    self._start(self._own)
                case 3:
                    if not self.list_first:  # else the owner must go on for the bug to matter
                        self._break()
                    self._start(self._take_over)
                case 4 | 5:
                    self._fault()
                case 6 | 7 if self.processes:
                    random.choice(self.processes).paused = True
                case 8 | 9 if self.processes:
                    self.loop.resume(random.choice(self.processes))
                case _:
                    pass
        self.disk.faults = StoreFaults()
        for process in self.processes:
            self.loop.resume(process)
        await asyncio.sleep(2 * self.disk.late_s_max)
        self._start(self._take_over)
        await asyncio.sleep(120)  # it may have been paused
        if not self.violations and (not self.recoveries or self.recoveries[-1].epoch != self.epoch):
            self.violate("the last recovery did not succeed, without faults")
        for process in self.processes:
            self.loop.kill(process)

    def _break(self) -> None:
        """Kill, pause or leave alone the processes there are."""
        for process in list(self.processes):
            match self.random.randrange(4):
                case 0 | 1:
                    self.loop.kill(process)
                    self.processes.remove(process)
                case 2:
                    process.paused = True
                case _:
                    pass

    def _fault(self) -> None:
        choose = self.random.choice
        faults = StoreFaults()
        if self.random.random() < 0.7:
            faults.refused, faults.lost = choose([0.0, 0.05, 0.3]), choose([0.0, 0.1, 0.4])
            faults.late = choose([0.0, 0.1, 0.5])
            faults.slow = choose([1.0, 1.0, 10.0, 100.0])
            faults.away = self.random.random() < 0.1
        self.disk.faults = faults

    def _start(self, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        process = Process(f"process-{len(self.processes)}", "host")
        self.processes.append(process)
        context = copy_context()
        context.run(PROCESS.set, process)
        self.loop.create_task(self._live(process, main), context=context)
        if self.list_first or self.random.random() < 0.3:
            self.loop.create_task(self._pause(process))

    async def _pause(self, process: Process) -> None:
        """Stop a process while it recovers, and let it continue later."""
        await asyncio.sleep(self.random.choice([0.05, 0.3, 2.0]) * self.random.random())
        process.paused = True
        await asyncio.sleep(self.random.choice([1.0, 10.0, 60.0]) * self.random.random())
        if not process.dead:
            self.loop.resume(process)

    async def _live(self, process: Process, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        try:
            await main(process)
        except (StoreAway, WalFenced, WalFailed, NotOwner):
            pass  # the process ends; a supervisor starts another
        except WalCorrupt as error:
            self.violate(f"corrupt: {error}")

    async def _sweep(self) -> None:
        """Delete old ends and orphans, as a person does who has made sure that no process is left from before."""
        age_s = 2 * self.disk.late_s_max
        for process in list(self.processes):
            ended_s = self.began_s.get(self.epoch_of.get(process, self.epoch) + 1, self.loop.time())
            if ended_s < self.loop.time() - age_s + 1 and not self.sweep_all_ages:
                self.loop.kill(process)
                self.processes.remove(process)
        store = self._store("sweep")
        try:
            before_ms = int(1000 * (self.loop.time() - (0 if self.sweep_all_ages else age_s)))
            plan = await plan_sweep(store, NAME, before_ms=before_ms)
            if plan is not None:
                self.sweeping = True
                await plan.execute(store)
                self.swept += len(plan.ends)
        except StoreAway:
            pass
        finally:
            self.sweeping = False

    # --- the catalog, as far as the log relies on it

    async def _register(self) -> int:
        await self._way()
        self.epoch += 1
        epoch = self.epoch
        self.began_s[epoch] = self.loop.time()
        if (process := PROCESS.get()) is not None:
            self.epoch_of[process] = epoch
        self.trimmed_before[epoch] = frozenset(self.trimmed)
        await self._way()
        return epoch

    async def _commit(self, epoch: int, values: Sequence[Value]) -> None:
        await self._way()
        if epoch != self.epoch:
            raise NotOwner
        self.committed.update(values)
        await self._way()

    async def _way(self) -> None:
        await asyncio.sleep(self.random.choice([0.001, 0.001, 0.5]) * self.random.random())

    # --- processes

    def _store(self, writer: str) -> ObjectLogStore:
        return ObjectLogStore(SimStore(Way(self.disk, lambda: False)), writer)

    async def _own(self, process: Process) -> None:
        """Live as the node: recover, append, commit and trim."""
        random = Random(self.random.random())
        epoch = await self._register()
        wal = ObjectWal(self._store(f"own-{epoch}"), NAME, self.settings, node_epoch=epoch)
        try:
            recovered = await self._read(epoch, wal.recover())
            kept = [(record.offset, value_of(record)) for record in recovered]
            number = 0
            while True:
                for _ in range(random.randrange(6)):
                    value = Value(epoch, number)
                    if not await self._append(wal, value, random):
                        break
                    kept.append((self.offsets[value], value))
                    number += 1
                await asyncio.sleep(random.choice([0.0, 0.01, 0.2, 1.0]) * random.random())
                if random.random() < 0.3:
                    await self._upload(wal, epoch, kept, random)
                if random.random() < 0.02:
                    break
        finally:
            if not process.dead:
                await wal.close()

    async def _append(self, wal: ObjectWal, value: Value, random: Random) -> bool:
        body = VALUE.pack(*value) + random.randbytes(random.choice([0, 10, 100, 600]))
        cut = random.randrange(len(body))
        try:
            appended = wal.append([body[:cut], body[cut:]])
        except QueueFull as full:
            await full.durable
            return False
        except OverCapacity:
            return False
        self.offsets[value] = appended.offset

        def done(error: WalError | None) -> None:
            if error is None:
                self._ack(value)

        appended.durable.add_done_callback(done)
        return True

    async def _upload(self, wal: ObjectWal, epoch: int, kept: list[tuple[int, Value]], random: Random) -> None:
        """Commit a part of what is durable, and trim the log."""
        durable = [each for each in kept if each[1] in self.acked or each[1].epoch < epoch]
        if not durable:
            return
        part = durable[: random.choice([len(durable), random.randrange(len(durable)) + 1])]
        await self._commit(epoch, [value for _, value in part])
        await wal.trim(part[-1][0])
        self.trimmed.update(value for _, value in part)
        del kept[: len(part)]

    async def _take_over(self, _process: Process) -> None:
        """Live as another node that takes the log over: fence, read, commit, mark as empty."""
        random = Random(self.random.random())
        store = self._store(f"other-{self.random.random()}")
        epoch = self.epoch + 1 if self.list_first else await self._register()
        tail = await end_log(store, NAME, epoch, EndedBy(2, 7))
        if self.list_first:
            await self._register()
        recovered = await self._read(epoch, tail.records())
        if random.random() < 0.8:
            await self._commit(epoch, [value_of(record) for record in recovered])
            await tail.finish(EndedBy(2, 7))
            self.trimmed.update(value_of(record) for record in recovered)

    async def _read(self, epoch: int, records: AsyncIterator[RecoveredRecord]) -> Sequence[RecoveredRecord]:
        recovered = [record async for record in records]
        self._check(epoch, recovered)
        return recovered

    # --- checks

    def _ack(self, value: Value) -> None:
        before = max((each for each in self.acked if each.epoch == value.epoch), default=Value(value.epoch, -1))
        if value.number != before.number + 1:
            self.violate(f"{value} was acked after {before}")
        self.acked.add(value)
        for recovery in self.recoveries:
            if recovery.epoch > value.epoch and value not in recovery.found and value not in self.committed:
                self.violate(f"{value} was acked after the recovery of epoch {recovery.epoch}, which did not find it")

    def _check(self, epoch: int, recovered: Sequence[RecoveredRecord]) -> None:
        values = [value_of(record) for record in recovered]
        for record, value in zip(recovered, values, strict=True):
            if self.offsets.get(value) != record.offset:
                self.violate(f"{value} was found at {record.offset}, appended at {self.offsets.get(value)}")
        for before, after in pairwise(values):
            if after <= before or (after.epoch == before.epoch and after.number != before.number + 1):
                self.violate(f"{after} follows {before}")
        found = frozenset(values)
        if again := found & self.trimmed_before.get(epoch, frozenset()):
            self.violate(f"{min(again)} came back after its trim")
        if lost := {each for each in self.acked if each.epoch < epoch} - found - self.committed:
            self.violate(f"{min(lost)} is lost: {len(lost)} acked records were not found in epoch {epoch}")
        self.recoveries.append(Recovery(epoch, found))

    async def _on_call(self, call: str, key: str) -> None:
        if call != "delete" or not self.check_deletions:
            return
        found = self.disk.objects.objects.get(key)
        position = NAME.parse_key(key)
        assert position is not None
        is_end = found is not None and len(found[0]) == END_BYTES
        if is_end and not (self.sweeping and position.epoch < self._first_live().epoch):
            self.violate(f"the end {key} was deleted")
        newest = max(self._positions(self.epoch), default=None)
        if position == newest:
            self.violate(f"the newest object {key} was deleted")

    def _first_live(self) -> Position:
        """Return the first live position that the newest object names."""
        objects = self.disk.objects.objects
        headers = [
            decode_header(NAME, position, memoryview(objects[key][0]))
            for key in sorted(objects)
            if (position := NAME.parse_key(key)) is not None
        ]
        named = [each for each in headers if isinstance(each, ObjectHeader) and not each.flags & Flags.FENCE]
        return named[-1].first_live if named else Position(1, 0)

    def _positions(self, epoch: int) -> list[Position]:
        positions = [NAME.parse_key(key) for key in self.disk.objects.objects]
        return [each for each in positions if each is not None and each.epoch == epoch]


def value_of(record: RecoveredRecord) -> Value:
    """Return the value that a record holds."""
    return Value._make(VALUE.unpack_from(record.body))
