"""Clients beside librdkafka's: Java, kafka-python, aiokafka; one that times acknowledgements, one that watches ends."""

import asyncio
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.chaos.checker import Entry, Kind, Operation, Verdict
from tests.chaos.clients import (
    CALL_TIMEOUT_S,
    COPIES,
    COPY_GROUP,
    GROUP,
    IN_FLIGHT_MAX,
    PARTITIONS,
    POLL_MAX,
    TOPIC,
    Actor,
    Member,
    Recorder,
)
from tests.support.kafka_tools import TOOLS, kafka_tool
from tests.support.waiting import expect_before

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PlainPartition
    from kafka.errors import KafkaError as PlainError

WATCH_S = 0.1
ADMIN_TIMEOUT_S = 10
DELIVERY_TIMEOUT_MS = 300_000
JAVA_PRODUCER = {"retries": 2**31 - 1, "delivery.timeout.ms": DELIVERY_TIMEOUT_MS, "retry.backoff.max.ms": 200}
JAVA_CONSUMER = {"isolation.level": "read_committed", "heartbeat.interval.ms": 500}
JAVA_CLIENT = {"reconnect.backoff.max.ms": 300, "metadata.max.age.ms": 1_000}


class Probe(Actor):
    """An idempotent producer to each partition, which notes when what was acknowledged."""

    def __init__(self, recorder: Recorder, process: int, bootstrap: str) -> None:
        super().__init__(recorder, process, bootstrap)
        self.newest: list[tuple[float, float]] = [(0.0, 0.0)] * PARTITIONS
        """Times at which the newest acknowledged record of each partition was sent, and acknowledged."""

    def work(self) -> None:
        """Send to all partitions in turn."""
        producer = Producer(
            {
                **self.recorder.client,
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )
        number = 0
        while not self.stopping.is_set():
            for index in range(PARTITIONS):
                number += 1
                value = f"{self.process}:{number}"
                note = self._timed(index, self.note_delivery(value, (TOPIC, index)))
                producer.produce(TOPIC, value.encode(), partition=index, on_delivery=note)
            producer.poll(self.recorder.pace_s)
        if left := producer.flush(CALL_TIMEOUT_S):
            self.recorder.errors.append(f"process {self.process}: {left} records were not acked at the end")

    def _timed(
        self, index: int, note: Callable[[KafkaError | None, Message], None]
    ) -> Callable[[KafkaError | None, Message], None]:
        sent_s = time.monotonic()

        def timed(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.newest[index] = sent_s, time.monotonic()
            note(error, message)

        return timed

    def wait_acked(self, since_s: float, limit_s: float) -> list[float]:
        """Wait until each partition acked a record sent after `since_s`; return the seconds that each took."""
        found: dict[int, float] = {}
        end, acked = since_s + limit_s, self.recorder.acked
        while len(found) < PARTITIONS:
            for index, (sent_s, acked_s) in enumerate(list(self.newest)):
                if sent_s > since_s:
                    found.setdefault(index, acked_s - since_s)
            missing, others = set(range(PARTITIONS)) - found.keys(), self.recorder.acked - acked
            expect_before(end, f"no ack of {missing} in {limit_s} s, {others} of others; {self.recorder.errors[:3]}")
            time.sleep(0.005)
        return [found[index] for index in range(PARTITIONS)]


class Watcher(Actor):
    """Checks that latest offsets and committed offsets never go back, as one client sees them."""

    def work(self) -> None:
        """Ask again and again."""
        admin = AdminClient({**self.recorder.client, "bootstrap.servers": self.bootstrap})
        groups = {
            group: Consumer({**self.recorder.client, "bootstrap.servers": self.bootstrap, "group.id": group})
            for group in (GROUP, COPY_GROUP)
        }
        seen: dict[tuple[str, str, int], int] = {}
        while not self.stopping.wait(WATCH_S):
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
                for (topic, index), offset in latest(admin, level):
                    self._look(seen, (f"latest offset ({level.name})", topic, index), offset)
            for group, consumer in groups.items():
                for (topic, index), offset in committed(consumer):
                    self._look(seen, (f"committed offset of {group}", topic, index), offset)
        for consumer in groups.values():
            consumer.close()

    def _look(self, seen: dict[tuple[str, str, int], int], what: tuple[str, str, int], offset: int) -> None:
        if offset < seen.get(what, -1):
            self.recorder.errors.append(f"the {what} went back from {seen[what]} to {offset}")
        seen[what] = offset


def latest(admin: AdminClient, level: IsolationLevel) -> Iterator[tuple[tuple[str, int], int]]:
    """Return the latest offsets that are answered."""
    spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, index): spec for topic in (TOPIC, COPIES) for index in range(PARTITIONS)}
    asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=ADMIN_TIMEOUT_S)
    for place, answer in asked.items():
        with suppress(KafkaException):
            offset = answer.result(2 * ADMIN_TIMEOUT_S).offset
            if offset != OFFSET_INVALID:  # the leader has not answered
                yield (place.topic, place.partition), offset


