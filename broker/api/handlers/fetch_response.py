"""The response to a Fetch request, built from the data read from each partition.

In an incremental session (KIP-227) the response names only the partitions that have changed for the client.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.fetch_sessions import TOPIC_IDS_SINCE, FetchPlan, FetchTarget
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.transactions import AbortedEntry
from anabranch.broker.kafka.topics.replicas import ReplicaPartition
from anabranch.broker.kafka.topics.tail_partition import TailPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.batch import parse_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from anabranch.s3stream.model import StreamBatch
from anabranch.wal.interface import Buffer

READ_COMMITTED = 1
LEADERS_SINCE = 12
"""First version in which an error names the partition's leader (KIP-951)."""
ENDPOINTS_SINCE = 16
"""First version with the addresses of these leaders."""
WITH_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that name the leader."""


_NOT_READ: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)


@dataclass(slots=True)
class PartitionRead:
    """Result of reading one partition: batches, or an error."""

    target: FetchTarget
    partition: Partition | ReplicaPartition | TailPartition | None
    error: ErrorCode = ErrorCode.NONE
    batches: Sequence[StreamBatch] = ()
    records: Sequence[Buffer] = ()
    """Payloads of the batches."""
    diverging: EpochEndOffset | None = None
    preferred_replica: int = -1
    """Node to read from instead (KIP-392)."""

    @property
    def is_not_read(self) -> bool:
        """True if this node knows no such partition, or the client may not read it."""
        return self.error in _NOT_READ

    def refuse_deleted(self) -> None:
        """Replace data that the log's start has passed since it was read by OFFSET_OUT_OF_RANGE.

        Aborted transactions are known from the log's start on only, so the answer must not contain earlier data.
        """
        if self.batches and self.partition is not None and self.target.fetch_offset < self.partition.log_start_offset:
            self.error = ErrorCode.OFFSET_OUT_OF_RANGE
            self.batches = self.records = ()
        if isinstance(self.partition, TailPartition) and not self.partition.holds(self.target.fetch_offset):
            self.batches = self.records = ()  # they left the window, and so did their aborted transactions


def build_response(
    serving: Serving,
    plan: FetchPlan,
    reads: Iterable[PartitionRead],
    isolation_level: int,
    exchange: Exchange,
) -> FetchResponse:
    """Build the response from `reads`, in their order, and note in the session what it contains."""
    api_version = exchange.api_version
    responses: list[FetchableTopicResponse] = []
    leaders: dict[int, Member] = {}
    previous: str | bytes | None = None
    partitions: list[PartitionData] = []
    for read in reads:
        target = read.target
        if not _note_news(read) and plan.incremental:
            continue
        topic = target.key[0]
        if topic != previous:
            previous = topic
            partitions = []
            if isinstance(topic, str):
                responses.append(FetchableTopicResponse(topic=topic, partitions=partitions))
            else:
                assert api_version >= TOPIC_IDS_SINCE, "ids name topics from this version on"
                responses.append(FetchableTopicResponse(topic_id=topic, partitions=partitions))
        data = _partition_data(read, isolation_level)
        if read.error and read.error in WITH_LEADER and api_version >= LEADERS_SINCE:
            found = find_leadership(serving, *target.key)
            if found is not None and found.leader is not None:
                leaders[found.leader.node_id] = found.leader
                leader = LeaderIdAndEpoch(leader_id=found.leader.node_id, leader_epoch=found.leader_epoch)
                data = dataclasses.replace(data, current_leader=leader)
        partitions.append(data)
        if read.preferred_replica >= 0:
            serving.replicas.note_redirect(by_leader=isinstance(read.partition, Partition))
        if read.batches and read.partition is not None:
            plan.served(target)
            size_bytes = sum(map(len, read.records))
            exchange.connection.traffic.note_sent(read.partition.stream_id, size_bytes)
            if isinstance(read.partition, Partition):
                read.partition.note_sent(size_bytes)
            else:
                serving.replicas.note_sent(read.partition, size_bytes)
    endpoints = [
        NodeEndpoint(node_id=leader.node_id, host=address.host, port=address.port, rack=leader.rack or None)
        for leader in (leaders.values() if api_version >= ENDPOINTS_SINCE else ())
        if (address := leader.at(exchange.listener)) is not None
    ]
    return FetchResponse(session_id=plan.session_id, responses=responses, node_endpoints=endpoints)


def _note_news(read: PartitionRead) -> bool:
    """Return whether the response must contain the partition, and note what the client then has of it."""
    target, partition = read.target, read.partition
    failed = bool(read.error) or read.diverging is not None
    news = bool(read.batches) or failed or target.sent_error or read.preferred_replica >= 0
    target.sent_error = failed
    if partition is not None and not failed:
        high_watermark, log_start_offset = partition.high_watermark, partition.log_start_offset
        if target.sent_high_watermark != high_watermark or target.sent_log_start_offset != log_start_offset:
            news = True
        target.sent_high_watermark = high_watermark
        target.sent_log_start_offset = log_start_offset
    return news


def _partition_data(read: PartitionRead, isolation_level: int) -> PartitionData:
    index = read.target.key[1]
    partition = read.partition
    if read.error != ErrorCode.NONE or partition is None:
        return PartitionData(
            partition_index=index,
            error_code=read.error,
            high_watermark=-1,
            aborted_transactions=() if read.is_not_read else None,
            preferred_read_replica=read.preferred_replica,
            records=b"",
        )
    data = PartitionData(
        partition_index=index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=_aborted(read, partition) if isolation_level == READ_COMMITTED else None,
        records=read.records,
        preferred_read_replica=read.preferred_replica,
    )
    return data if read.diverging is None else dataclasses.replace(data, diverging_epoch=read.diverging)


def _aborted(read: PartitionRead, partition: Partition | ReplicaPartition | TailPartition) -> list[AbortedTransaction]:
    """List the aborted transactions within what was read. The client drops their records."""
    if not read.batches:
        return []
    entries = list(partition.transactions.aborted_between(read.target.fetch_offset, read.batches[-1].end_offset))
    bases = _bases(read.batches) if any(map(partition.is_vacated, entries)) else {}
    return [
        AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in entries
        if not partition.is_vacated(entry) or _is_among(entry, bases)
    ]


def _bases(batches: Sequence[StreamBatch]) -> Mapping[int, Sequence[int]]:
    """Return the base offsets of batches in order, by producer."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        header = parse_batch(batch.payload)
        found.setdefault(header.producer_id, []).append(header.base_offset)
    return found


def _is_among(entry: AbortedEntry, bases: Mapping[int, Sequence[int]]) -> bool:
    """Return whether one of the batches, given as `_bases`, has data of the transaction."""
    mine = bases.get(entry.producer_id, ())
    at = bisect_left(mine, entry.first_offset)
    return at < len(mine) and mine[at] < entry.last_offset
