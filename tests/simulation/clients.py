"""Clients of the simulation. They speak Kafka's protocol through the simulated network, and tell the history all."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from protocol.batch import TRANSACTIONAL_MASK, check_crc, iterate_batches
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.messages.end_txn import EndTxnRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.init_producer_id import InitProducerIdRequest
from protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.records import ControlType, Record, build_batch, decode_records
from tests.simulation.history import History, Outcome, TopicPartition, Transaction, Violation
from tests.simulation.world import World
from tests.support.raw_client import RawClient

TIMEOUT_S = 15.0
RETRY_S = (0.02, 0.5)
EARLIEST, LATEST = -2, -1
IN_FLIGHT_MAX = 5
MISSING_SHARE = 0.05
"""Share of the flights that end with a batch for a topic that does not exist."""
ONE_PARTITION_SHARE = 0.3
"""Share of the flights that go to one partition: as many batches as it keeps of a producer."""
FENCED_SHARE = 0.05
"""Share of the transactions after which another instance of the producer takes over."""


class Lost(Exception):
    """The connection broke or nobody answered: the request may have taken effect."""


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: {ErrorCode(code).name}")
        self.code = ErrorCode(code)


def check(code: int, where: str) -> None:
    """Raise Refused for an error code."""
    if code:
        raise Refused(code, where)


class Client:
    """A connection to the node that is there at the moment; it is opened again after each failure."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random(name)
        self._raw: RawClient | None = None

    async def raw(self) -> RawClient:
        """Return an open connection. Raises Lost."""
        if self._raw is None:
            node = self.world.nodes[0]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    reader, writer = await self.world.network.connect(f"client-{self.name}", node.address)
            except (OSError, TimeoutError) as error:
                raise Lost(str(error)) from error
            self._raw = RawClient(reader, writer, self.name)
        return self._raw

    async def call(self, message: object, version: int | None = None) -> Any:
        """Send a request and return the response. Raises Lost."""
        raw = await self.raw()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await raw.call(message, version)
        except (OSError, EOFError, TimeoutError) as error:
            await self.drop()
            raise Lost(repr(error)) from error

    async def drop(self) -> None:
        """Close the connection."""
        raw, self._raw = self._raw, None
        if raw is not None:
            await raw.abort()

    async def pause(self) -> None:
        """Wait before a retry."""
        await asyncio.sleep(self.random.uniform(*RETRY_S))


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
        records = [Record(self._key(value), value.encode() + b"|" + padding, now_ms) for value in values]
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
            raw = await self.client.raw()
            await self._send(raw, [batch])
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
            try:
                raw = await self.client.raw()
                flight = await self._send(raw, flight, transactional_id)
            except Lost:
                pass
            if flight:
                await self.client.pause()

    async def _send(self, raw: RawClient, flight: list[Batch], transactional_id: str | None = None) -> list[Batch]:
        """Send batches, one request each, and return those that must be sent again. Raises Lost."""
        answers: list[Any] = []
        lost: Lost | None = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                sent = [raw.send(_request(batch, transactional_id), 9) for batch in flight]
                if self.random.random() < MISSING_SHARE:
                    # It is refused at once, and answered after those before it.
                    missing = replace(flight[-1], where=(f"missing-{self.name}", 0))
                    sent.append(raw.send(_request(missing, transactional_id), 9))
                for correlation_id in sent:
                    found_id, answer = await raw.receive(ProduceRequest, 9)
                    if found_id != correlation_id:
                        raise Violation(f"{self.name}: the answer to {found_id} came before that to {correlation_id}")
                    answers.append(answer)
        except (OSError, EOFError, TimeoutError) as error:
            await self.client.drop()
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


def _request(batch: Batch, transactional_id: str | None) -> ProduceRequest:
    topic, partition = batch.where
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch.data)])
        ],
    )


