"""Real clients (librdkafka) that record what they saw, each in a thread of its own."""

import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.checker import Entry, Kind, Operation, Verdict

TOPIC = "chaos"
COPIES = "copies"
GROUP = "chaos-group"
COPY_GROUP = "chaos-copy"
NO_GROUP = "unused"
"""Group of consumers that are assigned their partitions."""
PARTITIONS = 6
QUIET: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 300,
    # librdkafka's default is to bootstrap again when no broker answers; that can lose the transaction coordinator.
    "metadata.recovery.strategy": "none",
}
CALL_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 300.0
IN_FLIGHT_MAX = 100
POLL_MAX = 100
FATAL = (KafkaException, SystemError)
"""Exceptions of a producer's calls that are beyond repair; SystemError is a failure of confluent-kafka's own code."""
SESSION_MS = 2_000
"""Session timeout of members of groups."""
PACE_S = 0.004
"""Pause of a producer after each record: the histories of long runs have to fit in memory."""


class Recorder:
    """The history, and the outcomes of transactions, of all clients."""

    def __init__(
        self, pace_s: float = PACE_S, session_ms: int = SESSION_MS, racks: Sequence[str] = (), **client: Any
    ) -> None:
        self.pace_s, self.session_ms = pace_s, session_ms
        self.racks = racks
        """Racks of consumers: those of the nodes."""
        self.client: dict[str, Any] = {**QUIET, **client}
        """Settings of all clients of librdkafka."""
        self.history: list[Operation] = []
        self.outcomes: dict[str, Verdict] = {}
        self.errors: list[str] = []
        """Failures that a client should not have met."""
        self.acked = 0
        self.active: set[int] = set()
        """Processes that have sent or polled."""
        self.polled: Counter[int] = Counter()
        """Records by process."""
        self.copied = 0
        self.lives: Counter[str] = Counter()
        """Errors that were fatal to a transactional producer, which began again with a new one."""
        self.highest: dict[tuple[str, int], int] = defaultdict(int)
        """Offset after the last acked record, by partition."""
        self._lock = threading.Lock()

    def add(self, operation: Operation) -> None:
        """Append an operation of any thread."""
        with self._lock:
            self.history.append(operation)
            if operation.kind is not Kind.ASSIGN:
                self.active.add(operation.process)
            if operation.kind is Kind.POLL:
                self.polled[operation.process] += len(operation.entries)
            elif operation.kind is Kind.SEND and operation.verdict is Verdict.OK:
                self.acked += len(operation.entries)
                for entry in operation.entries:
                    self.highest[entry.where] = max(self.highest[entry.where], entry.offset + 1)

    def rack_of(self, process: int) -> str:
        """Return the rack of a consumer; empty if the nodes have none."""
        return self.racks[process % len(self.racks)] if self.racks else ""

    def count(self, verdict: Verdict) -> int:
        """Number of transactions with that outcome."""
        return sum(each is verdict for each in list(self.outcomes.values()))


