"""A transactional producer whose id and epoch several processes may use, each for its own partitions (KIP-98, KIP-360).

One process begins and ends the transactions; others write with the same id and epoch. Sequences are counted for each
partition, so a partition belongs to one writer within a transaction.

Requests have the versions from before KIP-890: there a transaction's partitions are added explicitly, and its end does
not change the epoch. Every broker with transactions serves them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from anabranch.client.cluster import GROUP, TRANSACTION, Cluster, Place, topic_error
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from anabranch.protocol.records import Record, build_batch

RETRY_PAUSE_S: Final = 0.1
TIMEOUT_S: Final = 60.0
"""Time for which a request is repeated while nodes are away or partitions and coordinators move."""
PRODUCE_TIMEOUT_MS: Final = 30_000
_VERSION_MAX: Final[Mapping[type[object], int]] = {
    AddPartitionsToTxnRequest: 3,
    AddOffsetsToTxnRequest: 3,
    TxnOffsetCommitRequest: 4,
    EndTxnRequest: 4,
    ProduceRequest: 11,
    OffsetFetchRequest: 7,
}
_TRANSIENT: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class ProducerFenced(ClientError):
    """Another process has begun with the transactional id, or the transaction took too long and was aborted."""


class ProducerIdentity(NamedTuple):
    """Id and epoch by which brokers know a transactional producer."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(slots=True)
class TransactionalProducer:
    """Requests of transactions. Every failure is a ClientError; ProducerFenced if the identity is not in force."""

    open_cluster: Callable[[], Cluster]
    """Connects anew: after a failure, and at first."""
    timeout_s: float = TIMEOUT_S
    _cluster: Cluster | None = None
    _leaders: dict[Place, int] = field(default_factory=dict)

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._leaders.clear()

    def begin(
        self, transactional_id: str, timeout_ms: int, *, after: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Return an identity with a new epoch; an open transaction of the id is aborted, and earlier epochs fenced.

        With `after` only if that is the newest identity, and has ended its transaction: else ProducerFenced.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if after is None else after.producer_id,
            producer_epoch=-1 if after is None else after.epoch,
        )
        found: InitProducerIdResponse | None = None

        def send(cluster: Cluster) -> int:
            nonlocal found
            found = cluster.coordinator(transactional_id, TRANSACTION).call(request)
            assert found is not None, "as it was received"
            return found.error_code

        self._repeat(f"transactional id {transactional_id}", send)
        assert found is not None, "it was sent"
        return ProducerIdentity(transactional_id, found.producer_id, found.producer_epoch)

    def add_partitions(self, identity: ProducerIdentity, topic: str, partitions: Sequence[int]) -> None:
        """Make partitions part of the transaction, before anything is produced to them."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=partitions)],
        )

        def send(cluster: Cluster) -> int:
            answer = self._call(cluster.coordinator(identity.transactional_id, TRANSACTION), request)
            codes = [
                each.partition_error_code
                for found in answer.results_by_topic_v3_and_below
                for each in found.results_by_partition
            ]
            return _worst(codes)

        self._repeat(f"topic {topic}", send)

    def produce(
        self,
        identity: ProducerIdentity,
        place: Place,
        records: Sequence[Record],
        sequence: int,
        compression: Compression = Compression.NONE,
    ) -> None:
        """Append records, the first being the partition's `sequence`th in the epoch. A repeat is harmless."""
        batch = build_batch(
            records,
            compression=compression,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        topic, partition = place
        request = ProduceRequest(
            transactional_id=identity.transactional_id,
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))]
                )
            ],
        )

        def send(cluster: Cluster) -> int:
            answer = self._call(cluster.node(self._leader(cluster, place)), request)
            code: int = answer.responses[0].partition_responses[0].error_code
            return 0 if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else code

        self._repeat(f"{topic}-{partition}", send)

    def commit_offsets(self, identity: ProducerIdentity, group: str, offsets: Mapping[Place, int]) -> None:
        """Make a group's offsets in one topic part of the transaction."""
        joining = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group,
        )
        self._repeat(
            f"group {group}",
            lambda cluster: self._call(cluster.coordinator(identity.transactional_id, TRANSACTION), joining).error_code,
        )
        (topic,) = {topic for topic, _ in offsets}
        committed = [
            TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
            for (_, partition), offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=committed)],
        )

        def send(cluster: Cluster) -> int:
            answer = self._call(cluster.coordinator(group, GROUP), request)
            return _worst([each.error_code for each in answer.topics[0].partitions])

        self._repeat(f"group {group}", send)

    def end(self, identity: ProducerIdentity, *, commit: bool) -> None:
        """Commit or abort. After a ClientError that is not ProducerFenced, either may have happened."""
        request = EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        self._repeat(
            f"transactional id {identity.transactional_id}",
            lambda cluster: self._call(cluster.coordinator(identity.transactional_id, TRANSACTION), request).error_code,
        )

    def committed_offsets(self, group: str, places: Sequence[Place]) -> dict[Place, int]:
        """Return a group's offsets in one topic, or -1, once no transaction that commits one is open."""
        (topic,) = {topic for topic, _ in places}
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition for _, partition in places])],
            require_stable=True,
        )
        offsets: dict[Place, int] = {}

        def send(cluster: Cluster) -> int:
            answer = self._call(cluster.coordinator(group, GROUP), request)
            if answer.error_code:
                return int(answer.error_code)
            found = answer.topics[0].partitions
            offsets.update({(topic, each.partition_index): each.committed_offset for each in found})
            return _worst([each.error_code for each in found])

        self._repeat(f"group {group}", send)
        return offsets

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, which must exist."""
        count = 0

        def send(cluster: Cluster) -> int:
            nonlocal count
            (found,) = cluster.describe_topics([topic]).topics
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise topic_error(topic, found.error_code)
            count = len(found.partitions)
            return found.error_code

        self._repeat(f"topic {topic}", send, repeat_errors=False)
        return count

    def _leader(self, cluster: Cluster, place: Place) -> int:
        if place not in self._leaders:
            (topic,) = cluster.topics([place[0]])
            for each in topic.partitions:
                self._leaders[place[0], each.partition_index] = each.leader_id
        if place not in self._leaders:
            raise ClientError(f"topic {place[0]} has no partition {place[1]}")
        return self._leaders[place]

    def _call(self, connection: Any, request: object) -> Any:
        return connection.call(request, version_max=_VERSION_MAX[type(request)])

    def _repeat(self, what: str, send: Callable[[Cluster], int], *, repeat_errors: bool = True) -> None:
        """Send until the answer is no error, or none that passes."""
        until = time.perf_counter() + self.timeout_s
        while True:
            try:
                if self._cluster is None:
                    self._cluster = self.open_cluster()
                code = send(self._cluster)
            except ClientError:  # a node is away: others may take over
                if not repeat_errors or time.perf_counter() > until:
                    raise
            else:
                if not code:
                    return
                if code in _FENCED:
                    raise ProducerFenced(
                        f"{what}: {error_text(code)}: another process has begun with the transactional id, or the "
                        "transaction was aborted since it took too long"
                    )
                if code not in _TRANSIENT or time.perf_counter() > until:
                    raise ClientError(f"{what}: {error_text(code)}")
                if code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    time.sleep(RETRY_PAUSE_S)
                    continue
            self.close()
            time.sleep(RETRY_PAUSE_S)


def _worst(codes: Sequence[int]) -> int:
    """Return an error that does not pass if there is one, else one that does, else 0."""
    failed = [code for code in codes if code]
    return next((code for code in failed if code not in _TRANSIENT), failed[0] if failed else 0)
