"""Share groups (KIP-932), side by side with Apache Kafka, driven by the same client.

    python -m benchmarks.share_groups [--quick] [--only STEP ...] [--rounds N] [--json FILE]

Both brokers run on this machine with their defaults; the node's acknowledgements are on its log device when they are
answered, Apache Kafka's in the page cache. Members are those of `benchmarks.lab.share_members`, in this process. The
order of the brokers changes each round, and ratios are the node over Apache Kafka, of pairs. CPU is the broker's.

Steps (`--only` takes their beginnings):

- `consume.1`, `.10`, `.100`: a group of so many members reads a topic of 10 partitions, records of 1 KiB in batches of
  16 KiB, from memory; fetches carry the acknowledgements
- `queue`: 10 members get 1,000 records/s, and acknowledge what they get with a request of its own
- `lock`, `close`: records of a member that does not acknowledge, or whose connections close, until another has them;
  `lock` begins when the lock runs out
- `members`: a group of 1,000 members joins a topic of 100 partitions, then each sends a heartbeat a second
- `in_flight`: 10,000 records of one partition in flight; every second one is acknowledged alone, then the others
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from benchmarks.lab.load import Load
from benchmarks.lab.processes import DELETE_SOON, Anabranch, ApacheKafka, Broker, MissingError
from benchmarks.lab.share_members import Acquired, Channel, Member, configure, consume, members_of
from benchmarks.support import CONSOLE, Report, middle, p99, parser

KIB = 1 << 10
TOPIC = "records"
PARTITIONS = 10
BATCH_BYTES = 16 * KIB
LOCK_MS = 1_000
QUEUE_MEMBERS = 10
QUEUE_RECORDS_PER_S = 1_000
QUEUE_SEND_S = 0.01
MANY_MEMBERS = 1_000
MANY_PARTITIONS = 100
BEAT_S = 1.0
IN_FLIGHT = 10_000
IN_FLIGHT_POLL = 500
NODE_FLAGS = (
    *("--group-share-members-max", str(MANY_MEMBERS)),
    *("--group-share-record-lock-duration-min-ms", str(LOCK_MS)),
    *("--group-share-partition-record-locks-most", str(IN_FLIGHT)),
)
KAFKA_PROPERTIES = {
    **DELETE_SOON,
    "group.share.max.size": str(MANY_MEMBERS),
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "group.share.max.partition.max.record.locks": str(IN_FLIGHT),
}
STEP_TIMEOUT_S = 60.0
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Sizes:
    """Amount of work."""

    rounds: int
    records: int
    queue_s: float
    takeovers: int
    beats: int
    """Heartbeats of each of the many members."""


QUICK = Sizes(rounds=1, records=32_000, queue_s=3, takeovers=3, beats=3)
FULL = Sizes(rounds=5, records=128_000, queue_s=8, takeovers=8, beats=8)


class Lab:
    """One broker, and what is measured on it."""

    def __init__(self, broker: Broker, sizes: Sizes) -> None:
        self.broker = broker
        self.sizes = sizes
        self._groups = 0
        self._topic_ids: dict[str, bytes] = {}

    def group(self, **configs: str) -> str:
        """Return the name of a new group that begins with the first records."""
        self._groups += 1
        name = f"group-{self._groups}"
        with self.broker.connect() as connection:
            configure(connection, name, **configs)
        return name

    def topic(self, name: str, partitions: int) -> bytes:
        """Create a topic unless it exists. Returns its id."""
        if name not in self._topic_ids:
            self.broker.create_topic(name, partitions)
            with self.broker.connect() as connection:
                (found,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)])).topics
            self._topic_ids[name] = found.topic_id
        return self._topic_ids[name]

    def fill(self) -> None:
        """Write the records that groups consume."""
        Load(
            port=self.broker.port,
            topic_id=self.topic(TOPIC, PARTITIONS).hex(),
            partitions=PARTITIONS,
            connections=4,
            in_flight=4,
            record_bytes=KIB,
            batch_bytes=BATCH_BYTES,
            seconds=60,
            bytes_max=self.sizes.records * KIB,
        ).run()

    def produce(self, topic: str, count: int, per_batch: int) -> None:
        """Write small records to partition 0."""
        batch = batch_of(per_batch)
        with self.broker.connect() as connection:
            for _ in range(count // per_batch):
                answer = connection.call(produce_request(topic, self._topic_ids[topic], batch))
                assert not answer.responses[0].partition_responses[0].error_code, answer

    # steps

    async def consume(self, members: int) -> Figures:
        """Consume the whole topic by a new group."""
        group, topic_id = self.group(), self.topic(TOPIC, PARTITIONS)
        async with members_of(self.broker.port, group, TOPIC, topic_id, members) as joined:
            cpu_s = self.broker.cpu_s()
            seconds = await consume(joined, self.sizes.records)
            cpu_s = self.broker.cpu_s() - cpu_s
        return {"records/s": self.sizes.records / seconds, "CPU ms per 1,000": cpu_s * 1e6 / self.sizes.records}

    async def queue(self) -> Figures:
        """Deliver records as they come, each acknowledged by a request of its own."""
        group, name = self.group(), f"queue-{self._groups}"
        topic_id = self.topic(name, 1)
        acknowledged_ms: list[float] = []
        left = int(self.sizes.queue_s * QUEUE_RECORDS_PER_S)
        records = left

        async def run(member: Member) -> None:
            nonlocal left
            while True:
                found = await member.fetch()
                began = time.perf_counter()
                if found:
                    await member.acknowledge(found)
                    count = sum(each.records for each in found)
                    acknowledged_ms.extend([(time.perf_counter() - began) * 1e3] * count)
                    left -= count
                    if left <= 0:
                        over.set()

        over = asyncio.Event()
        per_batch = int(QUEUE_RECORDS_PER_S * QUEUE_SEND_S)
        async with members_of(self.broker.port, group, name, topic_id, QUEUE_MEMBERS) as joined:
            channel = await Channel.open(self.broker.port)
            cpu_s, began = self.broker.cpu_s(), time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(run(member)) for member in joined]
                for number in range(records // per_batch):
                    await asyncio.sleep(began + number * QUEUE_SEND_S - time.perf_counter())
                    answer = await channel.call(produce_request(name, topic_id, batch_of(per_batch)))
                    assert not answer.responses[0].partition_responses[0].error_code, answer
                await over.wait()
                for task in running:
                    task.cancel()
            channel.close()
            cpu_s = self.broker.cpu_s() - cpu_s
        return {
            "acknowledged p50 ms": middle(acknowledged_ms),
            "acknowledged p99 ms": p99(acknowledged_ms),
            "CPU ms per 1,000, with produce": cpu_s * 1e6 / records,
        }

    async def take_over(self, *, closes: bool) -> Figures:
        """Let a member have records until its lock runs out, or its connections close."""
        group, name = self.group(share_record_lock_duration_ms=str(LOCK_MS)), f"takeover-{self._groups}"
        topic_id = self.topic(name, 1)
        found_s: list[float] = []
        async with members_of(self.broker.port, group, name, topic_id, 1) as (heir,):
            for _ in range(self.sizes.takeovers):
                first = await Member.connect(self.broker.port, group, name, topic_id)
                await first.join()
                await asyncio.to_thread(self.produce, name, 10, 10)
                acquired = await first.fetch()
                began = time.perf_counter()
                assert sum(each.records for each in acquired) == 10, acquired
                waiting = asyncio.create_task(_poll(heir))
                if closes:
                    await asyncio.sleep(0.1)
                    began = time.perf_counter()
                    first.close()
                found = await waiting
                found_s.append(time.perf_counter() - began - (0 if closes else LOCK_MS / 1000))
                assert found == acquired, (found, acquired)
                await heir.acknowledge(found)
                first.close()
        return {"ms": middle(found_s) * 1e3, "longest ms": max(found_s) * 1e3}

    async def members(self) -> Figures:
        """Join by many members, then heartbeats."""
        group, name = self.group(), "many"
        topic_id = self.topic(name, MANY_PARTITIONS)
        cpu_s = self.broker.cpu_s()
        async with members_of(self.broker.port, group, name, topic_id, MANY_MEMBERS) as joined:
            joined_cpu_s = self.broker.cpu_s() - cpu_s
            shares = [sum(index in member.partitions for member in joined) for index in range(MANY_PARTITIONS)]
            assert min(shares) > 0, "each partition has members"
            beats_ms: list[float] = []

            async def beat(member: Member, begin_s: float) -> None:
                for number in range(self.sizes.beats):
                    await asyncio.sleep(begin_s + number * BEAT_S - time.perf_counter())
                    sent = time.perf_counter()
                    await member.beat()
                    beats_ms.append((time.perf_counter() - sent) * 1e3)

            await asyncio.sleep(BEAT_S)  # members hear of the last changes
            cpu_s, began = self.broker.cpu_s(), time.perf_counter()
            await asyncio.gather(
                *(beat(member, began + at * BEAT_S / MANY_MEMBERS) for at, member in enumerate(joined))
            )
            cpu_s = self.broker.cpu_s() - cpu_s
        return {
            "joined, CPU s": joined_cpu_s,
            "heartbeat, CPU us": cpu_s * 1e6 / len(beats_ms),
            "heartbeat p99 ms": p99(beats_ms),
        }

    async def in_flight(self) -> Figures:
        """Acquire many records of one partition, and acknowledge them one by one."""
        group, name = self.group(share_partition_max_record_locks=str(IN_FLIGHT)), f"in-flight-{self._groups}"
        topic_id = self.topic(name, 1)
        self.produce(name, IN_FLIGHT, 100)
        async with members_of(self.broker.port, group, name, topic_id, 1) as (member,):
            cpu_s, began = self.broker.cpu_s(), time.perf_counter()
            acquired: list[Acquired] = []
            while sum(each.records for each in acquired) < IN_FLIGHT:
                acquired += await member.fetch(records_max=IN_FLIGHT_POLL)
            acquired_s, acquired_cpu_s = time.perf_counter() - began, self.broker.cpu_s() - cpu_s
            singles = [
                Acquired(0, offset, offset)
                for each in acquired
                for offset in range(each.first_offset, each.last_offset + 1)
            ]
            cpu_s, began = self.broker.cpu_s(), time.perf_counter()
            for half in (singles[::2], singles[1::2]):
                for at in range(0, len(half), IN_FLIGHT_POLL):
                    await member.acknowledge(half[at : at + IN_FLIGHT_POLL])
            seconds, cpu_s = time.perf_counter() - began, self.broker.cpu_s() - cpu_s
        return {
            "acquired s": acquired_s,
            "acquired, CPU ms per 1,000": acquired_cpu_s * 1e6 / IN_FLIGHT,
            "acknowledged s": seconds,
            "acknowledged, CPU ms per 1,000": cpu_s * 1e6 / IN_FLIGHT,
        }


def batch_of(count: int) -> bytes:
    """Return a batch of small records with the current time."""
    return bytes(build_batch([Record(None, os.urandom(100), time.time_ns() // 1_000_000)] * count))


def produce_request(topic: str, topic_id: bytes, batch: bytes) -> ProduceRequest:
    """Return a request that writes a batch to partition 0."""
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


STEPS: Mapping[str, Callable[[Lab], Awaitable[Figures]]] = {
    **{f"consume.{members}": partial(Lab.consume, members=members) for members in (1, 10, 100)},
    "queue": Lab.queue,
    "lock": partial(Lab.take_over, closes=False),
    "close": partial(Lab.take_over, closes=True),
    "members": Lab.members,
    "in_flight": Lab.in_flight,
}


def measure(labs: Sequence[Lab], steps: Sequence[str], rounds: int) -> Mapping[str, Mapping[str, Mapping[int, float]]]:
    """Run the steps on all brokers in turn. Returns values by figure, broker and round."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for lab in labs:
        if any(step.startswith("consume") for step in steps):
            lab.fill()
    for step in steps:
        for round_ in range(-1, rounds):  # the first one warms up
            for lab in labs if round_ % 2 else reversed(labs):
                os.sync()
                try:
                    figures = uvloop.run(_figures(STEPS[step](lab)))
                except TimeoutError:
                    CONSOLE.print(f"{step}, {lab.broker.name}: not done in {STEP_TIMEOUT_S:g} s, left out", style="red")
                    continue
                for name, value in figures.items() if round_ >= 0 else ():
                    found[f"{step}: {name}"][lab.broker.name][round_] = value
        CONSOLE.print(f"{step}: {rounds} rounds", highlight=False)
    return found


