"""One run: what the seed chooses, the run itself, and the checks at its end."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.find_coordinator import FindCoordinatorRequest
from s3stream.catalog.catalog import WAIT_COUNTED_S, Catalog
from s3stream.maintain.verify import Finding, FindingKind, verify
from tests.simulation.churn import Churn
from tests.simulation.clients import (
    LATEST,
    Client,
    Committer,
    Deleter,
    Lost,
    Producer,
    Reader,
    TransactionalProducer,
    list_offset,
)
from tests.simulation.copies import Copier
from tests.simulation.faults import FAULTS, keep
from tests.simulation.groups import ClassicMember, ConsumerMember, GroupHistory, check_group
from tests.simulation.history import History, TopicPartition, Violation
from tests.simulation.world import STORE, SimNode, World

RETENTION_MS = 8_000
CONFIGS: Mapping[str, Mapping[str, str]] = {
    "keyed": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "1000",
        "delete.retention.ms": "1000",
    },
    "expiring": {"retention.ms": str(RETENTION_MS)},
}
"""Configs of topics that are cleaned by key, or whose records expire."""
PROGRESS_S = 400.0
"""Virtual time within which everything succeeds once all faults are over."""
SETTLED_S = 560.0
"""Virtual time after which every object that is not committed is deleted."""
COUNTS = (
    "plain",
    "transactional",
    "committers",
    "deleters",
    "readers",
    "copiers",
    "churns",
    "classic_members",
    "consumer_members",
    "keyed",
    "expiring",
    "idempotent",
)
"""Fields of a plan that count actors."""
GROUP, TRANSACTION = 0, 1
"""Types of coordinators."""
SHARED_MEMORY = Path("/dev/shm")
LIVE_PERIOD_S = 1.0
REST_CHECKS = 60
TASKS_MAX = 40
"""More than a node without clients has: about 17."""


@dataclass(frozen=True)
class Plan:
    """Actors and faults of a run, and its length in virtual seconds."""

    seed: int
    seconds: float
    faults: Sequence[str]
    partitions: int
    plain: int
    idempotent: int
    transactional: int
    committers: int
    deleters: int
    readers: int
    copiers: int
    churns: int
    classic_members: int
    consumer_members: int
    keyed: int
    expiring: int
    delete_delay_ms: int
    first_offset: int
    """Offset at which new partitions begin: most runs cross a boundary of 31 or 32 bits."""
    window_bytes: int
    """First bound of the log's window: a small one has to grow."""
    settles: bool
    """Wait at the end until everything that is not needed is deleted, and check that it is."""

    def lines(self) -> list[str]:
        return [f"{name} = {value}" for name, value in vars(self).items()]


def plan_of(seed: int) -> Plan:
    """Choose a plan by the seed."""
    random = Random(f"plan/{seed}")
    return Plan(
        seed=seed,
        seconds=random.choice((10.0, 15.0, 30.0, 60.0)),
        faults=[kind for kind in FAULTS if random.random() < 0.35],
        partitions=random.choice((1, 2, 4)),
        plain=random.randint(0, 1),
        idempotent=random.randint(1, 2),
        transactional=random.randint(0, 2),
        committers=random.randint(0, 2),
        deleters=random.choice((0, 0, 1)),
        readers=random.randint(0, 2),
        copiers=random.choice((0, 0, 1)),
        churns=random.choice((0, 0, 1)),
        classic_members=random.choice((0, 0, 2, 3)),
        consumer_members=random.choice((0, 0, 2, 3)),
        keyed=random.choice((0, 0, 1)),
        expiring=random.choice((0, 0, 1)),
        delete_delay_ms=random.choice((20_000, 20_000, 200_000)),
        first_offset=random.choice((0, 2**31 - 30, 2**32 - 30, 2**40)),
        window_bytes=random.choice((4 << 10, 32 << 10, 4 << 20)),
        settles=random.random() < 0.2,
    )


def smaller(plan: Plan) -> list[Plan]:
    """Plans that have less: to find the smallest one that still fails."""
    found = [replace(plan, faults=[each for each in plan.faults if each != kind]) for kind in plan.faults]
    for name in COUNTS:
        if getattr(plan, name) > 0:
            without: dict[str, Any] = {name: 0}
            found.append(replace(plan, **without))
    if plan.partitions > 1:
        found.append(replace(plan, partitions=1))
    if plan.seconds > 10:
        found.append(replace(plan, seconds=plan.seconds / 2))
    return found


@dataclass
class Report:
    """Outcome of a run."""

    plan: Plan
    error: str = ""
    virtual_s: float = 0.0
    acked: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    turns: int = 0


