"""Measures the traffic of the partitions that this node leads, and of its replicas, as means of about a minute."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from anabranch.broker.cluster.balancer.costs import cores_of
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.replicas import Replicas
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.net.traffic import ClientTraffic, RackTraffic
from anabranch.protocol.messages.internal.describe_loads import (
    DescribeLoadsResponse,
    PartitionTraffic,
)
from anabranch.protocol.messages.internal.describe_zones import DescribeZonesResponse, PartitionZones, RackRate

SAMPLE_S: Final = 10.0
"""Interval of `sample`, about."""
MEAN_S: Final = 60.0
"""A change of the traffic shows by two thirds after this time."""
ZONES_S: Final = 600.0
"""The same time for means by the racks of clients, after which partitions move."""
ZONE_BYTES_MIN: Final = 100.0
"""Bytes a second below which a rack has no traffic."""
ZONES_MAX: Final = 10_000
"""Partitions of an answer with racks, which has less than 1 MiB for five racks."""
REQUESTS_MIN: Final = 0.01
"""Requests a second below which a partition has no traffic."""
NEW_S: Final = 600.0
"""A partition is described without traffic, too, while it has been led for less."""
PARTITIONS_MAX: Final = 25_000
"""Partitions of an answer, which has less than 1 MiB."""
COUNTS_MIN: Final = 10_000
"""Counts of streams up to which those of deleted ones are kept."""
PIECE: Final = 500
"""Partitions after which a walk over all lets the loop serve clients: less than a millisecond."""
Counts = tuple[int, int, int, int]
"""Received, sent and loaded bytes, and requests."""


class _Means:
    """Means of counters, a second."""

    def __init__(self, counts: Counts) -> None:
        self.values: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
        self.is_new = True
        """True until the first sample."""
        self._counts = counts

    def sample(self, counts: Counts, seconds: float) -> None:
        weight = 1.0 if self.is_new else 1 - math.exp(-seconds / MEAN_S)
        received, sent, loaded, requests = (
            mean + ((now - before) / seconds - mean) * weight
            for mean, now, before in zip(self.values, counts, self._counts, strict=True)
        )
        self.values, self._counts, self.is_new = (received, sent, loaded, requests), counts, False

    def traffic(self, stream_id: int = 0, led_s: int = 0) -> PartitionTraffic:
        received_bytes, sent_bytes, loaded_bytes, requests = self.values
        return PartitionTraffic(
            stream_id=stream_id,
            received_bytes=received_bytes,
            sent_bytes=sent_bytes,
            loaded_bytes=loaded_bytes,
            requests=requests,
            led_s=led_s,
        )


class _Meter:
    """Traffic of one partition, as long as this node leads it."""

    def __init__(self, partition: Partition, since_ms: int, racks: Sequence[RackTraffic]) -> None:
        self.partition = partition
        self.since_ms = since_ms
        self.zones: dict[str, float] = {}
        """Bytes a second by the racks of clients."""
        stream_id = partition.stream.stream_id
        self._exchanged = {each.rack: each.exchanged(stream_id) for each in racks}
        self.means = _Means(_counts(partition))

    def sample(self, seconds: float, racks: Sequence[RackTraffic]) -> None:
        self._sample_zones(seconds, racks)
        self.means.sample(_counts(self.partition), seconds)

    def _sample_zones(self, seconds: float, racks: Sequence[RackTraffic]) -> None:
        weight = 1.0 if self.means.is_new else 1 - math.exp(-seconds / ZONES_S)
        stream_id = self.partition.stream.stream_id
        for each in racks:
            count, mean = each.exchanged(stream_id), self.zones.get(each.rack, 0.0)
            found = (count - self._exchanged.get(each.rack, 0)) / seconds
            self._exchanged[each.rack] = count
            self.zones[each.rack] = mean + (found - mean) * weight

    def traffic(self, stream_id: int, now_ms: int) -> PartitionTraffic:
        return self.means.traffic(stream_id, (now_ms - self.since_ms) // 1000)


class LoadMeter:
    """Traffic by partition. `sample` is called every `SAMPLE_S`."""

    def __init__(
        self, topics: TopicMap, replicas: Replicas, traffic: ClientTraffic, steady_ms: Callable[[], int]
    ) -> None:
        self.cores = 0.0
        """Cost of all the partitions, and of the replicas."""
        self._topics = topics
        self._replicas = replicas
        self._of_replicas = _Means(_counts_of_replicas(replicas))
        self._traffic = traffic
        self._steady_ms = steady_ms
        self._started_ms = self._sampled_ms = steady_ms()
        self._meters: dict[int, _Meter] = {}

    async def sample(self) -> None:
        """Take in what was counted since the last call. The loop serves clients meanwhile."""
        now_ms = self._steady_ms()
        seconds, self._sampled_ms = max(now_ms - self._sampled_ms, 1) / 1000, now_ms
        self._of_replicas.sample(_counts_of_replicas(self._replicas), seconds)
        led = {each.stream.stream_id: each for each in self._topics.led_partitions()}
        racks = [each for each in self._traffic.racks.values() if each.rack]
        known, self._meters = self._meters, {}
        for count, (stream_id, partition) in enumerate(led.items(), 1):
            meter = known.get(stream_id)
            if meter is None or meter.partition is not partition:  # it was opened since: its first sample is the next
                meter = _Meter(partition, now_ms, racks)
            else:
                meter.sample(seconds, racks)
            self._meters[stream_id] = meter
            if not count % PIECE:
                await asyncio.sleep(0)
        led_cores = sum(cores_of(meter.traffic(stream_id, now_ms)) for stream_id, meter in self._meters.items())
        self.cores = led_cores + self._replica_cores

    @property
    def _replica_cores(self) -> float:
        return cores_of(self._of_replicas.traffic())

    @property
    def up_ms(self) -> int:
        """Time since the node began to serve."""
        return self._steady_ms() - self._started_ms

    def forget_deleted(self) -> None:
        """Keep no counts of deleted streams, beside their sum, once they are many."""
        if self._traffic.counts > COUNTS_MIN + 2 * len(self._traffic.racks) * self._topics.partition_count:
            self._traffic.forget_deleted({each.stream_id for topic in self._topics for each in topic.info.partitions})

    def describe(self) -> DescribeLoadsResponse:
        """Return the traffic of the partitions that have some, and of those that are led since a short time.

        And the cost of the replicas.
        """
        now_ms = self._steady_ms()
        traffic: list[PartitionTraffic] = []
        for partition in self._topics.led_partitions():
            stream_id = partition.stream.stream_id
            meter = self._meters.get(stream_id)
            if meter is None or meter.partition is not partition:
                traffic.append(PartitionTraffic(stream_id=stream_id))
            elif meter.means.values[-1] >= REQUESTS_MIN or now_ms - meter.since_ms < NEW_S * 1000:
                traffic.append(meter.traffic(stream_id, now_ms))
        if len(traffic) > PARTITIONS_MAX:
            traffic = sorted(traffic, key=lambda each: each.requests, reverse=True)[:PARTITIONS_MAX]
        return DescribeLoadsResponse(up_ms=self.up_ms, replica_cores=self._replica_cores, partitions=traffic)

    def describe_zones(self) -> DescribeZonesResponse:
        """Return where the clients of the partitions are."""
        found = [
            PartitionZones(stream_id=stream_id, rates=rates)
            for stream_id, meter in self._meters.items()
            if (
                rates := [
                    RackRate(rack=rack, bytes=mean) for rack, mean in meter.zones.items() if mean >= ZONE_BYTES_MIN
                ]
            )
        ]
        if len(found) > ZONES_MAX:
            found = sorted(found, key=lambda each: -sum(rate.bytes for rate in each.rates))[:ZONES_MAX]
        return DescribeZonesResponse(partitions=found)


def _counts(partition: Partition) -> Counts:
    return partition.appended_bytes, partition.sent_bytes, partition.loaded_bytes, partition.requests


def _counts_of_replicas(replicas: Replicas) -> Counts:
    return 0, replicas.object_bytes + replicas.tail_bytes, replicas.object_bytes, replicas.answers