def committed(consumer: Consumer) -> Iterator[tuple[tuple[str, int], int]]:
    """Return the committed offsets that are answered."""
    with suppress(KafkaException):
        for place in consumer.committed([TopicPartition(TOPIC, index) for index in range(PARTITIONS)], ADMIN_TIMEOUT_S):
            if place.error is None:
                yield (place.topic, place.partition), max(place.offset, -1)


class PlainSender(Actor):
    """An idempotent producer of kafka-python."""

    def work(self) -> None:
        """Send one record after another; a value whose delivery fails is of unknown outcome."""
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            reconnect_backoff_max_ms=300,
            metadata_max_age_ms=1_000,
        )
        number = pending = 0

        def note(where: tuple[str, int], value: str, sent: int) -> Callable[[Any], None]:
            def noted(answer: Any) -> None:
                nonlocal pending
                pending -= 1
                failed = isinstance(answer, BaseException)
                entry = Entry(where, -1 if failed else answer.offset, value)
                verdict = Verdict.UNKNOWN if failed else Verdict.OK
                self.recorder.add(Operation(self.process, Kind.SEND, [entry], verdict, number=sent))

            return noted

        while not self.stopping.wait(self.recorder.pace_s):
            if pending > IN_FLIGHT_MAX:
                continue
            number += 1
            pending += 1
            where, value = (TOPIC, self.random.randrange(PARTITIONS)), f"{self.process}:{number}"
            noted = note(where, value, number)
            producer.send(TOPIC, value.encode(), partition=where[1]).add_both(noted)
        with suppress(PlainError):
            producer.flush(CALL_TIMEOUT_S)
        producer.close(CALL_TIMEOUT_S)


class PlainPoller(Actor):
    """A consumer of kafka-python that reads all partitions from their beginnings."""

    def work(self) -> None:
        """Poll without pause."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="none",
            client_rack=self.recorder.rack_of(self.process),
            reconnect_backoff_max_ms=300,
            metadata_max_age_ms=1_000,
        )
        places = [PlainPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while not self.stopping.is_set():
            found = consumer.poll(timeout_ms=200, max_records=POLL_MAX)
            record_poll(self.recorder, self.process, [each for records in found.values() for each in records])
        consumer.close()


def record_poll(recorder: Recorder, process: int, records: Iterable[Any]) -> None:
    """Record what a client of Python has polled."""
    entries = [Entry((each.topic, each.partition), each.offset, each.value.decode()) for each in records]
    if entries:
        recorder.add(Operation(process, Kind.POLL, entries))


class AioSender(Actor):
    """An idempotent producer of aiokafka."""

    def work(self) -> None:
        """Send on a loop of its own."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            enable_idempotence=True,
            request_timeout_ms=20_000,
            metadata_max_age_ms=1_000,
        ) as producer:
            number = 0
            while not self.stopping.is_set():
                number += 1
                where, value = (TOPIC, self.random.randrange(PARTITIONS)), f"{self.process}:{number}"
                verdict, offset = Verdict.UNKNOWN, -1
                with suppress(AioError):
                    offset = (await producer.send_and_wait(TOPIC, value.encode(), partition=where[1])).offset
                    verdict = Verdict.OK
                self.recorder.add(Operation(self.process, Kind.SEND, [Entry(where, offset, value)], verdict))
                await asyncio.sleep(self.recorder.pace_s)


class AioMember(Member):
    """A consumer of aiokafka that commits its offsets."""

    group = "chaos-aiokafka"

    def work(self) -> None:
        """Poll and commit on a loop of its own."""
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        moved = Moved(self.recorder, self.process)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            client_rack=self.recorder.rack_of(self.process),
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            session_timeout_ms=self.recorder.session_ms,
            heartbeat_interval_ms=500,
            request_timeout_ms=15_000,
            metadata_max_age_ms=1_000,
        )
        consumer.subscribe([TOPIC], listener=moved)
        await consumer.start()
        try:
            while not self.stopping.is_set():
                found = await consumer.getmany(timeout_ms=200, max_records=POLL_MAX)
                if found:
                    record_poll(self.recorder, self.process, [each for records in found.values() for each in records])
                    with suppress(AioError):
                        await consumer.commit()
        finally:
            await stop_aio(consumer)


