"""The part of each partition that `consume` reads, from what its options say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.operator.cli.points import Point
from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.errors import ClientError
from anabranch.output import count_text
from anabranch.protocol.messages.metadata import MetadataResponseTopic

SHOWN: Final = 3
"""Partitions whose offsets a message has."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets to read of a partition, from `start` on and before `end`; None: without an end."""

    start: int
    end: int | None


Ranges = Mapping[Place, Range]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Partitions with their first offsets and their ends, in which places are looked up."""

    topics: Sequence[MetadataResponseTopic]
    places: Sequence[Place]
    earliest: Mapping[Place, int]
    latest: Mapping[Place, int]
    read_committed: bool

    def resolve(self, cluster: Cluster, point: Point) -> Mapping[Place, int]:
        """Return the offset of a place in each partition, which may be outside of its records. Raises ClientError."""
        if point.kind == "time":
            found = cluster.list_offsets(self.topics, point.value, read_committed=self.read_committed)
            return {place: _or_end(found.get(place, -1), self.latest[place]) for place in self.places}
        if point.kind == "last":
            return {place: self._last(cluster, place, point.value) for place in self.places}
        return {place: _offset(point, self.earliest[place], self.latest[place]) for place in self.places}

    def _last(self, cluster: Cluster, place: Place, count: int) -> int:
        """Return the offset of the `count`th last record of a partition."""
        from anabranch.client.tail import find_last  # late: it loads what reads batches, which few places need

        return find_last(
            cluster,
            next(each for each in self.topics if each.name == place[0]),
            place[1],
            first=self.earliest[place],
            end=self.latest[place],
            count=count,
            read_committed=self.read_committed,
        )

    def __str__(self) -> str:
        texts = [_span_text(place, self.earliest[place], self.latest[place]) for place in self.places[:SHOWN]]
        more = len(self.places) - len(texts)
        return ", ".join(texts) + (f", and {count_text(more, 'more partition')}" if more else "")

    def limit(self, place: Place, offset: int) -> int:
        """Return the offset, or the nearest one that the partition has."""
        return min(max(offset, self.earliest[place]), self.latest[place])


def find_bounds(cluster: Cluster, wanted: Mapping[str, Sequence[int]], *, read_committed: bool = False) -> Bounds:
    """Return the bounds of partitions by topic; an empty sequence: of all. Raises ClientError."""
    topics = cluster.topics(list(wanted))
    places = [place for topic in topics for place in _places(topic, wanted[topic.name or ""])]
    earliest = cluster.list_offsets(topics, EARLIEST)
    latest = cluster.list_offsets(topics, LATEST, read_committed=read_committed)
    missing = [place for place in places if place not in earliest or place not in latest]
    if missing:
        raise ClientError(f"partition {missing[0][0]}-{missing[0][1]} has no leader")
    return Bounds(topics, places, earliest, latest, read_committed)


def plan_ranges(cluster: Cluster, bounds: Bounds, start: Point, until: Point | None, *, follow: bool) -> Ranges:
    """Return the ranges that have something to read, or may have it. Raises ClientError."""
    starts = bounds.resolve(cluster, start)
    ends = bounds.resolve(cluster, until) if until is not None else None
    found = {}
    for place in bounds.places:
        first = bounds.limit(place, starts[place])
        end = None if ends is None else ends[place]
        if not follow:
            end = bounds.latest[place] if end is None else min(end, bounds.latest[place])
        if end is None or first < end:
            found[place] = Range(first, end)
    return found


def _span_text(place: Place, first: int, end: int) -> str:
    name = f"{place[0]}-{place[1]}"
    return f"{name} has offsets {first} to {end - 1}" if first < end else f"{name} has no records"


def _or_end(offset: int, end: int) -> int:
    return offset if offset >= 0 else end


def _places(topic: MetadataResponseTopic, wanted: Sequence[int]) -> Sequence[Place]:
    assert topic.name is not None, "asked for by name"
    known = sorted(each.partition_index for each in topic.partitions)
    for each in wanted:
        if each not in known:
            raise ClientError(f"topic {topic.name} has no partition {each}: it has {len(known)}")
    return [(topic.name, each) for each in (sorted(set(wanted)) or known)]


def _offset(point: Point, earliest: int, latest: int) -> int:
    if point.kind == "earliest":
        return earliest
    if point.kind == "latest":
        return latest
    return point.value
