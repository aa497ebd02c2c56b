"""DescribeProducers: active producers of partitions with their open transactions, to find hanging ones."""

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(node: Node, request: DescribeProducersRequest, _exchange: Exchange) -> DescribeProducersResponse:
    """Answer at once."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[_described(node, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _described(node: Node, topic: str, index: int) -> PartitionResponse:
    try:
        partition = node.topics.partition(topic, index)
    except KafkaError as error:
        # As in Kafka: an unknown topic has a message, an unknown partition of a known topic has none.
        message = error.message if node.topics.get(topic) is None else None
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=message)
    return PartitionResponse(partition_index=index, active_producers=_producers(partition))


def _producers(partition: Partition) -> list[ProducerState]:
    transactions = partition.transactions
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
            last_timestamp=entry.last_used_ms,
            coordinator_epoch=transactions.coordinator_epoch(producer_id),
            current_txn_start_offset=(
                transactions.open[producer_id].first_offset if producer_id in transactions.open else -1
            ),
        )
        for producer_id, entry in partition.producers.entries.items()
    ]
