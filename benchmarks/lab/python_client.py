"""Loads by Python's own producers with their defaults, in one process that stays warm: librdkafka's and aiokafka's.

It is driven as PerfClient.java is, with the same commands and answers. Options of a load: `library`, `port`, `topic`,
`partitions`, `record.bytes`, `records` (0: no limit), `seconds`, and `prime`, the records that each partition gets
before. Records have no key, so the library chooses their partitions. A latency is the time from the call that sends a
record to its delivery report.
"""

import asyncio
import sys
from array import array
from collections.abc import Mapping
from time import perf_counter

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
POLL_S = 0.1


class Deliveries:
    """Latencies of delivered records, and the first error of the others."""

    def __init__(self) -> None:
        self.latencies_s = array("d")
        self.error: object = None

    def failed(self, error: object) -> None:
        """Note an error."""
        self.error = self.error or error

    def result(self, sent: int, seconds: float) -> str:
        """Return the line of the result."""
        if self.error is not None:
            raise RuntimeError(str(self.error))
        ordered = sorted(self.latencies_s)
        words = [f"seconds={seconds}", f"sent.records={sent}", f"acked.records={len(ordered)}", "read.records=0"]
        for name, share in PERCENTILES.items():
            words.append(f"ack.{name}_us={ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e6}")
        return "result " + " ".join(words)


def say(answer: str) -> None:
    """Answer the benchmark."""
    print(f"== {answer}", flush=True)


def await_start() -> None:
    """Wait for the order to begin."""
    say("ready")
    if not sys.stdin.readline():
        sys.exit(1)


def librdkafka(options: Mapping[str, str]) -> str:
    """Send with confluent-kafka. Its queue holds 100,000 records, which decides the latency of a load at full speed."""
    found = Deliveries()

    def delivered(error: KafkaError | None, message: Message) -> None:
        latency_s = message.latency()
        if error is None and latency_s is not None:
            found.latencies_s.append(latency_s)
        else:
            found.failed(error)

    topic, value = options["topic"], bytes(int(options["record.bytes"]))
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{options['port']}", "on_delivery": delivered})
    for partition in range(int(options["partitions"])):
        for _ in range(int(options["prime"])):
            producer.produce(topic, value, partition=partition)
    producer.flush()
    found.latencies_s = array("d")
    await_start()
    sent, limit = 0, int(options["records"]) or sys.maxsize
    began = perf_counter()
    end = began + float(options["seconds"])
    while sent < limit and perf_counter() < end and found.error is None:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(POLL_S)
        else:
            sent += 1
            producer.poll(0)
    producer.flush()
    return found.result(sent, perf_counter() - began)


async def aiokafka(options: Mapping[str, str]) -> str:
    """Send with aiokafka, whose `send` waits while the partition's batch is full."""
    found = Deliveries()
    topic, value = options["topic"], bytes(int(options["record.bytes"]))
    async with AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{options['port']}") as producer:
        for partition in range(int(options["partitions"])):
            for _ in range(int(options["prime"])):
                await producer.send_and_wait(topic, value, partition=partition)
        await_start()
        sent, limit = 0, int(options["records"]) or sys.maxsize
        began = perf_counter()
        end = began + float(options["seconds"])
        while sent < limit and (called := perf_counter()) < end and found.error is None:

            def delivered(future: "asyncio.Future[object]", called: float = called) -> None:
                error = future.exception()
                if error is None:
                    found.latencies_s.append(perf_counter() - called)
                else:
                    found.failed(error)

            (await producer.send(topic, value)).add_done_callback(delivered)
            sent += 1
        await producer.flush()
        seconds = perf_counter() - began
        await asyncio.sleep(0)  # the callbacks of the last batch
    return found.result(sent, seconds)


def run(words: list[str]) -> None:
    """Run a command."""
    options = dict(word.split("=", 1) for word in words[1:])
    if words[0] != "load":
        raise ValueError(f"unknown command {words[0]}")
    say(librdkafka(options) if options["library"] == "librdkafka" else asyncio.run(aiokafka(options)))


def main() -> None:
    """Run the commands of standard input."""
    for line in iter(sys.stdin.readline, ""):
        try:
            run(line.rstrip("\n").split("\t"))
        except Exception as error:  # noqa: BLE001 - the benchmark reports it, and goes on
            say(f"failed: {error!r}")
        else:
            say("done")


if __name__ == "__main__":
    main()
