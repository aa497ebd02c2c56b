"""DescribeProducers: active producers of partitions with their open transactions, to find hanging ones."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TOPIC_DENIED, Verdict, merged, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import partitions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)


def handle(serving: Serving, request: DescribeProducersRequest, _exchange: Exchange) -> DescribeProducersResponse:
    """Answer at once."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_described(serving, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _described(serving: Serving, topic: str, index: int) -> PartitionResponse:
    try:
        partition = serving.topics.partition(topic, index)
    except KafkaError as error:
        # As in Kafka: an unknown topic has a message, an unknown partition of a known topic has none.
        message = error.message if serving.topics.get(topic) is None else None
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


def guard(caller: Caller, request: DescribeProducersRequest) -> Verdict:
    """Check READ on each topic."""
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    return merged(replace(request, topics=allowed), [_denied(topic) for topic in denied])


def _denied(topic: TopicRequest) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=[
            PartitionResponse(partition_index=index, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message)
            for index in topic.partition_indexes
        ],
    )


API = declare(
    DescribeProducersRequest,
    handle,
    guard=guard,
    waits_for=partitions(
        lambda request: ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
    ),
    relayed=True,
)
