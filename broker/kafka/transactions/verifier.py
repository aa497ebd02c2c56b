"""Asks the coordinator of a transactional id, on any node, whether a producer may write to a partition.

Transactions of version 1 are verified, those of version 2 get the partition added (KIP-890, AddPartitionsToTxn 4+).
When the answer arrives the transaction may have ended already. So the caller begins a verification at the partition
first, and appends only while it is valid (`broker.kafka.partitions.transactions`).

A coordinator that was replaced without knowing it may answer from memory. Its answer is ignored if the partition has a
marker of a newer coordinator. Without such a marker the partition has no end of the transaction either, and it will get
one: the successor knows all that the coordinator has answered for.
"""

import asyncio
from contextlib import suppress
from typing import Final

from anabranch.broker.kafka.coordination.internal_topics import TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.state_machine import VERSION_2
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.protocol.errors import ErrorCode, KafkaError, known_code
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from anabranch.s3stream.catalog.values import PartitionInfo

API_VERSION: Final = 5
ASK_S: Final = 2.0
"""Longest search for a coordinator that answers, after which the client must try again."""
PAUSE_S: Final = 0.02
"""Pause before the coordinator is looked for again: it moves, loads, or is about to end the previous transaction."""
TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator's node has not heard of a new topic yet
    }
)


class TransactionVerifier:
    """Verifies and adds partitions with the coordinators of all nodes."""

    def __init__(self, coordinator: TransactionCoordinator, topics: TopicMap, peers: Peers, *, node_id: int) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._peers = peers
        self._node_id = node_id

    def leads_elsewhere(self, transactional_id: str) -> bool:
        """Return whether another node leads the partition of `__transaction_state` that the id belongs to."""
        return self._led_elsewhere(transactional_id) is not None

    async def ask(
        self, transactional_id: str, producer: Producer, where: TopicPartition, *, add: bool, marked_by: int
    ) -> None:
        """Return if the partition is in the open transaction; with `add`, add it first.

        `marked_by` is the epoch of the coordinator that wrote the producer's last marker in the partition. Raises
        KafkaError, and StorageError if this node is the coordinator.
        """
        if self.leads_elsewhere(transactional_id):
            await self._ask_elsewhere(transactional_id, producer, where, add=add, marked_by=marked_by)
        elif add:
            await self._coordinator.add(transactional_id, producer, [where], VERSION_2)
        else:
            self._coordinator.verify(transactional_id, producer, where)

    async def _ask_elsewhere(
        self, transactional_id: str, producer: Producer, where: TopicPartition, *, add: bool, marked_by: int
    ) -> None:
        request = _request(transactional_id, producer, where, add=add)
        refusal = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while (info := self._led_elsewhere(transactional_id)) is not None:
                    code = ErrorCode.NOT_COORDINATOR  # of the node that the map names, which is out of date
                    if info.leader_epoch >= marked_by:
                        code = await self._call(info.leader, request)
                    if code == ErrorCode.NONE:
                        return
                    refusal = KafkaError(code)
                    if code not in TRY_AGAIN:
                        break
                    await asyncio.sleep(PAUSE_S)
        raise refusal

    async def _call(self, node_id: int, request: AddPartitionsToTxnRequest) -> ErrorCode:
        """Return the code for the request's only partition."""
        try:
            response: AddPartitionsToTxnResponse = await self._peers.call(node_id, request, API_VERSION)
        except PeerUnavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        codes = [
            partition.partition_error_code
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for partition in topic.results_by_partition
        ]
        return known_code(response.error_code or (codes[0] if len(codes) == 1 else None))

    def _led_elsewhere(self, transactional_id: str) -> PartitionInfo | None:
        topic = self._topics.get(TRANSACTION_TOPIC)
        if topic is None:
            return None
        info = topic.info.partitions[partition_of(transactional_id, len(topic.info.partitions))]
        return None if info.leader in {self._node_id, -1} else info


def _request(
    transactional_id: str, producer: Producer, where: TopicPartition, *, add: bool
) -> AddPartitionsToTxnRequest:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=not add,
        topics=[AddPartitionsToTxnTopic(name=where.topic, partitions=[where.partition])],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])
