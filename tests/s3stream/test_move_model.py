"""A model of planned moves: the catalog's own statements on SQLite in memory, `RecoveryPlanner`, logs as lists.

Three nodes have one stream between them. Moves, cancellations, takeovers of nodes that may be alive, restarts, crashes
and operators who give logs up happen in any order. A command may take effect long after it was sent, and again.
Invariants: what was acknowledged is in the objects or live in the owner's log (C2), no offset has two values (C3), a
log never has a gap, and uploads of a rightful owner are never refused. Two bugs are planted, and must be found.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

import pytest
from sqlalchemy import Connection, create_engine, select, update

from anabranch.s3stream.append.recovery import RecoveryPlan
from anabranch.s3stream.append.wal_record import RecordKind, WalRecord
from anabranch.s3stream.catalog import departure, orders, takeover, topics, transfer
from anabranch.s3stream.catalog import nodes as node_rows
from anabranch.s3stream.catalog.migration import migrate
from anabranch.s3stream.catalog.rows import check_node, find_streams
from anabranch.s3stream.catalog.schema import nodes, streams
from anabranch.s3stream.catalog.values import (
    MoveReason,
    NewTopic,
    NodeBeat,
    NodeInfo,
    OpenStream,
    StreamTransfer,
    Takeover,
)
from anabranch.s3stream.errors import CatalogError, NodeFenced, NodeInUse, StorageError, StreamFenced, StreamHeld
from anabranch.s3stream.model import NodeIdentity, StreamBatch, StreamInfo, StreamOwner
from tests.support.storage import plan_recovery

IDS = (1, 2, 3)
STREAM = 1
STEPS = 50
SEEDS_OF_BUGS = {"WithoutReset": 388, "WithoutSource": 526}
"""Seeds that find the planted bugs."""
SEEDS = [*range(2_000 if os.environ.get("ANABRANCH_SOAK") else 40), *SEEDS_OF_BUGS.values()]
"""Seeds that find nothing: also those that would show such a bug."""


@dataclass
class Log:
    """A write-ahead log, and the newest node epoch that has claimed it."""

    wal_id: str
    records: list[WalRecord] = field(default_factory=list)
    claimed: int = 0

    def append(self, kind: RecordKind, epoch: int, batch: StreamBatch) -> None:
        self.records.append(WalRecord(len(self.records), kind, epoch, batch))

    def reset(self, epoch: int, offset: int) -> None:
        self.append(RecordKind.RESET, epoch, StreamBatch(STREAM, offset, offset, 0, -1, b""))


@dataclass
class OpenModel:
    """The stream in the memory of a process."""

    epoch: int
    leader_epoch: int
    committed: int
    tail: list[StreamBatch]
    sealed: bool = False

    @property
    def next_offset(self) -> int:
        return self.tail[-1].end_offset if self.tail else self.committed


@dataclass
class Receiving:
    """An attempt of a move, as its target has it: the tail is in the log."""

    wanted: StreamTransfer
    tail: list[StreamBatch]


@dataclass
class Process:
    """A life of a node. It need not know that it is fenced."""

    owner: StreamOwner
    log: Log
    open: OpenModel | None = None
    receiving: Receiving | None = None
    has_void: bool = False
    """True if the log has records of the stream that are not the stream's, and no RESET after them."""


@dataclass
class Recovery:
    """A dead node's log that another one has claimed and read."""

    owner: StreamOwner
    plan: RecoveryPlan