class Actor(threading.Thread):
    """A client in a thread; it works until it is told to stop."""

    def __init__(self, recorder: Recorder, process: int, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.recorder = recorder
        self.process = process
        self.bootstrap = bootstrap
        self.random = Random(process)
        self.stopping = threading.Event()
        self._sends = 0

    def run(self) -> None:
        """Work, and note what it fails with."""
        try:
            self.work()
        except Exception:  # noqa: BLE001 - the test reports it
            self.recorder.errors.append(f"process {self.process}: {traceback.format_exc()}")

    def work(self) -> None:
        """Do what this client does until it is told to stop."""
        raise NotImplementedError

    def finish(self) -> None:
        """Stop, and wait until everything that was begun has ended."""
        self.stopping.set()
        self.join(3 * CALL_TIMEOUT_S)
        if self.is_alive():
            stack = traceback.format_stack(sys._current_frames()[self.ident or 0])  # noqa: SLF001 - it has no other name
            self.recorder.errors.append(f"process {self.process} did not end: {''.join(stack)}")

    def note_delivery(
        self, value: str, where: tuple[str, int], transaction: str | None = None
    ) -> Callable[[KafkaError | None, Message], None]:
        """Return the callback that records the delivery of what is sent next."""
        self._sends += 1
        number = self._sends

        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None or offset < 0:
                unknown = [Entry(where, -1, value)]
                self.recorder.add(Operation(self.process, Kind.SEND, unknown, Verdict.UNKNOWN, transaction, number))
                # Without an error it was acked: librdkafka concludes that from the ack of a later batch.
                if error is not None and transaction is None:
                    self.recorder.errors.append(f"process {self.process}: {value} was refused: {error}")
            else:
                sent = [Entry(where, offset, value)]
                self.recorder.add(Operation(self.process, Kind.SEND, sent, Verdict.OK, transaction, number))

        return note


class Sender(Actor):
    """An idempotent producer."""

    def work(self) -> None:
        """Send one record after another."""
        producer = Producer(
            {
                **self.recorder.client,
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": 300_000,
            }
        )
        number = 0
        while not self.stopping.is_set():
            number += 1
            where = TOPIC, self.random.randrange(PARTITIONS)
            value = f"{self.process}:{number}"
            producer.produce(TOPIC, value.encode(), partition=where[1], on_delivery=self.note_delivery(value, where))
            producer.poll(self.recorder.pace_s)
            while len(producer) > IN_FLIGHT_MAX and not self.stopping.is_set():
                producer.poll(0.05)
        left = producer.flush(CALL_TIMEOUT_S)
        if left:
            self.recorder.errors.append(f"process {self.process}: {left} records were not acked at the end")


class TransactionalSender(Actor):
    """A producer that commits or aborts transactions of a few records in several partitions."""

    def work(self) -> None:
        """Run one transaction after another, with a new producer after each error that is fatal to one."""
        number = 0
        while not self.stopping.is_set():
            producer = new_transactional(self.recorder, self.bootstrap, f"chaos-{self.process}")
            try:
                retry(producer.init_transactions)
                while not self.stopping.is_set():
                    number += 1
                    self._transaction(producer, f"{self.process}#{number}")
            except FATAL as error:  # fenced, or beyond repair: begin again, as an application does
                self.recorder.lives[str(error.args[0])] += 1

    def _transaction(self, producer: Producer, name: str) -> None:
        producer.begin_transaction()
        self.recorder.outcomes[name] = Verdict.FAILED
        for index in range(self.random.randint(1, 6)):
            value = f"{name}.{index}"
            where = TOPIC, self.random.randrange(PARTITIONS)
            note = self.note_delivery(value, where, name)
            producer.produce(TOPIC, value.encode(), partition=where[1], on_delivery=note)
        producer.poll(self.recorder.pace_s)
        if self.random.random() < 0.3:
            if self.random.random() < 0.7:
                producer.flush(1)  # an abort drops what was not sent yet
            retry(producer.abort_transaction)
        else:
            self.recorder.outcomes[name] = commit(producer, self.recorder.outcomes, name)


def new_transactional(recorder: Recorder, bootstrap: str, name: str) -> Producer:
    """Return a transactional producer that is not initialized."""
    return Producer(
        {
            **recorder.client,
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 1,
        }
    )


def commit(producer: Producer, outcomes: dict[str, Verdict], name: str) -> Verdict:
    """Commit, or abort what can only be aborted; returns the outcome. Raises KafkaException if it stays unknown."""
    outcomes[name] = Verdict.UNKNOWN
    try:
        retry(producer.commit_transaction)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        retry(producer.abort_transaction)
        return Verdict.FAILED
    return Verdict.OK


def retry(call: Callable[[float], Any]) -> None:
    """Repeat a call of the transactional API while its error says that it may be repeated."""
    end = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            call(CALL_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise
        else:
            return


class Reading:
    """A READ_COMMITTED consumer that records its polls and the changes of its assignment in their order."""

    def __init__(self, recorder: Recorder, process: int, bootstrap: str, group: str, rack: str) -> None:
        self.recorder = recorder
        self.process = process
        self.consumer = Consumer(
            {
                **recorder.client,
                "bootstrap.servers": bootstrap,
                "client.id": f"chaos-{process}",
                "client.rack": rack,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error" if group == NO_GROUP else "earliest",
                "session.timeout.ms": recorder.session_ms,
                "heartbeat.interval.ms": 300,
                # Answers with several records: one for each record and consumer is half of the work of a cluster.
                "fetch.min.bytes": 4096,
                "fetch.wait.max.ms": 100,
            }
        )
        self.ended: set[int] = set()
        """Partitions whose end was reached since they were assigned."""
        self._entries: list[Entry] = []
        self._transaction: str | None = None

    def assign(self, *places: TopicPartition) -> None:
        """Read these partitions from these offsets on."""
        self.consumer.assign(list(places))
        self.moved()

    def subscribe(self, topic: str) -> None:
        """Join the group."""

        def changed(_consumer: Consumer, _partitions: list[TopicPartition]) -> None:
            self.moved()

        self.moved()
        self.consumer.subscribe([topic], on_assign=changed, on_revoke=changed, on_lost=changed)

    def moved(self) -> None:
        """Record that the next poll may begin anywhere."""
        self._flush()
        self.ended.clear()
        self.recorder.add(Operation(self.process, Kind.ASSIGN))

    def poll(self, *, count: int = POLL_MAX, timeout_s: float = 0.2, transaction: str | None = None) -> list[Entry]:
        """Return up to so many records; waits for the first one only."""
        self._transaction = transaction
        polled: list[Entry] = []
        while len(polled) < count:
            message = self.consumer.poll(0 if polled else timeout_s)
            if message is None:
                break
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and partition is not None:  # noqa: SLF001 - its name
                    self.ended.add(partition)
                elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
                    self.recorder.errors.append(f"process {self.process}: {error}")
                continue
            topic, value = message.topic(), message.value()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.ended.discard(partition)
            entry = Entry((topic, partition), offset, value.decode())
            polled.append(entry)
            self._entries.append(entry)
        self._flush()
        return polled

    def _flush(self) -> None:
        if self._entries:
            self.recorder.add(Operation(self.process, Kind.POLL, self._entries, transaction=self._transaction))
            self._entries = []


@contextmanager
def reading(recorder: Recorder, process: int, bootstrap: str, group: str, rack: str | None = None) -> Iterator[Reading]:
    """Open a consumer, by default in the rack of its process; it leaves its group at the end."""
    consumer = Reading(recorder, process, bootstrap, group, recorder.rack_of(process) if rack is None else rack)
    try:
        yield consumer
    finally:
        consumer.consumer.close()


class Poller(Actor):
    """A consumer of all partitions that begins again at times, somewhere in what is there."""

    def work(self) -> None:
        """Poll without pause."""
        with reading(self.recorder, self.process, self.bootstrap, NO_GROUP) as consumer:
            self._assign(consumer)
            while not self.stopping.is_set():
                consumer.poll()
                if self.random.random() < 0.01:
                    self._assign(consumer)

    def _assign(self, consumer: Reading) -> None:
        ends = [self.recorder.highest[TOPIC, index] for index in range(PARTITIONS)]
        consumer.assign(
            *(TopicPartition(TOPIC, index, self.random.randrange(end + 1)) for index, end in enumerate(ends))
        )


class Member(Actor):
    """A consumer of the topic that is a member of a group."""

    group = GROUP


class GroupActor(Member):
    """A member of a group. One with `to_the_end` stops by itself when it has reached the end of all partitions."""

    def __init__(
        self, recorder: Recorder, process: int, bootstrap: str, *, to_the_end: bool = False, group: str | None = None
    ) -> None:
        super().__init__(recorder, process, bootstrap)
        self.group = group or self.group
        self._to_the_end = to_the_end
        self._deadline = time.monotonic() + READ_TIMEOUT_S

    def goes_on(self, consumer: Reading) -> bool:
        """Return False when it is told to stop, or has done its work."""
        if not self._to_the_end:
            return not self.stopping.is_set()
        if time.monotonic() > self._deadline:
            self.recorder.errors.append(f"process {self.process}: only the ends of {consumer.ended} were reached")
            return False
        return consumer.ended != set(range(PARTITIONS))


class GroupMember(GroupActor):
    """A consumer that commits its offsets, and leaves and joins again at times."""

    def work(self) -> None:
        """Poll and commit."""
        again = True
        while again:
            with reading(self.recorder, self.process, self.bootstrap, self.group) as consumer:
                consumer.subscribe(TOPIC)
                while (again := self.goes_on(consumer)) and (self._to_the_end or self.random.random() >= 0.002):
                    if consumer.poll():
                        try:
                            consumer.consumer.commit(asynchronous=False)
                        except KafkaException:
                            continue  # the next commit includes this one; a new owner polls the same again


class Copier(GroupActor):
    """Copies records to another topic, each exactly once, with their offsets in the same transaction."""

    group = COPY_GROUP

    def work(self) -> None:
        """Poll, copy and commit, with new clients after each error that is fatal to a producer."""
        again, lives = True, 0
        while again:
            lives += 1
            producer = new_transactional(self.recorder, self.bootstrap, f"copy-{self.process}")
            with reading(self.recorder, self.process, self.bootstrap, self.group) as consumer:
                try:
                    retry(producer.init_transactions)
                    consumer.subscribe(TOPIC)
                    number = 0
                    while again := self.goes_on(consumer):
                        number += 1
                        if not self._copy(producer, consumer, f"{self.process}~{lives}.{number}"):
                            break
                except FATAL as error:
                    self.recorder.lives[str(error.args[0])] += 1
                    again = self.goes_on(consumer)

    def _copy(self, producer: Producer, consumer: Reading, name: str) -> bool:
        """Copy what one poll brings; returns False if that was aborted, and the consumer is ahead of its group."""
        entries = consumer.poll(transaction=name)
        if not entries:
            return True
        self.recorder.outcomes[name] = Verdict.FAILED
        producer.begin_transaction()
        for entry in entries:
            value, where = copy_of(entry.value, name), (COPIES, entry.where[1])
            note = self.note_delivery(value, where, name)
            producer.produce(COPIES, value.encode(), partition=where[1], on_delivery=note)
        ends = {entry.where: entry.offset + 1 for entry in entries}
        places = [TopicPartition(*where, end) for where, end in ends.items()]
        try:
            group = consumer.consumer.consumer_group_metadata()
            retry(lambda timeout: producer.send_offsets_to_transaction(places, group, timeout))
            outcome = commit(producer, self.recorder.outcomes, name)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            retry(producer.abort_transaction)
            outcome = Verdict.FAILED
        self.recorder.outcomes[name] = outcome
        if outcome is not Verdict.OK:
            return False
        self.recorder.copied += len(entries)
        return True


def copy_of(value: str, transaction: str) -> str:
    """Return the value of a record's copy: another one for each attempt to copy it."""
    return f"{value} by {transaction}"


def original_of(copy: str) -> str:
    """Return the value that was copied."""
    return copy.partition(" by ")[0]


def read_to_the_end(recorder: Recorder, process: int, bootstrap: str, topic: str, rack: str) -> None:
    """Poll every partition from its beginning to its end, as one more process."""
    with reading(recorder, process, bootstrap, NO_GROUP, rack) as consumer:
        places = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
        consumer.assign(*places)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while consumer.ended != set(range(PARTITIONS)):
            consumer.poll(count=2000)
            if time.monotonic() > deadline:
                left = [each for each in consumer.consumer.position(places) if each.partition not in consumer.ended]
                recorder.errors.append(
                    f"process {process} in rack {rack!r}: the end was not reached of "
                    + ", ".join(f"{topic}-{each.partition}, read up to {each.offset}" for each in left)
                )
                break
