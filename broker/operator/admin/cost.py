"""Cost of the use of a cluster in a month, by a price list, and of the same use with Apache Kafka. Pure.

Machines are left out on both sides, and the catalog's database. A client's bytes are record batches as they are sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from anabranch.broker.operator.admin.prices import Prices

MONTH_S: Final = 730 * 3_600.0
GB: Final = 1e9
SHORT_S: Final = 600.0
"""Time below which a measurement is too short to tell what a month is like."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a second, by where the two ends are."""

    near: float = 0.0
    """In one zone."""
    far: float = 0.0
    """In different zones."""
    unknown: float = 0.0
    """The zone of one end is not known."""

    @property
    def total(self) -> float:
        """All bytes."""
        return self.near + self.far + self.unknown

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.near + other.near, self.far + other.far, self.unknown + other.unknown)


@dataclass(frozen=True, slots=True)
class TopicUse:
    """Use of a topic."""

    topic: str
    """`(deleted)`: all topics that do not exist any more."""
    received: Traffic
    """From producers."""
    sent: Traffic
    """To consumers."""
    stored_bytes: int
    """In objects, without what is waiting to be removed."""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of a cluster: rates, and what is stored."""

    measured_s: float
    """Time over which rates are means; the shortest one of a node."""
    zones: list[str]
    """Racks of the living nodes. A node without one is in no known zone."""
    topics: list[TopicUse]
    peers: Traffic
    """Between nodes."""
    object_writes: float
    """Calls to object stores a second: PUT, COPY, POST and LIST."""
    object_reads: float
    """GET and HEAD."""
    object_bytes: int
    """In objects, with what is waiting to be removed."""
    log_disk_bytes: int
    """Disks of logs."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """A part of the sum, for a month."""

    item: str
    unit: str
    """`GB`, `GB kept` or `1,000 calls`."""
    amount: float
    cost: float
    kafka_amount: float
    """The same with Apache Kafka."""
    kafka_cost: float


@dataclass(frozen=True, slots=True)
class TopicCost:
    """A topic's part. Calls to object stores are divided by the bytes of the topics."""

    topic: str
    across_gb: float
    """GB between clients and nodes of different zones in a month."""
    kept_gb: float
    cost: float
    kafka_cost: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Sum of a month, and its parts."""

    prices: Prices
    lines: list[CostLine]
    cost: float
    kafka_cost: float
    topics: list[TopicCost]
    """The most expensive first. What no topic has alone is in `lines` only: links between nodes, disks of logs."""
    assumptions: list[str]


def price(use: Use, prices: Prices) -> Cost:
    """Return what the use costs."""
    lines = list(_lines(use, prices))
    topics = sorted(_topics(use, prices), key=lambda each: (-each.cost, each.topic))
    return Cost(
        prices,
        lines,
        sum(line.cost for line in lines),
        sum(line.kafka_cost for line in lines),
        topics,
        list(_assumptions(use, prices)),
    )


def _far_share(use: Use) -> float:
    """Return the part of bytes between unknown zones that is taken to cross zones: clients evenly in all zones."""
    return 1 - 1 / len(use.zones) if use.zones else 0.0


def _across_gb(use: Use, traffic: Traffic) -> float:
    return (traffic.far + traffic.unknown * _far_share(use)) * MONTH_S / GB


def _month_gb(rate: float) -> float:
    return rate * MONTH_S / GB


def _lines(use: Use, prices: Prices) -> Iterator[CostLine]:
    received = sum((each.received for each in use.topics), Traffic())
    sent = sum((each.sent for each in use.topics), Traffic())
    kept_gb = sum(each.stored_bytes for each in use.topics) / GB
    yield _gb(
        "producers across zones",
        prices.zone_gb,
        _across_gb(use, received),
        _month_gb(received.total) * prices.kafka_producers_across,
    )
    yield _gb(
        "consumers across zones",
        prices.zone_gb,
        _across_gb(use, sent),
        _month_gb(sent.total) * prices.kafka_consumers_across,
    )
    yield _gb(
        "between nodes across zones",
        prices.zone_gb,
        _across_gb(use, use.peers),
        _month_gb(received.total) * max(prices.kafka_replicas - 1, 0),
    )
    yield _calls("writes to object stores", prices.object_writes_1000, use.object_writes)
    yield _calls("reads from object stores", prices.object_reads_1000, use.object_reads)
    object_gb = use.object_bytes / GB
    yield CostLine("objects", "GB kept", object_gb, object_gb * prices.object_gb_month, 0.0, 0.0)
    disk_gb, kafka_gb = use.log_disk_bytes / GB, kept_gb * prices.kafka_replicas / prices.kafka_disk_use
    yield CostLine(
        "disks", "GB kept", disk_gb, disk_gb * prices.disk_gb_month, kafka_gb, kafka_gb * prices.disk_gb_month
    )


def _gb(item: str, gb: float, amount: float, kafka_amount: float) -> CostLine:
    return CostLine(item, "GB", amount, amount * gb, kafka_amount, kafka_amount * gb)


def _calls(item: str, thousand: float, rate: float) -> CostLine:
    amount = rate * MONTH_S / 1000
    return CostLine(item, "1,000 calls", amount, amount * thousand, 0.0, 0.0)


def _topics(use: Use, prices: Prices) -> Iterator[TopicCost]:
    received = sum(each.received.total for each in use.topics)
    sent = sum(each.sent.total for each in use.topics)
    writes = use.object_writes * MONTH_S / 1000 * prices.object_writes_1000
    reads = use.object_reads * MONTH_S / 1000 * prices.object_reads_1000
    for each in use.topics:
        across_gb, kept_gb = _across_gb(use, each.received + each.sent), each.stored_bytes / GB
        cost = across_gb * prices.zone_gb + kept_gb * prices.object_gb_month
        cost += writes * each.received.total / received if received else 0.0
        cost += reads * each.sent.total / sent if sent else 0.0
        kafka_across = each.received.total * (prices.kafka_producers_across + max(prices.kafka_replicas - 1, 0))
        kafka_across += each.sent.total * prices.kafka_consumers_across
        kafka_disk = kept_gb * prices.kafka_replicas / prices.kafka_disk_use * prices.disk_gb_month
        yield TopicCost(each.topic, across_gb, kept_gb, cost, _month_gb(kafka_across) * prices.zone_gb + kafka_disk)


def _assumptions(use: Use, prices: Prices) -> Iterator[str]:
    if use.measured_s < SHORT_S:
        yield f"rates of {use.measured_s:.0f} s say little about a month: uploads and compaction come in cycles"
    unknown = sum(each.received.unknown + each.sent.unknown for each in use.topics) + use.peers.unknown
    total = sum(each.received.total + each.sent.total for each in use.topics) + use.peers.total
    if unknown and use.zones:
        yield (
            f"the zone of {unknown / total:.0%} of the bytes is not known: {_far_share(use):.0%} of them are taken to "
            "cross zones; give consumers client.rack, and any client rack=ID in its client id"
        )
    elif unknown:
        yield "no node has a rack (listener.rack), so no traffic is taken to cross zones"
    replicas = f"{prices.kafka_replicas:g}"
    yield (
        f"Apache Kafka: {replicas} replicas in {replicas} zones on disks that are {prices.kafka_disk_use:.0%} full; of "
        f"the producers' bytes {prices.kafka_producers_across:.0%} cross zones, of the consumers' "
        f"{prices.kafka_consumers_across:.0%}"
    )
    yield "machines are left out on both sides, and the database of the catalog"