async def stop_aio(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer of aiokafka, whose `stop` gives up halfway if a fetch waits to be tried again."""
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        await consumer._client.close()  # noqa: SLF001 - what `stop` would have done next


class Moved(ConsumerRebalanceListener):  # type: ignore[misc]
    """Records the changes of a consumer's assignment."""

    def __init__(self, recorder: Recorder, process: int) -> None:
        self._recorder = recorder
        self._process = process

    def on_partitions_revoked(self, revoked: object) -> None:
        """Record that the next poll may begin anywhere."""
        self._recorder.add(Operation(self._process, Kind.ASSIGN))

    def on_partitions_assigned(self, assigned: object) -> None:
        """Record that the next poll may begin anywhere."""
        self._recorder.add(Operation(self._process, Kind.ASSIGN))


@contextmanager
def java_tool(
    folder: Path, name: str, bootstrap: str, settings: dict[str, object], *arguments: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run a tool of Apache Kafka that prints a JSON object per line; SIGTERM is what ends it in order."""
    config = folder / f"{name}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in {**JAVA_CLIENT, **settings}.items()))
    command = [*kafka_tool(f"{TOOLS}.{name}"), "--bootstrap-server", bootstrap]
    process = subprocess.Popen(
        [*command, "--topic", TOPIC, "--command-config", str(config), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class JavaActor(Actor):
    """One of Apache Kafka's verifiable clients."""

    tool: str
    settings: dict[str, object]

    def __init__(self, recorder: Recorder, process: int, bootstrap: str, folder: Path) -> None:
        super().__init__(recorder, process, bootstrap)
        self._folder = folder

    def arguments(self) -> list[str]:
        """Further arguments of the tool."""
        raise NotImplementedError

    def hear(self, event: dict[str, Any]) -> None:
        """Record what the client says."""
        raise NotImplementedError

    def work(self) -> None:
        """Read the tool's output until it ends."""
        settings = {**self.settings, "client.rack": self.recorder.rack_of(self.process)}
        with java_tool(self._folder, self.tool, self.bootstrap, settings, *self.arguments()) as process:
            assert process.stdout is not None
            with ThreadPoolExecutor(1) as other:
                ending = other.submit(self._end_when_told, process)
                for line in process.stdout:
                    if line.startswith("{"):
                        self.hear(json.loads(line))
                assert self.stopping.is_set(), "the client ended by itself"
                ending.result()

    def _end_when_told(self, process: "subprocess.Popen[str]") -> None:
        while not self.stopping.wait(0.2) and process.poll() is None:
            pass
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CALL_TIMEOUT_S)
        process.kill()


class JavaSender(JavaActor):
    """Java's producer: idempotent, as by default, with retries."""

    tool = "VerifiableProducer"
    settings = JAVA_PRODUCER  # type: ignore[assignment]

    def arguments(self) -> list[str]:
        """A prefix that makes values unique, and a rate."""
        rate = str(round(1 / self.recorder.pace_s))
        return ["--value-prefix", str(self.process), "--throughput", rate, "--acks", "-1"]

    def hear(self, event: dict[str, Any]) -> None:
        """Record an acknowledgement."""
        if event["name"] == "producer_send_success":
            entry = Entry((event["topic"], event["partition"]), event["offset"], event["value"])
            number = int(event["value"].partition(".")[2])  # the tool counts what it sends
            self.recorder.add(Operation(self.process, Kind.SEND, [entry], number=number))


class JavaMember(JavaActor, Member):
    """Java's consumer, in a group; it commits what it has polled."""

    group = "chaos-java"
    tool = "VerifiableConsumer"
    settings = JAVA_CONSUMER

    def arguments(self) -> list[str]:
        """Its group."""
        return ["--group-id", self.group, "--verbose", "--session-timeout", str(self.recorder.session_ms)]

    def hear(self, event: dict[str, Any]) -> None:
        """Record a record, or a change of the assignment."""
        if event["name"] == "record_data":
            entry = Entry((event["topic"], event["partition"]), event["offset"], event["value"])
            self.recorder.add(Operation(self.process, Kind.POLL, [entry]))
        elif event["name"] in {"partitions_revoked", "partitions_assigned"}:
            self.recorder.add(Operation(self.process, Kind.ASSIGN))
