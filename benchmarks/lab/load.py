"""A load of Produce requests from prebuilt frames, in a process of its own: far cheaper than the broker that answers.

    python -m benchmarks.lab.load PORT TOPIC_ID --partitions N --connections N --in-flight N --record-bytes N ...

Each connection keeps some requests in flight, each with one batch, and takes its partitions in turn. Prints one line of
JSON: requests, payload bytes, seconds, latencies in ms, and the CPU seconds of this process.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from functools import partial
from statistics import quantiles
from typing import Final, Never, cast

import uvloop

from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from benchmarks.lab.frames import decode_response, request_frame

VERSION: Final = 13
"""Of Produce: its answer to one batch has the error code at a fixed place."""
ERROR_CODE: Final = slice(31, 33)
"""After size, correlation id, tags, the length of topics, topic id, the length of partitions, and partition."""
ANY_INDEX: Final = 0x12345678
START_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Loaded:
    """Outcome of a load."""

    requests: int
    bytes: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu_s: float


@dataclass(frozen=True)
class Load:
    """A load, which ends after `seconds` or `bytes_max`, whichever comes first."""

    port: int
    topic_id: str
    """In hexadecimal digits."""
    partitions: int
    connections: int
    in_flight: int
    record_bytes: int
    batch_bytes: int
    seconds: float
    bytes_max: int

    def run(self) -> Loaded:
        """Run it in a child process. Raises CalledProcessError."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.lab.load", *flags], check=True, stdout=subprocess.PIPE, text=True
        )
        return Loaded(**json.loads(done.stdout))


class _Producer(asyncio.Protocol):
    """One connection."""

    def __init__(self, run: "_Run", number: int) -> None:
        self._run = run
        self._number = number
        self._partition = number % run.load.partitions
        self._step = min(run.load.connections, run.load.partitions)
        self._sent: deque[float] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def begin(self) -> None:
        """Send the first requests."""
        for _ in range(self._run.load.in_flight):
            self._send()

    def _send(self) -> None:
        run = self._run
        self._sent.append(time.perf_counter())
        self._transport.writelines((run.before + self._partition.to_bytes(4), run.after))
        self._partition = (self._partition + self._step) % run.load.partitions
        run.sent += 1

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        now = time.perf_counter()
        while len(received) >= 4:
            end = 4 + int.from_bytes(received[:4])
            if len(received) < end:
                return
            answer = bytes(received[:end])
            del received[:end]
            if any(answer[ERROR_CODE]):
                _fail(f"refused: {decode_response(ProduceRequest, answer[4:], VERSION)}")
            if self._run.answered(now, now - self._sent.popleft()):
                self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sent:
            _fail(f"connection {self._number} was lost: {exc}")


def _fail(reason: str) -> Never:
    """End the process: an exception in a callback of the loop would be logged only."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)


class _Run:
    """Everything that the connections share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        value = os.urandom(load.record_bytes)
        now_ms = time.time_ns() // 1_000_000  # older records would be deleted by retention
        records = [Record(None, value, now_ms)] * max(1, load.batch_bytes // max(1, load.record_bytes))
        batch = bytes(build_batch(records))
        self.payload_bytes = len(records) * load.record_bytes
        data = [PartitionProduceData(index=ANY_INDEX, records=batch)]
        topics = [TopicProduceData(topic_id=bytes.fromhex(load.topic_id), partition_data=data)]
        frame = request_frame(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), VERSION)
        self.before, _, self.after = frame.partition(ANY_INDEX.to_bytes(4))
        self.sent = 0
        self._latencies: list[float] = []
        self._requests_max = load.bytes_max // self.payload_bytes
        self._began = 0.0
        self._done = asyncio.Event()

    def answered(self, now: float, latency_s: float) -> bool:
        """Count an answer; return whether another request is to be sent."""
        self._latencies.append(latency_s)
        if self.sent < self._requests_max and now - self._began < self.load.seconds:
            return True
        if len(self._latencies) == self.sent:
            self._done.set()
        return False

    async def run(self) -> Loaded:
        loop = asyncio.get_running_loop()
        producers = []
        for number in range(self.load.connections):
            create = partial(_Producer, self, number)
            producers.append((await loop.create_connection(create, "127.0.0.1", self.load.port))[1])
        cpu_s = time.process_time()
        self._began = time.perf_counter()
        for producer in producers:
            producer.begin()
        await self._done.wait()
        seconds = time.perf_counter() - self._began
        cuts = quantiles(self._latencies, n=100, method="inclusive")
        count = len(self._latencies)
        return Loaded(
            count, count * self.payload_bytes, seconds, cuts[49] * 1e3, cuts[98] * 1e3, time.process_time() - cpu_s
        )


def main() -> None:
    """Run the load that the flags describe."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--topic-id", required=True)
    made.add_argument("--seconds", type=float, required=True)
    for name in ("port", "partitions", "connections", "in-flight", "record-bytes", "batch-bytes", "bytes-max"):
        made.add_argument(f"--{name}", type=int, required=True)
    uvloop.install()
    load = Load(**vars(made.parse_args()))

    async def run() -> Loaded:
        return await _Run(load).run()

    print(json.dumps(asdict(asyncio.run(run()))))


if __name__ == "__main__":
    main()
