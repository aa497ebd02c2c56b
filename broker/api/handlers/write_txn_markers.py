"""WriteTxnMarkers: end transactions in partitions. Answered when all markers are durable.

Coordinators on other nodes send it, and tools that end a hanging transaction (`kafka-transactions abort`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.transactions.markers import NOT_CHECKED, Marker
from anabranch.broker.kafka.transactions.state_machine import VERSION_2
from anabranch.broker.node.net.exchange import Exchange, Peer
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.write_txn_markers import (
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from anabranch.s3stream.errors import StorageError, StorageFull
from anabranch.wal.interface import WalError

Outcomes = Sequence[Sequence["asyncio.Future[ErrorCode]"]]
"""Outcomes of a marker, by topic and partition in the order of the request."""


async def handle(serving: Serving, request: WriteTxnMarkersRequest, exchange: Exchange) -> WriteTxnMarkersResponse:
    """Write the markers in the order of the request.

    All are appended before any is waited for: a request that was overtaken while it waited would be appended late.
    """
    overtaken = _is_overtaken(serving, request.sender, exchange.peer)
    outcomes = [_refuse(marker) if overtaken else _append(serving, marker) for marker in request.markers]
    results = [await _result(*each) for each in zip(request.markers, outcomes, strict=True)]
    return WriteTxnMarkersResponse(markers=results)


def _is_overtaken(serving: Serving, sender: MarkerSender | None, peer: Peer | None) -> bool:
    """Return whether a later request of the same sender has been received, or the sender is not the node that sent it.

    Apache Kafka's protocol has no such field, so a client's is ignored: it could name another node, whose own requests
    would be refused from then on.
    """
    if sender is None or peer is None:
        return False
    return (sender.node_id, sender.node_epoch) != peer or not serving.markers.admit(sender)


def _refuse(requested: WritableTxnMarker) -> Outcomes:
    """Return the outcomes for a late copy of a request whose sender has given it up."""
    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    return [[_outcome(code) for _ in topic.partition_indexes] for topic in requested.topics]


def _append(serving: Serving, requested: WritableTxnMarker) -> Outcomes:
    marker = Marker(
        Producer(requested.producer_id, requested.producer_epoch),
        requested.transaction_result,
        requested.coordinator_epoch,
        bumped=requested.transaction_version >= VERSION_2,
    )
    return [
        [
            _begin(serving, TopicPartition(topic.name, index), marker, leader_epoch)
            for index, leader_epoch in zip(topic.partition_indexes, _leader_epochs(topic), strict=True)
        ]
        for topic in requested.topics
    ]


def _leader_epochs(topic: WritableTxnMarkerTopic) -> Sequence[int]:
    count = len(topic.partition_indexes)
    return topic.leader_epochs if len(topic.leader_epochs) == count else [NOT_CHECKED] * count


async def _result(requested: WritableTxnMarker, outcomes: Outcomes) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=requested.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=await outcome)
                    for index, outcome in zip(topic.partition_indexes, of_topic, strict=True)
                ],
            )
            for topic, of_topic in zip(requested.topics, outcomes, strict=True)
        ],
    )


def _begin(serving: Serving, where: TopicPartition, marker: Marker, leader_epoch: int) -> "asyncio.Future[ErrorCode]":
    outcome = _outcome()
    try:
        serving.markers.write(where, marker, partial(_done, outcome), leader_epoch=leader_epoch)
    except KafkaError as error:
        outcome.set_result(error.code)
    except StorageFull:
        outcome.set_result(ErrorCode.NOT_ENOUGH_REPLICAS)  # the code of this API that clients retry
    except StorageError:
        outcome.set_result(ErrorCode.KAFKA_STORAGE_ERROR)
    return outcome


def _outcome(code: ErrorCode | None = None) -> "asyncio.Future[ErrorCode]":
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    if code is not None:
        outcome.set_result(code)
    return outcome


def _done(outcome: "asyncio.Future[ErrorCode]", error: WalError | None) -> None:
    if not outcome.done():
        outcome.set_result(ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR)


def guard(caller: Caller, request: WriteTxnMarkersRequest) -> Verdict:
    """Check ALTER or CLUSTER_ACTION on the cluster."""
    may_alter = caller.may_cluster(AclOperation.ALTER, audited=False)
    if may_alter or caller.may_cluster(AclOperation.CLUSTER_ACTION):
        return Passed(request)
    return Refused(
        WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index, error_code=CLUSTER_DENIED)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )
    )


def _changes(_request: WriteTxnMarkersRequest, response: WriteTxnMarkersResponse) -> Iterable[Change]:
    for marker in response.markers:
        for topic in marker.topics:
            for each in topic.partitions:
                yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


API = declare(
    WriteTxnMarkersRequest,
    handle,
    guard=guard,
    changes=_changes,
    metered=Metered.NOTHING,  # as in Apache Kafka
)
