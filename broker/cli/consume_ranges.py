"""The part of each partition that `consume` reads, from what its options say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.errors import ClientError
from broker.cli.points import Point
from protocol.messages.metadata import MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets to read of a partition, from `start` on and before `end`; None: without an end."""

    start: int
    end: int | None


Ranges = Mapping[Place, Range]


def plan_ranges(
    cluster: Cluster,
    names: Sequence[str],
    partitions: Sequence[int],
    start: Point,
    until: Point | None,
    *,
    follow: bool,
    read_committed: bool,
) -> Ranges:
    """Return the ranges that have something to read, or may have it. Raises ClientError."""
    topics = cluster.topics(names)
    places = [place for topic in topics for place in _places(topic, partitions)]
    earliest = cluster.list_offsets(topics, EARLIEST)
    latest = cluster.list_offsets(topics, LATEST, read_committed=read_committed)
    missing = [place for place in places if place not in earliest or place not in latest]
    if missing:
        raise ClientError(f"partition {missing[0][0]}-{missing[0][1]} has no leader")

    def resolve(point: Point) -> Mapping[Place, int]:
        if point.kind == "time":
            found = cluster.list_offsets(topics, point.value, read_committed=read_committed)
            return {place: offset if offset >= 0 else latest[place] for place, offset in found.items()}
        return {place: _offset(point, earliest[place], latest[place]) for place in places}

    starts = resolve(start)
    ends = resolve(until) if until is not None else None
    found = {}
    for place in places:
        first = min(max(starts[place], earliest[place]), latest[place])
        end = None if ends is None else ends[place]
        if not follow:
            end = latest[place] if end is None else min(end, latest[place])
        if end is None or first < end:
            found[place] = Range(first, end)
    return found


def _places(topic: MetadataResponseTopic, wanted: Sequence[int]) -> Sequence[Place]:
    assert topic.name is not None, "asked for by name"
    known = sorted(each.partition_index for each in topic.partitions)
    for each in wanted:
        if each not in known:
            raise ClientError(f"topic {topic.name} has no partition {each}: it has {len(known)}")
    return [(topic.name, each) for each in (sorted(set(wanted)) or known)]


def _offset(point: Point, earliest: int, latest: int) -> int:
    if point.kind == "start":
        return earliest
    if point.kind == "end":
        return latest
    if point.kind == "last":
        return max(earliest, latest - point.value)
    return point.value