class MoveModel:
    """The nodes, their logs, and what clients were told."""

    resets: ClassVar[bool] = True
    checks_source: ClassVar[bool] = True

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.random = Random(seed)
        self.logs = {node_id: Log(f"{node_id:016x}") for node_id in IDS}
        self.processes: dict[int, Process] = {}
        self.objects: dict[int, bytes] = {}
        self.acked: dict[int, bytes] = {}
        self.in_flight: list[StreamTransfer] = []
        self.recoveries: dict[int, Recovery] = {}
        self.values = 0
        for node_id in IDS:
            self._start(node_id)
        topics.create_topics(self.connection, [NewTopic("t", bytes(16), 1, {})], (1,))
        self._open(1)

    def run(self) -> None:
        """Take steps at random, and check the invariants after each."""
        for _ in range(STEPS):
            serving = [key for key, each in self.processes.items() if each.open is not None and not each.open.sealed]
            sealed = [key for key, each in self.processes.items() if each.open is not None and each.open.sealed]
            receiving = [key for key, each in self.processes.items() if each.receiving is not None]
            actions: Sequence[tuple[Callable[[int], None], Sequence[int]]] = (
                *[(self.append, serving)] * 3,
                (self.upload, serving),
                *[(self.hand_over, serving)] * 2,
                (self.deliver, receiving),
                (self.learn_outcome, receiving),
                (self.cancel, sealed),
                (self.open_as_leader, list(self.processes)),
                (self.crash, list(self.processes)),
                (self.restart, IDS),
                *[(self.take_over, sealed or IDS)] * 2,
                *[(self.recover, list(self.recoveries))] * 2,
                (self.give_up, [key for key in IDS if key not in self.processes]),
            )
            action, candidates = self.random.choice([each for each in actions if each[1]])
            action(self.random.choice(candidates))
            self.check()

    # what a node does

    def _start(self, node_id: int) -> None:
        """Register, claim the log and recover it."""
        log = self.logs[node_id]
        wanted = NodeInfo(node_id, 0, "h", 1, 10, 10)
        epoch = node_rows.register_node(self.connection, wanted, None).epoch
        log.claimed = epoch
        owner = StreamOwner(node_id, epoch, log.wal_id)
        self.processes[node_id] = process = Process(owner, log)
        self.recoveries.pop(node_id, None)  # its commits are fenced from now on, and its claim is over
        plan = self._plan(owner)
        node_rows.open_wal(
            self.connection, log.wal_id, NodeIdentity(node_id, epoch), "device", "/wal", Takeover.SHARED, plan.live, 1
        )
        process.has_void = STREAM in plan.fenced

    def _plan(self, owner: StreamOwner) -> RecoveryPlan:
        infos = find_streams(self.connection, [STREAM])
        plan = plan_recovery(self.logs[owner.node_id].records, infos, owner, next_stream_id=STREAM + 1)
        assert not plan.stopped, f"{plan.stopped}"
        return plan

    def _open(self, node_id: int) -> None:
        """Open the stream as its leader, if nothing of it can be elsewhere."""
        process = self.processes.get(node_id)
        if process is None or process.open is not None or process.receiving is not None:
            return
        info = self._info()
        if process.has_void and self._is_log_its_own(process):
            process.log.reset(info.epoch, info.end_offset)
        tail = self._plan(process.owner).live.get(STREAM, ()) if info.is_held_by(process.owner) else ()
        try:
            (opened,) = topics.open_streams(self.connection, [STREAM], process.owner)
        except (NodeFenced, StreamHeld):
            return
        process.has_void = False
        process.open = _opened(opened, tail)

    def _is_log_its_own(self, process: Process) -> bool:
        return process.log.claimed == process.owner.node_epoch

    def _info(self) -> StreamInfo:
        return find_streams(self.connection, [STREAM])[STREAM]

    def _commit(self, info: StreamInfo, owner: StreamOwner, epoch: int, tail: Sequence[StreamBatch]) -> None:
        """Commit an upload. Raises NodeFenced, StreamFenced."""
        check_node(self.connection, owner.identity)
        if info.epoch != epoch:
            raise StreamFenced
        assert tail[0].base_offset == info.end_offset, "the range of a rightful upload begins at the end"
        for batch in tail:
            self.objects[batch.base_offset] = bytes(batch.payload)
        ended = update(streams).where(streams.c.stream_id == STREAM)
        self.connection.execute(ended.values(end_offset=tail[-1].end_offset))

    # rules

    def append(self, node_id: int) -> None:
        process = self.processes.get(node_id)
        if process is None or process.open is None or process.open.sealed or not self._is_log_its_own(process):
            return  # a log that another one has claimed acknowledges nothing
        self.values += 1
        at = process.open.next_offset
        batch = StreamBatch(STREAM, at, at + 1, 1, 1, b"%d" % self.values)
        process.log.append(RecordKind.BATCH, process.open.epoch, batch)
        process.open.tail.append(batch)
        assert at not in self.acked, f"offset {at} is given to a second record"
        self.acked[at] = bytes(batch.payload)

    def upload(self, node_id: int) -> None:
        process = self.processes.get(node_id)
        if process is None or process.open is None or process.open.sealed or not process.open.tail:
            return
        held = process.open
        try:
            self._commit(self._info(), process.owner, held.epoch, held.tail)
        except NodeFenced:
            self._crash(node_id)
        except StreamFenced:
            process.open, process.has_void = None, True
        else:
            held.committed, held.tail = held.next_offset, []

    def hand_over(self, source: int) -> None:
        """Seal, and send the tail to the target, which writes it and sends the transfer."""
        to = self.random.choice(IDS)
        sender, receiver = self.processes.get(source), self.processes.get(to)
        if source == to or sender is None or receiver is None or sender.open is None or sender.open.sealed:
            return
        if not self._is_log_its_own(sender) or not self._is_log_its_own(receiver):
            return  # what was appended is not durable
        if receiver.open is not None or receiver.receiving is not None:
            return
        held = sender.open
        with suppress(CatalogError):
            orders.request_moves(self.connection, {STREAM: to}, MoveReason.OPERATOR, 1)
        held.sealed = True
        if self.resets:
            receiver.log.reset(held.epoch + 1, held.committed)
        for batch in held.tail:
            receiver.log.append(RecordKind.BATCH, held.epoch + 1, batch)
        receiver.has_void = True
        wanted = StreamTransfer(STREAM, held.epoch, held.leader_epoch, held.committed, sender.owner, receiver.owner)
        receiver.receiving = Receiving(wanted, list(held.tail))
        self.in_flight.append(wanted)

    def deliver(self, _: int) -> None:
        """Let a transfer take effect, or be refused, without an answer. Another copy may follow."""
        if self.in_flight:
            with suppress(StorageError):
                self._transfer(self.random.choice(self.in_flight[-3:]))

    def _transfer(self, wanted: StreamTransfer) -> OpenStream:
        if self.checks_source:
            (answer,) = transfer.transfer(self.connection, [wanted])
            if isinstance(answer, OpenStream):
                return answer
            raise answer
        info = self._info()
        check_node(self.connection, wanted.target.identity)
        if (info.epoch, info.node_id, info.end_offset) == (wanted.epoch, wanted.source.node_id, wanted.end_offset):
            to = {"node_id": wanted.target.node_id, "leader": wanted.target.node_id, "wal_id": wanted.target.wal_id}
            to |= {"epoch": streams.c.epoch + 1, "leader_epoch": streams.c.leader_epoch + 1}
            self.connection.execute(update(streams).values(to))
        elif (info.epoch, info.node_id) != (wanted.epoch + 1, wanted.target.node_id):
            raise StreamFenced
        return OpenStream(self._info(), wanted.leader_epoch + 1)

    def learn_outcome(self, node_id: int) -> None:
        """Let the target repeat its transfer until it is answered."""
        process = self.processes.get(node_id)
        if process is None or process.receiving is None:
            return
        receiving, process.receiving = process.receiving, None
        try:
            opened = self._transfer(receiving.wanted)
        except NodeFenced:
            self._crash(node_id)
        except StorageError:
            pass
        else:
            process.open, process.has_void = _opened(opened, receiving.tail), False

    def cancel(self, node_id: int) -> None:
        """Let the source end the attempt; if that is refused, the target has the stream."""
        process = self.processes.get(node_id)
        if process is None or process.open is None or not process.open.sealed:
            return
        try:
            process.open.epoch = transfer.cancel(self.connection, STREAM, process.open.epoch, process.owner)
            process.open.sealed = False
        except NodeFenced:
            self._crash(node_id)
        except StreamFenced:
            process.open, process.has_void = None, True

    def open_as_leader(self, node_id: int) -> None:
        self._open(node_id)

    def crash(self, node_id: int) -> None:
        self._crash(node_id)

    def _crash(self, node_id: int) -> None:
        self.processes.pop(node_id, None)

    def restart(self, node_id: int) -> None:
        """Start a node in the place of its former life, which may go on without knowing."""
        try:
            self._start(node_id)
        except CatalogError:
            self._crash(node_id)  # its log was given up
        else:
            if self._info().is_held_by(self.processes[node_id].owner):
                self._open(node_id)

    def take_over(self, dead: int) -> None:
        """Judge a node dead, rightly or not, and read its log."""
        by, leader = self.random.choice(IDS), self.random.choice(IDS)
        recoverer = self.processes.get(by)
        if dead == by or recoverer is None or leader == dead:
            return
        row = select(nodes.c.epoch, nodes.c.beat).where(nodes.c.node_id == dead)
        epoch, beat = self.connection.execute(row).one()
        if not any(wal.is_live for wal in node_rows.list_wals(self.connection, dead)):
            return
        log, by_owner = self.logs[dead], recoverer.owner.identity
        try:
            new_epoch = takeover.take_over(
                self.connection,
                dead,
                NodeBeat(epoch, beat, has_lease=True),
                log.wal_id,
                by_owner,
                (leader,),
                1,
                even_if_alive=False,
            )
        except (NodeInUse, CatalogError):
            return
        log.claimed = new_epoch
        owner = StreamOwner(dead, new_epoch, log.wal_id)
        self.recoveries[dead] = Recovery(owner, self._plan(owner))

    def recover(self, dead: int) -> None:
        """Commit what a dead node's log has, and release the stream."""
        recovery = self.recoveries.pop(dead, None)
        if recovery is None:
            return
        tail, owner = recovery.plan.live.get(STREAM, ()), recovery.owner
        try:
            if tail:
                info = self._info()
                self._commit(info, owner, info.epoch, tail)
            takeover.release_recovered(self.connection, NodeIdentity(dead, owner.node_epoch), owner.wal_id, (), 1)
        except (NodeFenced, StreamFenced):
            pass

    def give_up(self, node_id: int) -> None:
        """Accept the loss of a log whose node is dead; an operator says so."""
        if node_id in self.processes:
            return
        log, info = self.logs[node_id], self._info()
        seen = node_rows.get_node(self.connection, node_id)
        assert seen is not None
        try:
            departure.give_up_wal(self.connection, log.wal_id, seen, (), 1)
        except CatalogError:
            return
        self.recoveries.pop(node_id, None)
        if info.node_id == node_id:
            self.acked = {at: value for at, value in self.acked.items() if at < info.end_offset}
        give_to = [each for each in self.processes if each != node_id]
        if give_to:
            takeover.give_leadership(self.connection, node_id, give_to[:1], 1)

    # invariants

    def check(self) -> None:
        info = self._info()
        there = {at: value for at, value in self.objects.items() if at < info.end_offset}
        if info.node_id in self.logs:
            owner = StreamOwner(info.node_id, 0, self.logs[info.node_id].wal_id)
            there |= {batch.base_offset: bytes(batch.payload) for batch in self._plan(owner).live.get(STREAM, ())}
        assert {at: there.get(at) for at in self.acked} == self.acked, "nothing acknowledged is lost"
        taking = [
            process
            for process in self.processes.values()
            if process.open is not None and not process.open.sealed and self._is_log_its_own(process)
        ]
        assert len(taking) <= 1, "at most one process acknowledges"