def run(plan: Plan, *, plant: Callable[[], Any] | None = None) -> Report:
    """Run a plan in this process. `plant` is called first: it plants a bug."""
    report = Report(plan)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        world = World(
            plan.seed,
            Path(folder),
            delete_delay_ms=plan.delete_delay_ms,
            first_offset=plan.first_offset,
            window_bytes=plan.window_bytes,
            strict="twin" in plan.faults,
        )
        scenario = Scenario(world, plan)
        if plant is not None:
            plant()
        try:
            world.run(scenario.main)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            report.error = "; ".join(_causes(error))
        report.virtual_s = world.now_s
        report.acked = sum(len(known.acked) for known in scenario.history.partitions.values())
        report.counts = world.counts
        report.digest = world.trace.digest()
        report.trace = world.trace.lines
        report.turns = world.loop.turns
    return report


def _causes(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _causes(each)]
    text = str(error) or repr(error)
    return [text if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {text}"]


class Scenario:
    """The actors of a run."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.history = History(world.note, world.now_ms, first_offset=plan.first_offset)
        self.topics = {"stable": plan.partitions, "other": 1}
        """Topics that all producers write to, with their partitions."""
        self.own_topics = {f"copy{index}": 1 for index in range(plan.copiers)}
        if plan.keyed:
            self.own_topics["keyed"] = 1
            self.history.compacted.add("keyed")
        if plan.expiring:
            self.own_topics["expiring"] = 1
            # A clock that is wrong lets records expire at any time.
            self.history.expiring["expiring"] = 0 if "clock" in plan.faults else RETENTION_MS
        self.groups = [GroupHistory("classic"), GroupHistory("consumer")]

    async def main(self) -> None:
        world, plan = self.world, self.plan
        async with asyncio.TaskGroup() as group:
            node_tasks = [group.create_task(node.supervise()) for node in world.nodes]
            await world.nodes[0].serving()
            self._begin_offsets()
            await self._create_topics()
            actors = self._actors()
            running = [group.create_task(actor.run(), name=actor.name) for actor in actors]
            faults = [group.create_task(keep(world, kind, plan.seconds)) for kind in plan.faults]
            if "clock" not in plan.faults:  # by a wrong clock the delay may be over at once
                world.store.delete_delay_s = plan.delete_delay_ms / 1000 - 2 * LIVE_PERIOD_S - WAIT_COUNTED_S
                faults.append(group.create_task(self._note_live()))
            await asyncio.sleep(plan.seconds)
            await _cancelled(faults)
            world.heal()
            try:
                async with asyncio.timeout(PROGRESS_S):
                    await _ended(running)
                    await self._check(actors)
            except TimeoutError as error:
                left = [task.get_name() for task in running if not task.done()] or ["the final checks"]
                raise Violation(
                    f"no progress for {PROGRESS_S} s after the faults: {', '.join(left)}; {self._state()}"
                ) from error
            await self._check_storage()
            await _cancelled(node_tasks)

    def _begin_offsets(self) -> None:
        """Let new streams begin at the plan's first offset."""
        with closing(sqlite3.connect(self.world.folder / "catalog.db")) as connection, connection:
            connection.execute(
                "CREATE TRIGGER begin AFTER INSERT ON streams WHEN NEW.end_offset = 0 BEGIN"
                f" UPDATE streams SET start_offset = {self.plan.first_offset}, end_offset = {self.plan.first_offset}"
                " WHERE stream_id = NEW.stream_id; END"
            )

    async def _note_live(self) -> None:
        """Note which objects hold data of streams, for the check of their deletion."""
        live_s = self.world.store.live_s
        with closing(sqlite3.connect(self.world.folder / "catalog.db")) as connection:
            while True:
                for (object_id,) in connection.execute("SELECT DISTINCT object_id FROM ranges").fetchall():
                    live_s[object_id] = self.world.now_s
                await asyncio.sleep(LIVE_PERIOD_S)

    def _state(self) -> str:
        node = self.world.nodes[0]
        return f"node {'serves' if node.node else 'does not serve'}, refusals {node.refusals[-1:]}"

    def _actors(self) -> list[Any]:
        world, history, plan = self.world, self.history, self.plan
        partitions, topics = self.partitions, self.topics
        return [
            *(Producer(world, history, f"plain{index}", topics, idempotent=False) for index in range(plan.plain)),
            *(Producer(world, history, f"idem{index}", topics, idempotent=True) for index in range(plan.idempotent)),
            *(TransactionalProducer(world, history, f"txn{index}", topics) for index in range(plan.transactional)),
            *(
                Committer(world, f"committer{index}", partitions[index % len(partitions)])
                for index in range(plan.committers)
            ),
            *(Deleter(world, history, f"deleter{index}", partitions[0]) for index in range(plan.deleters)),
            *(
                Reader(
                    world,
                    history,
                    f"reader{index}-{topic}-{number}",
                    (topic, number),
                    committed=bool((index + number) % 2),
                )
                for index in range(plan.readers)
                for topic, number in partitions
            ),
            *(Copier(world, history, f"copier{index}", ("other", 0), f"copy{index}") for index in range(plan.copiers)),
            *(Churn(world, f"churn{index}") for index in range(plan.churns)),
            *(ClassicMember(world, f"classic{index}", self.groups[0], topics) for index in range(plan.classic_members)),
            *(
                ConsumerMember(world, f"consumer{index}", self.groups[1], topics)
                for index in range(plan.consumer_members)
            ),
            *(
                Producer(world, history, f"keyed{index}", {"keyed": 1}, idempotent=True, keys=5)
                for index in range(plan.keyed)
            ),
            *(
                TransactionalProducer(world, history, f"keyed-txn{index}", {"keyed": 1}, keys=5)
                for index in range(plan.keyed)
            ),
            *(
                Producer(world, history, f"expiring{index}", {"expiring": 1}, idempotent=True)
                for index in range(plan.expiring)
            ),
        ]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that are checked at the end."""
        topics = {**self.topics, **self.own_topics}
        return [(topic, index) for topic, count in topics.items() for index in range(count)]

    async def _create_topics(self) -> None:
        client = Client(self.world, "admin")
        for topic, count in {**self.topics, **self.own_topics}.items():
            configs = CONFIGS.get(topic, {})
            wanted = CreatableTopic(
                name=topic,
                num_partitions=count,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
            )
            while True:
                try:
                    answer = await client.call(CreateTopicsRequest(topics=[wanted]), 5)
                except Lost:
                    await client.pause()
                    continue
                code = answer.topics[0].error_code
                if code in {0, ErrorCode.TOPIC_ALREADY_EXISTS}:
                    break
                await client.pause()
        for key_type in (GROUP, TRANSACTION):  # a client's first question makes the coordinators' topics
            while True:
                try:
                    answer = await client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"]), 4)
                except Lost:
                    answer = None
                if answer is not None and not answer.coordinators[0].error_code:
                    break
                await client.pause()
        await client.drop()

    async def _check(self, actors: Sequence[Any]) -> None:
        """Read everything, and compare it with what is known."""
        world, history = self.world, self.history
        world.note("final checks")
        for actor in actors:
            if isinstance(actor, Committer):
                await actor.check()
            elif isinstance(actor, TransactionalProducer):
                await actor.check_offsets()
        client = Client(world, "final")
        starts: dict[TopicPartition, int] = {}
        committed: dict[TopicPartition, dict[int, str]] = {}
        for where in self.partitions:
            await self._until_stable(client, where)
            readers = [
                Reader(world, history, f"final-{where}-{level}", where, committed=level) for level in (False, True)
            ]
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
        for group in self.groups:
            await check_group(world, group)
        history.check_order(producer_and_number)

    async def _until_stable(self, client: Client, where: TopicPartition) -> None:
        """Wait until no transaction is open: each ends by itself, or by its time-out."""
        reader = Reader(self.world, self.history, f"stable-{where}", where, committed=True)
        while True:
            reader.offset = await list_offset(client, where, LATEST)
            if await reader.step() and reader.stable == reader.high_watermark:
                break
            await asyncio.sleep(0.5)
        await reader.client.drop()

    async def _check_left(self, node: Node) -> None:
        """Check that a node without clients comes to rest: nothing is held for requests, and few tasks run."""
        world = self.world
        world.network.reset(world.nodes[0].host, 1.0)
        process = world.nodes[0].process
        assert process is not None
        tasks: list[str] = []
        found = 0, 0, 0
        for _ in range(REST_CHECKS):
            await asyncio.sleep(1)
            tasks = [getattr(task.get_coro(), "__qualname__", "") for task in process.tasks if not task.done()]
            found = len(node.server.connections), node.server.bytes_held, max(0, len(tasks) - TASKS_MAX)
            if not any(found):
                return
        raise Violation(
            f"without clients the node has {found[0]} connections, {found[1]} bytes of requests, {len(tasks)} tasks: "
            + ", ".join(sorted(tasks))
        )

    async def _check_storage(self) -> None:
        """Stop the node, and compare catalog and store."""
        world = self.world
        node: SimNode = world.nodes[0]
        await node.serving()
        while world.store.late:
            await asyncio.sleep(10)
        if self.plan.settles:
            await asyncio.sleep(SETTLED_S)
        await self._check_left(await node.serving())
        await node.stopped()
        if world.errors or world.store.early:
            raise Violation([*world.errors, *world.store.early][0])
        catalog = Catalog(f"sqlite:///{world.folder}/catalog.db")
        await catalog.open(cluster="anabranch")
        try:
            report = await verify(catalog=catalog, stores={STORE: world.store.objects}, cluster="anabranch", deep=True)
        finally:
            await catalog.close()
        findings = [each for each in report.findings if not self._is_excused(each)]
        if findings:
            raise Violation(f"storage: {findings[0]}")

    def _is_excused(self, finding: Finding) -> bool:
        """Return whether an object landed after the catalog had forgotten it: by a wrong clock that may be at once."""
        store = self.world.store
        return (
            "clock" in self.plan.faults
            and finding.kind is FindingKind.UNACCOUNTED
            and finding.where.removeprefix(f"{store.objects.name}:") in store.landed_late
        )


def producer_and_number(value: str) -> tuple[str, int]:
    """Split a value into its producer and its number."""
    name, _, number = value.rpartition(":")
    return name, int(number)


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks) if tasks else None


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
