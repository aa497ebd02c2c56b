"""A node process with a real S3 server, a proxy between them that injects a test's faults, and clients that count."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from anabranch.broker.node.settings.stores import make_stores
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.maintain.findings import VerifyReport
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import ObjectState
from tests.support.fault_proxy import PASS, Fault, Request, fault_proxy_thread
from tests.support.node import NodeProcess, settings_for
from tests.support.s3 import S3Bucket
from tests.support.storage import object_files
from tests.support.waiting import WAIT_S, expect_before, wait_until

IN_FLIGHT_MAX = 400
RECORDS_PER_TURN = 10
Decide = Callable[[Request], Fault]


@dataclass(slots=True)
class Weather:
    """Current behaviour of the proxy."""

    decide: Decide = lambda _: PASS
    faults: int = 0
    """Requests that did not simply pass."""
    requests: Counter[str] = field(default_factory=Counter)
    """By method."""

    def __call__(self, request: Request) -> Fault:
        """Decide, and count."""
        fault = self.decide(request)
        self.requests[request.method] += 1
        self.faults += fault is not PASS
        return fault

    def clear(self) -> None:
        """Let everything pass from now on."""
        self.decide = lambda _: PASS


@dataclass(slots=True)
class Rig:
    """A node, its object store, and the weather between them if that can be bad."""

    node: NodeProcess
    folder: Path
    objects: Path
    """Directory of the objects, a bucket's or a local store's."""
    direct: Mapping[str, object]
    """Settings that lead to catalog and objects past the proxy."""
    weather: Weather = field(default_factory=Weather)

    def partition(self, topic: str) -> dict[str, int]:
        """Offsets of its only partition."""
        found: dict[str, int] = self.node.status()["topics"][topic]["partitions"][0]
        return found

    def writable(self) -> bool:
        """True if the node accepts appends."""
        return bool(self.node.status()["node"]["writable"])

    def stands_still(self, topic: str) -> bool:
        """True if the log does not grow although a client sends."""
        before = self.partition(topic)["high_watermark"]
        return all(self.partition(topic)["high_watermark"] == before for _ in range(20))

    async def expect_accounts_to_agree(self) -> None:
        """Check in the catalog and in the store's files that past the deadlines only committed objects are left."""
        wait_until(
            lambda: all(kind.endswith(" committed") for kind in self.node.status()["objects"]), "the rest was collected"
        )
        report = await self._verify()
        assert report.ok, report.findings[:5]
        assert set(report.objects) == {ObjectState.COMMITTED}
        assert len(object_files(self.objects)) == report.stored_objects == report.objects[ObjectState.COMMITTED]

    async def _verify(self) -> VerifyReport:
        """Verify the storage as `anabranch storage verify --deep` does."""
        settings = settings_for(self.folder, **self.direct)
        async with AsyncExitStack() as stack:
            catalog = Catalog(settings.catalog_url)
            await catalog.open(cluster=settings.node.cluster)
            stack.push_async_callback(catalog.close)
            stores = make_stores(settings, random.Random(1))
            for store in stores.values():
                await store.open()
                stack.push_async_callback(store.close)
            return await verify(catalog=catalog, stores=stores, cluster=settings.node.cluster, deep=True)


@contextmanager
def faulty_node(folder: Path, bucket: S3Bucket, **wanted: object) -> Iterator[Rig]:
    """Start proxy and node in front of a bucket. The caller has put its credentials into the environment."""
    weather = Weather()
    direct = bucket.node_settings()
    with (
        fault_proxy_thread(bucket.endpoint, weather) as endpoint,
        NodeProcess(folder, **{**direct, "objects_endpoint": endpoint, **wanted}) as node,
    ):
        yield Rig(node, folder, bucket.folder, direct, weather)


class CountingProducer:
    """An idempotent producer with default retries that numbers its records and remembers the acknowledgements."""

    def __init__(self, bootstrap: str, topic: str, *, value_bytes: int, pause_s: float = 0) -> None:
        self.topic = topic
        self.value_bytes = value_bytes
        self._pause_s = pause_s
        self.sent = 0
        self.acked: dict[int, bytes] = {}
        """Value by offset."""
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "log_level": 0,
                "error_cb": lambda error: self.errors.append(str(error)),
            }
        )

    def value(self, number: int) -> bytes:
        """Bytes that only this record has."""
        return (b"%s %d " % (self.topic.encode(), number) * self.value_bytes)[: self.value_bytes]

    def send_while(self, condition: Callable[[], bool]) -> None:
        """Keep records in flight while the condition holds."""
        until = time.monotonic() + WAIT_S
        while condition():
            expect_before(until, f"{self.sent} records sent, {len(self.acked)} acknowledged")
            if self.sent - len(self.acked) < IN_FLIGHT_MAX:
                for _ in range(RECORDS_PER_TURN):
                    self._producer.produce(self.topic, self.value(self.sent), partition=0, on_delivery=self._delivered)
                    self.sent += 1
            self._producer.poll(0.01)
            time.sleep(self._pause_s)

    def finish(self, *, was_away: bool = False) -> None:
        """Wait for every acknowledgement, and check that no error occurred unless the node was away."""
        assert self._producer.flush(WAIT_S) == 0
        assert was_away or not self.errors, self.errors[:3]
        assert sorted(self.acked) == list(range(self.sent)), "each record has a separate offset"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert isinstance(value, bytes)
        self.acked[offset] = value


def read_back(bootstrap: str, load: CountingProducer) -> None:
    """Check that every record is there once, in order, byte for byte, at the offset of its acknowledgement."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(load.topic, 0, 0)])
        offset = 0
        until = time.monotonic() + WAIT_S
        while offset < load.sent:
            expect_before(until, f"read {offset} of {load.sent}")
            for message in consumer.consume(500, timeout=1):
                assert message.error() is None, message.error()
                assert message.offset() == offset
                assert message.value() == load.acked[offset] == load.value(offset)
                offset += 1
    finally:
        consumer.close()
