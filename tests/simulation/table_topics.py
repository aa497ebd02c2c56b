"""Topics that live as tables: made in each format, grown, altered, moved, cloned, deleted, and made again.

Each of their steps may come between any two commits of the table. `Tables` checks what the table has.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.handlers.local import LocalRefusal, LocalRequests, User
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call
from anabranch.broker.operator.admin.api.tables import DroppedTable, DropQuery, TableEndpoints
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.s3stream.catalog.table_values import TableRetention
from anabranch.s3stream.errors import StorageError
from anabranch.tables.upkeep.options import ENABLE, RETENTION, RETENTIONS
from tests.simulation.churn import Churn
from tests.simulation.consumers import Deleter, Reader
from tests.simulation.formats import FORMATS, Values
from tests.simulation.history import History, Violation
from tests.simulation.producers import Producer
from tests.simulation.routing import Lost
from tests.simulation.tables import Expected, Tables
from tests.simulation.world import World

BAD_SHARE = 0.1
"""Share of the values that cannot be decoded."""
FILLED_INTERVALS = 5
COMMAND_S = 20.0
STRAYS_S = 45.0
"""Time within which a change whose answer was lost takes effect, or never: no pause is longer."""
OPERATOR = User("User:operator", "127.0.0.1")
TOPIC = 2
"""Type of a resource that has configs."""


class TypedProducer(Producer):
    """Sends values in a format, some of them broken."""

    def __init__(self, world: World, history: History, name: str, topics: Mapping[str, int], values: Values) -> None:
        super().__init__(world, history, name, topics, idempotent=True)
        self.values = values

    def encode(self, value: str, padding: bytes) -> bytes:
        return self.values.encode(value, padding, is_bad=self.random.random() < BAD_SHARE)


@dataclass(slots=True)
class _Life:
    """A topic from its creation to its end."""

    count: int
    at_home: bool
    """True if one node leads all partitions."""
    values: Values
    history: History
    expected: Expected
    producer: Producer
    is_table: bool = True
    """True if `table.enable` is."""


class TableTopic(Churn):
    """Owns one name, whose topics are tables."""

    def __init__(self, world: World, tables: Tables, name: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, name)
        self.tables = tables
        self.table_configs = configs
        self.held: Expected | None = None
        """Table of a topic that is gone, which has kept its name."""

    async def _round(self) -> None:
        random = self.client.random
        life = await self._begin()
        moves = len(self.world.nodes) == 1 or life.at_home
        steps = [
            self._grow_schema,
            self._grow_topic,
            self._delete_records,
            self._switch,
            self._drop_and_go_on,
            self._alter_retention,
            self._wait,
            *([self._move, self._clone] if moves else []),
        ]
        for _ in range(random.randint(1, 4)):
            await life.producer.flight()
            await random.choice(steps)(life)
        await life.producer.flight()
        if random.random() < 0.8:
            await self._check_life(life)
        await life.producer.client.drop()
        await self._end(life)

    async def _begin(self) -> _Life:
        random = self.client.random
        count = random.randint(1, 2)
        self.home = self.client.any_node()
        at_home = len(self.world.nodes) > 1 and random.random() < 0.5
        life_name = f"{self.name}.{self.rounds}"
        values = Values(random.choice(FORMATS), life_name, self.world.registry)
        retention = random.choice(sorted(RETENTIONS))
        self.configs = {**self.table_configs, **values.configs(), RETENTION: retention}
        history = self._new_history(values)
        expected = self.tables.expect(self.name, Expected(history, values, {RETENTIONS[retention]}))
        await self._create(count, at_home=at_home)
        await self._learn_id(self.name)
        self.tables.look()  # learns which topic it is
        self.world.count(f"table topic of {values.format}")
        producer = TypedProducer(self.world, history, life_name, {self.name: count}, values)
        producer.client.topic_ids = self.topic_ids
        return _Life(count, at_home, values, history, expected, producer)

    def _new_history(self, values: Values) -> History:
        return History(
            self.world.note, self.world.now_ms, first_offset=self.world.first_offset, identify=values.identify
        )

    # steps

    async def _wait(self, _life: _Life) -> None:
        await asyncio.sleep(self.client.random.uniform(0, 5))

    async def _grow_schema(self, life: _Life) -> None:
        life.values.grow()
        if life.values.is_typed:
            self.world.count(f"schema of {life.values.format} grown")
        if life.values.format == "json":
            await self._alter(life, life.values.configs())
        if self.client.random.random() < 0.5:
            await self._fill(life)

    async def _fill(self, life: _Life) -> None:
        """Send over some intervals of commits, so that files with the columns of the newest schema are joined."""
        interval_s = int(self.table_configs["table.commit.interval.ms"]) / 1000
        for _ in range(FILLED_INTERVALS):
            await life.producer.flight()
            await asyncio.sleep(self.client.random.uniform(1, 2) * interval_s)

    async def _grow_topic(self, life: _Life) -> None:
        if life.count < 3:
            life.count = await self._grow(life.count, at_home=life.at_home)
            life.producer.topics = {self.name: life.count}
            self.world.count("table topic grown")

    async def _delete_records(self, life: _Life) -> None:
        where = self.name, self.client.random.randrange(life.count)
        deleter = Deleter(self.world, life.history, f"{self.name}.{self.rounds}-deleter", where)
        deleter.client.topic_ids = self.topic_ids
        await deleter.delete(kept=0)
        await deleter.client.drop()
        self.world.count("records of a table topic deleted")

    async def _switch(self, life: _Life) -> None:
        """Switch the table off for a while."""
        await self._alter(life, {ENABLE: "false"})
        life.is_table = False
        self.world.count("table switched off")
        await self._wait(life)
        await life.producer.flight()
        if self.client.random.random() < 0.3:
            await self._delete_records(life)
        if self.client.random.random() < 0.8:
            await self._enable(life)

    async def _alter_retention(self, life: _Life) -> None:
        retention = self.client.random.choice(sorted(RETENTIONS))
        life.expected.retentions.add(RETENTIONS[retention])  # it counts if there is no table yet
        await self._alter(life, {RETENTION: retention})

    async def _drop_and_go_on(self, life: _Life) -> None:
        if self.held is not None:
            await self._drop_held(life)
            return
        await self._drop(life, self.name, life.expected)
        life.is_table = False
        await self._wait(life)
        self.tables.look()
        if self.client.random.random() < 0.8:
            await self._enable(life)

    async def _enable(self, life: _Life) -> None:
        life.expected.must_be_gone = False
        await self._alter(life, {ENABLE: "true"})
        life.is_table = True

    async def _move(self, _life: _Life) -> None:
        await self._detach_and_attach()

    async def _clone(self, life: _Life) -> None:
        """Clone the topic, whose clone has a table of its own, from the same objects."""
        clone = f"{self.name}-clone"
        expected = Expected(
            life.history.of_clone(self.name, clone),
            life.values,
            set(life.expected.retentions),
            is_doubtful=life.expected.is_doubtful,
        )
        self.tables.expect(clone, expected)
        if not await self._until_moved(
            lambda node: node.moves.clone(self.name, clone), if_done=ErrorCode.TOPIC_ALREADY_EXISTS
        ):
            return
        await self._learn_id(clone)
        self.tables.look()
        self.world.count("table topic cloned")
        is_table = life.is_table and not expected.is_doubtful
        await self._check_partitions(clone, life.count, expected, is_table=is_table)
        expected.is_deleting = True
        await self._delete(clone)
        expected.is_deleted = True
        if self._kept(clone, expected):
            await self._drop(life, clone, expected)

    # changes

    async def _alter(self, life: _Life, configs: Mapping[str, str]) -> None:
        changes = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs.items()]
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=self.name, configs=changes)
        while True:
            try:
                answer = await self.client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            except Lost:
                life.expected.is_doubtful = True
            else:
                found = answer.responses[0]
                if not found.error_code:
                    return
                if found.error_code == ErrorCode.INVALID_CONFIG:
                    raise Violation(f"{self.name}: {configs}: {found.error_message}")
                life.expected.is_doubtful = True  # an error may hide a success
            await self.client.pause()

    async def _drop(self, life: _Life, name: str, expected: Expected) -> None:
        """Drop a table, as an operator does; its topic keeps its records, and is no table any more."""
        keep_files = self.client.random.random() < 0.2
        is_enabled = life.is_table and expected is life.expected and not expected.is_deleted
        if is_enabled and self.client.random.random() < 0.5:
            await self._alter(life, {ENABLE: "false"})
            is_enabled = False
        self.tables.look()
        before = self.tables.seen(expected)
        expected.is_dropping = True
        while True:
            try:
                answer = await self._ask_to_drop(name, keep_files=keep_files)
            except (OSError, StorageError, LocalRefusal, KafkaError):
                life.expected.is_doubtful = True  # it may go on
                self.tables.look()
                if self.tables.seen(expected) is None and not is_enabled:
                    break  # another one may have its name by now
            except ApiError as error:
                if error.status is HTTPStatus.NOT_FOUND and not is_enabled:
                    break  # there is none, or it is done
                life.expected.is_doubtful = True
            else:
                if answer.disabled_topic is not None or not is_enabled:
                    break
                # By a node that has not heard of the topic, or its configs: they are as they were.
                await self._alter(life, {ENABLE: "false"})
                is_enabled = False
                continue
            if is_enabled:
                await self._alter(life, {ENABLE: "false"})
                is_enabled = False
            await self.client.pause()
        self.world.count("table dropped")
        expected.must_be_gone = expected.is_deleted or not life.expected.is_doubtful
        self.tables.look()
        expected.is_dropping = False
        if before is not None and keep_files:
            self.tables.note_left(before)

    async def _ask_to_drop(self, name: str, *, keep_files: bool) -> DroppedTable:
        async def drop(node: Node) -> DroppedTable:
            local = LocalRequests(node.serving, HANDLERS, is_stopping=lambda: node.stopping)
            none = cast("Any", None)
            call = Call(none, {"table": name}, DropQuery(keep_files=keep_files), none, OPERATOR, True, lambda: True)
            return await TableEndpoints(node, none, none, local)._drop(call)

        found: DroppedTable = await self.client.any_node().ask(drop, COMMAND_S)
        return found

    async def _drop_held(self, life: _Life) -> None:
        """Drop the table of a topic that is gone, so that the one which has its name now gets one."""
        assert self.held is not None, "there is one"
        await self._drop(life, self.name, self.held)
        self.held = None

    # checks

    async def _check_life(self, life: _Life) -> None:
        """Wait until the table has all that the topic has, in the columns of its newest schema."""
        random = self.client.random
        if self.held is not None and random.random() < 0.7:
            await self._drop_held(life)
        if life.is_table and life.expected.is_doubtful:
            for node in self.world.nodes:
                await node.until_commands_end()
            await asyncio.sleep(STRAYS_S)
            await self._enable(life)
        is_table = life.is_table and self.held is None
        await self._check_partitions(self.name, life.count, life.expected, is_table=is_table)
        while is_table and not self._is_followed(life):
            self.tables.waits_for[self.name, 0] = f"table {self.name}: no row has the columns of the newest schema"
            await self.client.pause()
            await life.producer.flight()
            await self._check_partitions(self.name, life.count, life.expected, is_table=True)
        self.tables.waits_for.pop((self.name, 0), None)
        if is_table:
            self.world.count("table topic checked")

    def _is_followed(self, life: _Life) -> bool:
        """Return whether some row has the columns of the newest schema, or none was sent with it."""
        values = life.values
        if not values.is_typed:
            return True
        sent = [
            (where, offset, value)
            for value, (where, offset) in life.history.places.items()
            if values.sent[value].version == values.version and not values.sent[value].is_bad
        ]
        rows = [self.tables.row(life.expected, where[1], offset) for where, offset, _ in sent]
        return any(row is not None and values.is_newest(row) for row in rows)

    async def _check_partitions(self, topic: str, count: int, expected: Expected, *, is_table: bool) -> None:
        history = expected.history
        for index in range(count):
            where = (topic, index)
            reader = Reader(self.world, history, f"{topic}.{self.rounds}-{index}", where, committed=True)
            reader.client.topic_ids = self.topic_ids
            await reader.read_all()
            history.check_final(where, reader.start, reader.high_watermark, reader.found, reader.found)
            if is_table:
                await self.tables.check_final(reader)
            await reader.client.drop()

    # the end

    async def _end(self, life: _Life) -> None:
        life.expected.is_deleting = True
        await self._delete(self.name)
        life.expected.is_deleted = True
        if self._kept(self.name, life.expected):
            self.world.count("table kept")
            self.held = life.expected
            if self.client.random.random() < 0.3:
                await self._drop_held(life)

    def _kept(self, name: str, expected: Expected) -> bool:
        """Return whether a table has outlived its topic."""
        self.tables.look()
        table = self.tables.seen(expected)
        return table is not None and table.name == name and table.retention is TableRetention.KEEP
