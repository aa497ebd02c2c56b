"""Finds the first record that a reader has not read, with one Fetch for many partitions, from the leaders.

Markers of transactions, aborted records, and what compaction has removed are skipped, as a reader skips them. A search
remembers how far it has come, so that asking again for the same place costs nothing.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from anabranch.client.cluster import Cluster, Place
from anabranch.protocol.batch import HEADER_BYTES, BatchHeader, iterate_batches
from anabranch.protocol.compression import decompressed
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from anabranch.protocol.record_scan import RecordHead, scan_records
from anabranch.protocol.records import ControlType, control_record

NAMED_VERSION: Final = 12
"""Newest version of Fetch that names topics, instead of giving their ids."""
PARTITION_BYTES: Final = 64 << 10
TOGETHER_MAX: Final = 50
"""Partitions of one request."""
ROUNDS_MAX: Final = 20
"""Requests for one partition, each of which continues where the previous one found nothing for readers."""


@dataclass(slots=True)
class Search:
    """Search for the first record from `start` on. Nothing before `position` is for readers."""

    start: int
    position: int
    timestamp_ms: int | None = None
    """Timestamp of the record at `position`; None: not found yet. It is -1 for a record without one."""

    def holds_for(self, offset: int) -> bool:
        """Return whether the first record from `offset` on is the one that this search has found, or looks for."""
        return self.start <= offset <= self.position


def find_first(
    cluster: Cluster, searches: Mapping[Place, Search], leaders: Mapping[Place, int], *, committed: bool, until_s: float
) -> None:
    """Continue searches until each has found a record or its end, or until a `time.perf_counter()`.

    Places that cannot be read stay unchanged. Raises ClientError for a node that does not answer.
    """
    for leader in sorted(set(leaders.values())):
        places = sorted(place for place in searches if leaders.get(place) == leader)
        for start in range(0, len(places), TOGETHER_MAX):
            some = {place: searches[place] for place in places[start : start + TOGETHER_MAX]}
            found = _fetch(cluster, leader, some, committed=committed)
            # A broker leaves partitions empty when one batch has filled the answer, or is larger than its share.
            for place, search in some.items():
                rounds = ROUNDS_MAX if place in found else 0
                while search.timestamp_ms is None and rounds and time.perf_counter() < until_s:
                    before = search.position
                    _fetch(cluster, leader, {place: search}, committed=committed)
                    rounds = rounds - 1 if search.position > before else 0


def _fetch(cluster: Cluster, leader: int, searches: Mapping[Place, Search], *, committed: bool) -> set[Place]:
    """Read from each place once. Returns those that the leader has answered without an error."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, partition), search in searches.items():
        wanted = FetchPartition(partition=partition, fetch_offset=search.position, partition_max_bytes=PARTITION_BYTES)
        topics.setdefault(topic, []).append(wanted)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=PARTITION_BYTES * len(searches),
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, partitions=each) for topic, each in topics.items()],
    )
    answer: FetchResponse = cluster.node(leader).call(request, version_max=NAMED_VERSION)
    found: set[Place] = set()
    for topic_answer in answer.responses:
        for data in topic_answer.partitions:
            place = (topic_answer.topic, data.partition_index)
            if not data.error_code and place in searches:
                found.add(place)
                advance(searches[place], data)
    return found


def advance(search: Search, data: PartitionData) -> None:
    """Move a search to the first record in an answer, or past what is not for readers."""
    begun = sorted(data.aborted_transactions or (), key=lambda each: each.first_offset)
    aborted: set[int] = set()
    try:
        for header, batch in iterate_batches(cast("memoryview", data.records or b"")):
            while begun and begun[0].first_offset <= header.last_offset:
                aborted.add(begun.pop(0).producer_id)
            if header.is_control:
                if control_record(batch)[0] == ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                record = _first_in(batch, header, search.position)
                if record is not None:
                    search.position, search.timestamp_ms = record.offset, record.timestamp_ms
                    return
            search.position = max(search.position, header.next_offset)
    except KafkaError:
        pass  # the last batch is cut off, or a batch is invalid: it is asked for again, alone


def _first_in(batch: memoryview, header: BatchHeader, offset: int) -> RecordHead | None:
    with decompressed(header.compression, batch[HEADER_BYTES : header.size_bytes]) as data:
        records = scan_records(data, header)
        return next((record for record in records if record.offset >= offset), None)
