"""Producers of the simulation: plain, and idempotent. They tell the history all that they send and hear."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from tests.simulation.history import History, TopicPartition, Transaction, Violation
from tests.simulation.node import SimNode
from tests.simulation.routing import TIMEOUT_S, Client, Lost, NoRoute, Refused, check
from tests.simulation.world import World

IN_FLIGHT_MAX = 5
MISSING_SHARE = 0.05
"""Share of the flights that end with a batch for a topic that does not exist."""
ONE_PARTITION_SHARE = 0.3
"""Share of the flights that go to one partition: as many batches as it keeps of a producer."""


@dataclass(slots=True)
class Batch:
    """One batch that a producer sends until it knows what became of it."""

    where: TopicPartition
    values: Sequence[str]
    sequence: int
    data: bytes = b""


class Producer:
    """Sends records. With idempotence each batch is repeated until it is acked; without it, it is sent once."""

    def __init__(
        self, world: World, history: History, name: str, topics: Mapping[str, int], *, idempotent: bool, keys: int = 0
    ) -> None:
        self.client = Client(world, name)
        self.world = world
        self.history = history
        self.name = name
        self.random = self.client.random
        self.topics = topics
        self.idempotent = idempotent
        self.keys = keys
        self.numbers = 0
        self.producer_id = self.epoch = -1
        self.sequences: dict[TopicPartition, int] = {}
        self.produce_version = 9
        self.acked = 0

    async def run(self) -> None:
        """Produce until the faults are over."""
        while not self.world.faults_over.is_set():
            if self.idempotent:
                await self.flight()
            else:
                await self._once()
            await asyncio.sleep(self.random.expovariate(4))

    def choose(self) -> TopicPartition:
        """A partition to send to."""
        topic = self.random.choice(sorted(self.topics))
        return topic, self.random.randrange(self.topics[topic])

    def make_values(self, where: TopicPartition, transaction: Transaction | None = None) -> list[str]:
        """New unique values for a batch."""
        values = []
        for _ in range(self.random.choice((1, 1, 2, 5, 20))):
            self.numbers += 1
            values.append(f"{self.name}:{self.numbers}")
        self.history.send(where, values, transaction)
        return values

    def make_batch(self, values: Sequence[str], sequence: int, *, transactional: bool = False) -> bytes:
        """Build a batch as a client does."""
        padding = b"." * self.random.choice((0, 10, 100, 2_000))
        now_ms = self.world.now_ms()
        records = [Record(self._key(value), self.encode(value, padding), now_ms) for value in values]
        codec = self.random.choice((Compression.NONE, Compression.NONE, Compression.GZIP))
        return bytes(
            build_batch(
                records,
                compression=codec,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence if self.producer_id >= 0 else -1,
                attributes=TRANSACTIONAL_MASK if transactional else 0,
            )
        )

    def encode(self, value: str, padding: bytes) -> bytes:
        """Return what a record has of a value."""
        return value.encode() + b"|" + padding

    def _key(self, value: str) -> bytes | None:
        if not self.keys:
            return None
        key = self.history.key_of[value] = f"k{self.random.randrange(self.keys)}".encode()
        return key

    async def init(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> None:
        """Get a producer id."""
        while True:
            try:
                answer = await self.client.call(
                    InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms), 4
                )
                check(answer.error_code, f"{self.name} InitProducerId")
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise Violation(str(error)) from error
                await self.client.pause()
            else:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                self.sequences.clear()
                return

    async def _once(self) -> None:
        """Send one batch once."""
        where = self.choose()
        values = self.make_values(where)
        batch = Batch(where, values, -1, self.make_batch(values, -1))
        try:
            await self._send([batch])
        except Lost:
            await self.client.pause()

    async def flight(self) -> None:
        """Send some batches at once, and repeat what was not acked, in order."""
        if self.producer_id < 0:
            await self.init()
        flight = []
        only = self.choose() if self.random.random() < ONE_PARTITION_SHARE else None
        for _ in range(IN_FLIGHT_MAX if only else self.random.randint(1, IN_FLIGHT_MAX)):
            where = only or self.choose()
            values = self.make_values(where)
            sequence = self.sequences.get(where, 0)
            self.sequences[where] = sequence + len(values)
            flight.append(Batch(where, values, sequence, self.make_batch(values, sequence)))
        await self.deliver(flight)

    async def deliver(self, flight: list[Batch], transactional_id: str | None = None) -> None:
        """Repeat batches until all are acked. Raises Refused for an error that ends a transaction."""
        while flight:
            flight = await self._send(flight, transactional_id)
            if flight:
                await self.client.pause()

    async def _send(self, flight: list[Batch], transactional_id: str | None = None) -> list[Batch]:
        """Send batches, one request each, and return those that must be sent again. Raises Lost."""
        by_node: dict[int, list[Batch]] = {}
        unsent: list[Batch] = []
        leaders: dict[TopicPartition, int | None] = {}
        """Nodes that get the batches of a partition: all of them one, though the leader may change meanwhile."""
        for batch in flight:
            if batch.where not in leaders:
                try:
                    leaders[batch.where] = (await self.client.node_for(batch.where)).node_id
                except Lost:
                    leaders[batch.where] = None
            node_id = leaders[batch.where]
            (unsent if node_id is None else by_node.setdefault(node_id, [])).append(batch)
        if not by_node and not self.idempotent:
            raise NoRoute("the leader is not known")
        sending = [self._send_to(self.world.node(key), each, transactional_id) for key, each in by_node.items()]
        redone = await asyncio.gather(*sending)
        return [*(batch for batches in redone for batch in batches), *unsent]

    async def _send_to(self, node: SimNode, flight: list[Batch], transactional_id: str | None) -> list[Batch]:
        """Send batches on one connection. Raises Lost if they are not to be sent again."""
        answers: list[Any] = []
        lost: Lost | None = None
        try:
            raw = await self.client.raw(node)
            async with asyncio.timeout(TIMEOUT_S):
                sent = [raw.send(request_of(batch, transactional_id), self.produce_version) for batch in flight]
                if self.random.random() < MISSING_SHARE:
                    # It is refused at once, and answered after those before it.
                    missing = replace(flight[-1], where=(f"missing-{self.name}", 0))
                    sent.append(raw.send(request_of(missing, transactional_id), self.produce_version))
                for correlation_id in sent:
                    found_id, answer = await raw.receive(ProduceRequest, self.produce_version)
                    if found_id != correlation_id:
                        raise Violation(f"{self.name}: the answer to {found_id} came before that to {correlation_id}")
                    answers.append(answer)
        except Lost as error:
            lost = error
        except (OSError, EOFError, TimeoutError) as error:
            await self.client.lose(node)
            lost = Lost(repr(error))
        again = flight[len(answers) :]
        failed: set[TopicPartition] = set()
        redo = []
        for batch, answer in zip(flight, answers, strict=False):
            found = answer.responses[0].partition_responses[0]
            if not found.error_code:
                self.history.ack(batch.where, found.base_offset, batch.values)
                self.acked += len(batch.values)
                continue
            self.client.hear(batch.where, found.error_code)
            refused = Refused(found.error_code, f"{self.name} Produce {batch.where} sequence {batch.sequence}")
            self._judge(refused, first=batch.where not in failed, transactional=transactional_id is not None)
            failed.add(batch.where)
            redo.append(batch)
        if not self.idempotent:
            if lost is not None:
                raise lost
            return []
        if lost is not None:
            await self.client.pause()
        return redo + again

    def _judge(self, error: Refused, *, first: bool, transactional: bool) -> None:
        """Raise for an error that a correct broker does not answer with."""
        code = error.code
        if code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            return
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not first:
            return  # the batch before it failed
        if transactional and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise error
        raise Violation(str(error))


def request_of(batch: Batch, transactional_id: str | None) -> ProduceRequest:
    topic, partition = batch.where
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch.data)])
        ],
    )