async def _poll(member: Member) -> Sequence[Acquired]:
    """Fetch until there are records."""
    while True:
        if found := await member.fetch():
            return found


async def _figures(step: Awaitable[Figures]) -> Figures:
    async with asyncio.timeout(STEP_TIMEOUT_S):
        return await step


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Share groups of this node and of Apache Kafka.")
    options_of.add_argument("--only", nargs="+", metavar="STEP", default=[""], help="steps that begin so")
    options_of.add_argument("--rounds", type=int, metavar="N", help="pairs of each step")
    options_of.add_argument("--home", type=Path, help="folder for both brokers' data  [default: a new temporary one]")
    options = options_of.parse_args()
    sizes = QUICK if options.quick else FULL
    steps = [step for step in STEPS if step.startswith(tuple(options.only))]
    home = options.home or Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    report = Report("Share groups")
    try:
        with (
            Anabranch(home / "anabranch", NODE_FLAGS) as node,
            ApacheKafka(home / "kafka", properties=KAFKA_PROPERTIES) as kafka,
        ):
            labs = [Lab(node, sizes), Lab(kafka, sizes)]
            found = measure(labs, steps, options.rounds or sizes.rounds)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        if options.home is None:
            shutil.rmtree(home)
    for figure, values in found.items():
        ours, theirs = values[Anabranch.name], values[ApacheKafka.name]
        if not ours or not theirs:
            continue
        report.add(f"{figure}: node", middle([*ours.values()]), "")
        report.add(f"{figure}: Apache Kafka", middle([*theirs.values()]), "")
        ratios = [ours[round_] / theirs[round_] for round_ in ours.keys() & theirs.keys() if theirs[round_]]
        if ratios:
            report.add(f"{figure}: node over Apache Kafka", middle(ratios), f"{min(ratios):.2f}-{max(ratios):.2f}")
    report.finish(options)


if __name__ == "__main__":
    main()