class TransactionalProducer(Producer):
    """Sends records in transactions, which it commits or aborts, at times with the offsets of a group."""

    def __init__(self, world: World, history: History, name: str, topics: Mapping[str, int], *, keys: int = 0) -> None:
        super().__init__(world, history, name, topics, idempotent=True, keys=keys)
        self.transactions = 0
        self.outcomes: list[Transaction] = []
        self.offset = 0
        """Offset of its group that it wants to commit next."""
        self.committed: list[Transaction] = []

    async def run(self) -> None:
        await self.init(self.name, 20_000)
        while not self.world.faults_over.is_set():
            await self._transaction()
            if self.random.random() < FENCED_SHARE:
                await self._write_fenced()
            await asyncio.sleep(self.random.expovariate(2))

    async def _write_fenced(self) -> None:
        """Begin again, as another instance would, and let the former one write: it must never get an ack."""
        where = self.choose()
        producer_id, epoch, sequence = self.producer_id, self.epoch, self.sequences.get(where, 0)
        transaction = Transaction(f"{self.name} fenced in epoch {epoch}", Outcome.ABORTED)
        values = self.make_values(where, transaction)
        data = self.make_batch(values, sequence, transactional=True)
        await self.init(self.name, 20_000)
        with suppress(Lost):
            await self.client.call(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.name,
                    v3_and_below_producer_id=producer_id,
                    v3_and_below_producer_epoch=epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
                ),
                3,
            )
            answer = await self.client.call(_request(Batch(where, values, sequence, data), self.name), 9)
            if not answer.responses[0].partition_responses[0].error_code:
                raise Violation(f"{where}: {values[0]!r} was acked, {transaction.name}")

    async def _transaction(self) -> None:
        self.transactions += 1
        transaction = Transaction(f"{self.name}#{self.transactions}")
        self.outcomes.append(transaction)
        try:
            for _ in range(self.random.randint(1, 3)):
                where = self.choose()
                await self.until_done(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=self.name,
                        v3_and_below_producer_id=self.producer_id,
                        v3_and_below_producer_epoch=self.epoch,
                        v3_and_below_topics=[AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
                    ),
                    3,
                    lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
                )
                values = self.make_values(where, transaction)
                sequence = self.sequences.get(where, 0)
                self.sequences[where] = sequence + len(values)
                data = self.make_batch(values, sequence, transactional=True)
                await self.deliver([Batch(where, values, sequence, data)], self.name)
            if self.random.random() < 0.3:
                await self._commit_offsets(transaction)
            await self.end(transaction, commit=self.random.random() < 0.7)
        except Refused as error:
            # For instance, the transaction timed out: a producer begins again.
            self.world.note("producer begins again", producer=self.name, reason=str(error))
            self.give_up(transaction)
            await self.init(self.name, 20_000)

    def give_up(self, transaction: Transaction) -> None:
        """Note a transaction that the broker refused to continue."""
        if transaction.outcome is Outcome.OPEN:
            transaction.outcome = Outcome.ABORTED
        elif transaction.outcome is Outcome.COMMITTING:
            transaction.outcome = Outcome.UNKNOWN

    async def _commit_offsets(self, transaction: Transaction) -> None:
        where = self.choose()
        group = f"{self.name}-group"
        self.offset += 1
        await self.until_done(
            AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
            ),
            3,
            lambda answer: answer.error_code,
        )
        await self.until_done(
            TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=where[0],
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=where[1], committed_offset=self.offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            3,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        transaction.offsets[where] = self.offset

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.outcome = Outcome.COMMITTING if commit else Outcome.ABORTED
        await self.until_done(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            3,
            lambda answer: answer.error_code,
        )
        if commit:
            transaction.outcome = Outcome.COMMITTED
            self.committed.append(transaction)

    async def until_done(self, message: object, version: int, code_of: Any) -> None:
        """Repeat a request until it succeeds. Raises Refused for an error that cannot be retried."""
        while True:
            try:
                answer = await self.client.call(message, version)
                check(code_of(answer), f"{self.name} {type(message).__name__}")
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                await self.client.pause()
            else:
                return

    async def check_offsets(self) -> None:
        """Check that the group has the offsets of the committed transactions."""
        expected: dict[TopicPartition, int] = {}
        possible: dict[TopicPartition, set[int]] = {}
        for transaction in self.outcomes:
            for where, offset in transaction.offsets.items():
                if transaction.outcome is Outcome.COMMITTED:
                    expected[where] = offset
                    possible[where] = {offset}
                elif transaction.outcome is Outcome.UNKNOWN:
                    possible.setdefault(where, {-1}).add(offset)
        for where, offsets in possible.items():
            found = await committed_offset(self.client, f"{self.name}-group", where)
            if found not in offsets:
                raise Violation(f"{self.name}-group {where}: committed {found}, expected one of {sorted(offsets)}")


async def committed_offset(client: Client, group: str, where: TopicPartition) -> int:
    """Return a group's committed offset; -1 if there is none."""
    asked = OffsetFetchRequestTopics(name=where[0], partition_indexes=[where[1]])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])], require_stable=True)

    async def ask() -> int:
        answer = await client.call(request, 8)
        found = answer.groups[0]
        check(found.error_code, f"OffsetFetch {group}")
        partition = found.topics[0].partitions[0]
        check(partition.error_code, f"OffsetFetch {group} {where}")
        return int(partition.committed_offset)

    return await answered(client, ask)


