"""Lag of a query behind its topics: in offsets, and in time.

The lag of a partition in time is the age of the first record that the query has not done: now minus that record's
timestamp. It is 0 when there is no such record, however old the newest one is: an idle topic is not stale. "First" is
by offset; where producers set timestamps out of order, one further behind may be older.

It is computed on request, so that it grows while a query hangs. Each partition costs a read of one batch after its
query has progressed, and nothing while the query makes no progress or has read everything.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.connection import AddressError, Connection
from anabranch.client.errors import ClientError
from anabranch.client.settings import client_settings
from anabranch.protocol.messages.metadata import MetadataResponseTopic
from anabranch.spark.preflight import CLIENT_ID, TIMEOUT_S
from anabranch.spark.unread import Search, find_first

Offsets = Mapping[Place, int]
REFRESH_S: Final = 5.0
"""Time for which a lag is shown before it is looked up again."""
SEARCH_S: Final = 5.0
"""Time after which no more partitions are searched for their first records."""


def parse_offsets(value: Any) -> dict[Place, int]:
    """Parse offsets by topic and partition, as in the Kafka source. Offsets of other sources are ignored."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    return {
        (topic, int(partition)): offset
        for topic, partitions in value.items()
        if isinstance(partitions, dict)
        for partition, offset in partitions.items()
        if partition.isdigit() and isinstance(offset, int)
    }


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of a query in one partition."""

    done: int | None
    """Next offset that the query will read; None: it has not begun with the partition."""
    end: int
    """End of the data visible to its reader: the high watermark, or the last stable offset."""
    offsets: int
    """Offsets that exist and are not done."""
    unread_ms: int | None
    """Timestamp of the first record that is not done, -1 if it has none; None: no such record, or it is not known."""
    is_complete: bool
    """True if no record is missing: only markers and aborted records remain, or nothing."""

    def age_ms(self, now_ms: int) -> int | None:
        """Return the lag in time; None if it is not known. A record from the future has no age yet: 0."""
        if self.is_complete:
            return 0
        if self.unread_ms is None or self.unread_ms < 0:
            return None
        return max(0, now_ms - self.unread_ms)


class LagReader:
    """Looks up the lag of a query. Keeps its connections, and what it has found."""

    def __init__(self, servers: str, properties: Mapping[str, str], *, committed: bool) -> None:
        """Connect when the first lag is looked up. `committed`: the query reads committed records only.

        Raises PropertyError for client properties that only Java's client can use.
        """
        self._servers = servers
        self._settings = client_settings(properties)
        self._committed = committed
        self._cluster: Cluster | None = None
        self._searches: dict[Place, Search] = {}

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def read(self, done: Offsets, topics: Iterable[str] = ()) -> dict[Place, PartitionLag]:
        """Return the lag of each partition of `done` and `topics`. Raises ClientError.

        A query begins at the start of partitions that are new to it. Partitions whose leader does not answer are left
        out.
        """
        try:
            if self._cluster is None:
                self._cluster = Cluster(self._servers, self._connect)
            return self._read(self._cluster, done, sorted({*topics, *(topic for topic, _ in done)}))
        except AddressError as error:
            raise ClientError(str(error)) from None
        except ClientError:
            self.close()
            raise

    def _connect(self, host: str, port: int) -> Connection:
        return Connection(host, port, self._settings, client_id=CLIENT_ID, timeout_s=TIMEOUT_S)

    def _read(self, cluster: Cluster, done: Offsets, names: list[str]) -> dict[Place, PartitionLag]:
        topics = cluster.topics(names) if names else ()
        starts = cluster.list_offsets(topics, EARLIEST)
        ends = cluster.list_offsets(topics, LATEST, read_committed=self._committed)
        # Records that were deleted before they were read are not waited for.
        begin = {place: max(done.get(place, 0), starts.get(place, 0)) for place in ends}
        self._searches = {
            place: search if (search := self._searches.get(place)) and search.holds_for(at) else Search(at, at)
            for place, at in begin.items()
        }
        behind = {
            place: search
            for place, search in self._searches.items()
            if search.timestamp_ms is None and search.position < ends[place]
        }
        if behind:
            until_s = time.perf_counter() + SEARCH_S
            find_first(cluster, behind, _leaders(topics), committed=self._committed, until_s=until_s)
        return {place: self._lag(place, done.get(place), begin[place], end) for place, end in ends.items()}

    def _lag(self, place: Place, done: int | None, begin: int, end: int) -> PartitionLag:
        search = self._searches[place]
        # Past the end, the topic has been created anew, and what it has now is not known to the query.
        is_complete = search.timestamp_ms is None and begin <= end <= search.position
        return PartitionLag(done, end, max(0, end - begin), search.timestamp_ms, is_complete)


def _leaders(topics: Iterable[MetadataResponseTopic]) -> dict[Place, int]:
    return {(topic.name or "", each.partition_index): each.leader_id for topic in topics for each in topic.partitions}


@dataclass(slots=True)
class Freshness:
    """Lag of a running query for its page of metrics. It may be asked from several threads."""

    query: str
    """Name of the query."""
    reader: LagReader
    topics: tuple[str, ...]
    begun: Offsets
    """Offsets that were done when the query started, as far as is known."""
    clock_s: Callable[[], float] = time.perf_counter
    failures: int = 0
    """Look-ups that failed."""
    _lags: Mapping[Place, PartitionLag] = field(default_factory=dict)
    _next_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ages_ms(self, done: Offsets | None, now_ms: int) -> dict[Place, int]:
        """Return the age of the first record that is not done, by partition; without those where it is not known.

        `done` are the offsets of the newest micro-batch, None before the first one. While no node answers, lags that
        were found for the same offsets grow, and those that were 0 are not known.
        """
        with self._lock:
            done = self.begun if done is None else done
            if done and self.clock_s() >= self._next_s:
                self._look_up(done)
            ages = {place: lag.age_ms(now_ms) for place, lag in self._lags.items()}
        return {place: age_ms for place, age_ms in ages.items() if age_ms is not None}

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self.reader.close()

    def _look_up(self, done: Offsets) -> None:
        try:
            self._lags = self.reader.read(done, self.topics)
        except ClientError:
            self.failures += 1
            known = {place: lag for place, lag in self._lags.items() if lag.unread_ms is not None}
            self._lags = {place: lag for place, lag in known.items() if done.get(place) == lag.done}
        self._next_s = self.clock_s() + REFRESH_S
