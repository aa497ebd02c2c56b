"""WriteTxnMarkers: end transactions in partitions. Answered when all markers are durable.

Coordinators on other nodes send it, and tools that end a hanging transaction (`kafka-transactions abort`).
"""

import asyncio
from functools import partial

from broker.coordination.topic_partition import TopicPartition
from broker.net.exchange import Exchange
from broker.node import Node
from broker.partitions.producers import Producer
from broker.transactions.markers import Marker
from broker.transactions.state_machine import VERSION_2
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from s3stream.errors import StorageError, StorageFull
from wal.interface import WalError


async def handle(node: Node, request: WriteTxnMarkersRequest, _exchange: Exchange) -> WriteTxnMarkersResponse:
    """Write the markers in the order of the request."""
    return WriteTxnMarkersResponse(markers=[await _write(node, marker) for marker in request.markers])


async def _write(node: Node, requested: WritableTxnMarker) -> WritableTxnMarkerResult:
    marker = Marker(
        Producer(requested.producer_id, requested.producer_epoch),
        requested.transaction_result,
        requested.coordinator_epoch,
        bumped=requested.transaction_version >= VERSION_2,
    )
    outcomes = [
        (
            topic.name,
            [(index, _begin(node, TopicPartition(topic.name, index), marker)) for index in topic.partition_indexes],
        )
        for topic in requested.topics
    ]
    return WritableTxnMarkerResult(
        producer_id=requested.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=await outcome)
                    for index, outcome in partitions
                ],
            )
            for name, partitions in outcomes
        ],
    )


def _begin(node: Node, where: TopicPartition, marker: Marker) -> "asyncio.Future[ErrorCode]":
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    try:
        node.markers.write(where, marker, partial(_done, outcome))
    except KafkaError as error:
        outcome.set_result(error.code)
    except StorageFull:
        outcome.set_result(ErrorCode.NOT_ENOUGH_REPLICAS)  # the code of this API that clients retry
    except StorageError:
        outcome.set_result(ErrorCode.KAFKA_STORAGE_ERROR)
    return outcome


def _done(outcome: "asyncio.Future[ErrorCode]", error: WalError | None) -> None:
    if not outcome.done():
        outcome.set_result(ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR)