def _opened(opened: OpenStream, tail: Sequence[StreamBatch]) -> OpenModel:
    return OpenModel(opened.info.epoch, opened.leader_epoch, opened.info.end_offset, list(tail))


class WithoutReset(MoveModel):
    """The planted bug of a target that does not void what its log has of the stream from before."""

    resets = False


class WithoutSource(MoveModel):
    """The planted bug of a transfer that does not look whether the source was fenced."""

    checks_source = False


@pytest.fixture
def connection() -> Iterator[Connection]:
    """An empty catalog, which each walk leaves empty."""
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        migrate(connection, "sqlite", "memory")
        connection.commit()
        yield connection
    engine.dispose()


def walk(connection: Connection, model: type[MoveModel], seed: int) -> None:
    try:
        model(connection, seed).run()
    finally:
        connection.rollback()


@pytest.mark.slow
def test_no_order_of_events_loses_a_record_or_gives_an_offset_twice(connection: Connection) -> None:
    for seed in SEEDS:
        walk(connection, MoveModel, seed)


@pytest.mark.parametrize("bug", [WithoutReset, WithoutSource])
def test_planted_bugs_are_found(connection: Connection, bug: type[MoveModel]) -> None:
    with pytest.raises(AssertionError):
        walk(connection, bug, SEEDS_OF_BUGS[bug.__name__])