async def answered(client: Client, ask: Callable[[], Awaitable[int]]) -> int:
    """Ask until there is an answer. Raises Violation after an error that is not for a while."""
    while True:
        try:
            return await ask()
        except Lost:
            await client.pause()
        except Refused as error:
            if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                raise Violation(str(error)) from error
            await client.pause()


class Committer:
    """A consumer without members: commits offsets that only grow, and reads them back."""

    def __init__(self, world: World, name: str, where: TopicPartition) -> None:
        self.client = Client(world, name)
        self.world = world
        self.name = name
        self.where = where
        self.sent = world.first_offset
        self.acked = 0

    async def run(self) -> None:
        while not self.world.faults_over.is_set():
            self.sent += self.client.random.randint(1, 10)
            try:
                answer = await self.client.call(
                    OffsetCommitRequest(
                        group_id=self.name,
                        topics=[
                            OffsetCommitRequestTopic(
                                name=self.where[0],
                                partitions=[
                                    OffsetCommitRequestPartition(
                                        partition_index=self.where[1], committed_offset=self.sent, committed_metadata=""
                                    )
                                ],
                            )
                        ],
                    ),
                    8,
                )
                check(answer.topics[0].partitions[0].error_code, f"OffsetCommit {self.name}")
                self.acked = self.sent
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise Violation(str(error)) from error
            await self.check()
            await asyncio.sleep(self.client.random.expovariate(1))

    async def check(self) -> None:
        """Check that no acked commit is lost."""
        found = await committed_offset(self.client, self.name, self.where)
        if not self.acked <= max(found, 0) <= self.sent:
            raise Violation(f"group {self.name}: committed offset {found}, acked {self.acked}, sent {self.sent}")
        self.acked = max(found, 0)


