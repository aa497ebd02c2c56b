"""One run of a plan: its actors, its faults, and the checks at its end."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pyiceberg.avro import file as avro_file

from anabranch.broker.kafka.share.dead_letters import writer
from anabranch.native import VARIABLE
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.s3stream.catalog.deadline import WAIT_COUNTED_S
from tests.simulation.balancing import quick_balancer
from tests.simulation.churn import Churn
from tests.simulation.consumers import Committer, Deleter, Reader
from tests.simulation.copies import Copier
from tests.simulation.faults import end_drains, keep
from tests.simulation.final_checks import check_all
from tests.simulation.go_back import go_back
from tests.simulation.groups import ClassicMember, ConsumerMember, GroupHistory
from tests.simulation.history import History, TopicPartition, Violation
from tests.simulation.node import RACKS
from tests.simulation.node_checks import check_storage, watch_logs
from tests.simulation.plan import Plan
from tests.simulation.producers import Producer
from tests.simulation.restless import RestlessProducer
from tests.simulation.rivals import begin_beside_rival
from tests.simulation.routing import GROUP, TRANSACTION, Client, Lost
from tests.simulation.share import ShareConsumer, ShareHistory
from tests.simulation.streams import StreamsMember
from tests.simulation.table_topics import TableTopic
from tests.simulation.tables import Tables
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.views import all_see_all, watch_liveness
from tests.simulation.world import World
from tests.support.native import native_mode

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
SHARED_MEMORY = Path("/dev/shm")
LIVE_PERIOD_S = 1.0


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
            strict="twin" in plan.faults or (plan.nodes > 1 and plan.seed % 2 == 0 and not plan.processes),
            object_log=plan.object_log,
            moves=plan.nodes > 1,
            processes=plan.processes,
            nodes=plan.nodes,
        )
        scenario = Scenario(world, plan)
        if plant is not None:
            plant()
        # A planted bug is in Python's code. Others of the seed's bits decide about fencing and more.
        mode = "off" if plant is not None or plan.seed // 2 % 2 else os.environ.get(VARIABLE) or "auto"
        markers = SimpleNamespace(urandom=world.random("markers of Avro files").randbytes)
        try:
            with (
                native_mode(mode),
                patch.object(writer, "PAUSES_S", (0.5, 2.0)),
                patch.object(avro_file, "os", markers),
                quick_balancer(),
            ):
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
        self.tables: Tables | None = None
        if plan.tables or plan.table_topics:
            self.tables = Tables(
                world,
                self.history,
                snapshot_retention_ms=plan.snapshot_retention_ms,
                clocks_are_right="clock" not in plan.faults,
                goes_back=plan.goes_back,
            )
        self.groups = [GroupHistory("classic"), GroupHistory("consumer"), GroupHistory("streams")]
        self.shares: ShareHistory | None = None
        if plan.share_members:
            # A catalog that goes back takes records with it, also of the dead-letter topic.
            self.shares = ShareHistory(
                world, "share", committed=bool(plan.seed % 2), has_dead_letters=not plan.goes_back
            )

    async def main(self) -> None:
        world, plan = self.world, self.plan
        async with asyncio.TaskGroup() as group:
            node_tasks = [group.create_task(node.supervise()) for node in world.nodes]
            if plan.rival:
                await begin_beside_rival(world)
            await all_see_all(world)
            self._begin_offsets()
            await self._create_topics()
            actors = self._actors()
            running = [group.create_task(actor.run(), name=actor.name) for actor in actors]
            faults = [group.create_task(keep(world, kind, plan.seconds)) for kind in plan.faults]
            if "clock" not in plan.faults:  # by a wrong clock the delay may be over at once
                world.store.delete_delay_s = plan.delete_delay_ms / 1000 - 2 * LIVE_PERIOD_S - WAIT_COUNTED_S
                faults.append(group.create_task(self._note_live()))
            faults.append(group.create_task(watch_logs(world)))
            if self.tables is not None:
                faults.append(group.create_task(self.tables.watch()))
            if plan.nodes > 1:
                faults.append(group.create_task(watch_liveness(world)))
            await asyncio.sleep(plan.seconds)
            await _cancelled(faults)
            if plan.goes_back:
                world.heal(faults_over=False)
                await go_back(world)
                if self.tables is not None:
                    self.tables.catalog_rebuilt()
                self._begin_offsets()
            world.heal()
            try:
                async with asyncio.timeout(PROGRESS_S):
                    await end_drains(world)
                    await _ended(running)
                    tables = self.tables if plan.tables else None
                    last = self._last_share_consumer()
                    await check_all(world, self.history, self.partitions, self.groups, actors, tables, last)
            except TimeoutError as error:
                left = [task.get_name() for task in running if not task.done()] or ["the final checks"]
                raise Violation(
                    f"no progress for {PROGRESS_S} s after the faults: {', '.join(left)}; {self._state()}"
                    + ("" if self.tables is None else "".join(f"; {why}" for why in self.tables.waits_for.values()))
                ) from error
            await check_storage(world, plan)
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
        return ", ".join(
            f"{node.host} {'serves' if node.node else 'does not serve'}, refusals {node.refusals[-1:]}"
            for node in self.world.nodes
        )

    def _actors(self) -> list[Any]:
        world, history, plan = self.world, self.history, self.plan
        partitions, topics = self.partitions, self.topics
        return [
            *(Producer(world, history, f"plain{index}", topics, idempotent=False) for index in range(plan.plain)),
            *(Producer(world, history, f"idem{index}", topics, idempotent=True) for index in range(plan.idempotent)),
            *(TransactionalProducer(world, history, f"txn{index}", topics) for index in range(plan.transactional)),
            *(RestlessProducer(world, history, f"restless{index}", topics) for index in range(plan.restless)),
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
                    rack=RACKS[(index + number // 2) % len(RACKS)] if plan.nodes > 1 else "",
                    beside=[each for each in partitions if each[0] != topic],
                )
                for index in range(plan.readers)
                for topic, number in partitions
            ),
            *(Copier(world, history, f"copier{index}", ("other", 0), f"copy{index}") for index in range(plan.copiers)),
            *(Churn(world, f"churn{index}") for index in range(plan.churns)),
            *(
                TableTopic(world, self.tables, f"typed{index}", self._table_configs())
                for index in range(plan.table_topics)
                if self.tables is not None
            ),
            *(ClassicMember(world, f"classic{index}", self.groups[0], topics) for index in range(plan.classic_members)),
            *(
                ConsumerMember(world, f"consumer{index}", self.groups[1], topics)
                for index in range(plan.consumer_members)
            ),
            *(StreamsMember(world, f"streams{index}", self.groups[2], topics) for index in range(plan.streams_members)),
            *self._share_consumers(),
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

    def _share_consumers(self) -> list[ShareConsumer]:
        if self.shares is None:
            return []
        return [
            ShareConsumer(self.world, self.history, self.shares, f"share{index}", self.topics)
            for index in range(self.plan.share_members)
        ]

    def _last_share_consumer(self) -> ShareConsumer | None:
        """Return a member that takes what is left."""
        if self.shares is None:
            return None
        return ShareConsumer(self.world, self.history, self.shares, "share-last", self.topics)

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that are checked at the end."""
        topics = {**self.topics, **self.own_topics}
        return [(topic, index) for topic, count in topics.items() for index in range(count)]

    def _table_configs(self) -> Mapping[str, str]:
        return {
            "table.enable": "true",
            "table.commit.interval.ms": str(self.plan.table_interval_ms),
            "table.snapshot.retention.ms": str(self.plan.snapshot_retention_ms),
        }

    async def _create_topics(self) -> None:
        client = Client(self.world, "admin")
        for topic, count in {**self.topics, **self.own_topics}.items():
            configs = {**CONFIGS.get(topic, {}), **(self._table_configs() if self.plan.tables else {})}
            wanted = CreatableTopic(
                name=topic,
                num_partitions=count,
                replication_factor=self.plan.nodes,
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


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks) if tasks else None


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