class Reader:
    """Reads a partition as a consumer does, and checks that it has no gap."""

    def __init__(self, world: World, history: History, name: str, where: TopicPartition, *, committed: bool) -> None:
        self.client = Client(world, name)
        self.name = name
        self.world = world
        self.history = history
        self.where = where
        self.committed = committed
        self.offset = 0
        self.start = 0
        self.high_watermark = self.stable = 0
        self.found: dict[int, str] = {}
        """Values read so far by offset."""

    async def run(self) -> None:
        """Read until the faults are over, at times from the beginning again."""
        random = self.client.random
        while not self.world.faults_over.is_set():
            await self.step()
            if random.random() < 0.02:
                self.offset = self.start
            await asyncio.sleep(random.uniform(0, 0.3))

    async def read_all(self) -> None:
        """Read from the beginning to the end that there is when it gets there."""
        await self._seek(EARLIEST)
        self.found.clear()
        while True:
            if await self.step():
                end = self.stable if self.committed else self.high_watermark
                if self.offset >= end:
                    return

    async def step(self) -> bool:
        """Fetch once. Returns False if it failed."""
        where, random = self.where, self.client.random
        request = FetchRequest(
            max_wait_ms=random.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=random.choice((1_000, 100_000, 1 << 20)),
            isolation_level=int(self.committed),
            topics=[
                FetchTopic(
                    topic=where[0],
                    partitions=[
                        FetchPartition(
                            partition=where[1],
                            fetch_offset=self.offset,
                            partition_max_bytes=random.choice((1, 10_000, 1 << 20)),
                        )
                    ],
                )
            ],
        )
        try:
            answer = await self.client.call(request, 12)
            check(answer.error_code, f"Fetch {where}")
            found = answer.responses[0].partitions[0]
            check(found.error_code, f"Fetch {where} offset {self.offset}")
        except Lost:
            await self.client.pause()
            return False
        except Refused as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                before = self.offset
                await self._seek(EARLIEST)
                if self.offset <= before:
                    raise Violation(f"{error}, and the log starts at {self.offset}") from error
            elif not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                raise Violation(str(error)) from error
            await self.client.pause()
            return False
        self.high_watermark, self.stable = found.high_watermark, found.last_stable_offset
        self.history.high_watermark(where, found.high_watermark)
        if found.log_start_offset > self.start:
            self.start = found.log_start_offset
            self.history.log_start(where, self.start)
        if found.log_start_offset > found.high_watermark:
            raise Violation(f"{where}: starts at {found.log_start_offset} and ends at {found.high_watermark}")
        self._take(found)
        return True

    def _take(self, found: Any) -> None:
        """Take the records of a response, as a consumer of its isolation level does."""
        aborts = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
        aborted: set[int] = set()
        records = found.records
        if records is None:
            return
        for header, batch in iterate_batches(records if isinstance(records, (bytes, memoryview)) else bytes(records)):
            if header.next_offset <= self.offset:
                continue
            check_crc(batch, header)
            self._check_next(header.base_offset)
            if self.committed and header.next_offset > self.stable:
                raise Violation(f"{self.where} offset {header.base_offset}: beyond the stable offset {self.stable}")
            if header.next_offset > self.high_watermark:
                raise Violation(f"{self.where} offset {header.base_offset}: beyond the end {self.high_watermark}")
            while aborts and aborts[0][0] <= header.last_offset:
                aborted.add(aborts.pop(0)[1])
            if header.is_control:
                for marker in decode_records(batch):  # none, if the topic was cleaned
                    if int.from_bytes((marker.key or b"")[2:4], "big") == ControlType.ABORT:
                        aborted.discard(header.producer_id)
            elif not (self.committed and header.is_transactional and header.producer_id in aborted):
                for offset, value in self.history.values_of(header, batch):
                    if offset >= self.offset:
                        self.found[offset] = value
                        self.history.read(self.where, offset, value, committed=self.committed)
            self.offset = header.next_offset

    def _check_next(self, base_offset: int) -> None:
        compacted = self.where[0] in self.history.compacted
        if base_offset > self.offset and not compacted and self.offset >= self.start:
            raise Violation(f"{self.where}: a gap from {self.offset} to {base_offset}")

    async def _seek(self, timestamp: int) -> None:
        self.offset = await list_offset(self.client, self.where, timestamp)
        if timestamp == EARLIEST:
            self.start = self.offset
            self.history.log_start(self.where, self.offset)


async def list_offset(client: Client, where: TopicPartition, timestamp: int) -> int:
    """Return the earliest or latest offset of a partition."""
    asked = ListOffsetsPartition(partition_index=where[1], timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=where[0], partitions=[asked])])

    async def ask() -> int:
        answer = await client.call(request, 5)
        found = answer.topics[0].partitions[0]
        check(found.error_code, f"ListOffsets {where}")
        return int(found.offset)

    return await answered(client, ask)


class Deleter:
    """Deletes the oldest records of a partition now and then."""

    def __init__(self, world: World, history: History, name: str, where: TopicPartition) -> None:
        self.client = Client(world, name)
        self.name = name
        self.world = world
        self.history = history
        self.where = where

    async def run(self) -> None:
        random: Random = self.client.random
        while not self.world.faults_over.is_set():
            await asyncio.sleep(random.expovariate(0.1))
            known = self.history.partitions[self.where]
            acked = max(known.acked, default=0)
            target = random.randint(known.start, max(known.start, acked - 50))
            if target <= known.start:
                continue
            known.asked_start = max(known.asked_start, target)
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=self.where[0],
                        partitions=[DeleteRecordsPartition(partition_index=self.where[1], offset=target)],
                    )
                ],
                timeout_ms=5_000,
            )
            with suppress(Lost):
                answer = await self.client.call(request, 2)
                found = answer.topics[0].partitions[0]
                if not found.error_code:
                    self.history.log_start(self.where, found.low_watermark)
