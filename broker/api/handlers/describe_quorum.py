"""DescribeQuorum: the living nodes as voters, the controller as their leader.

The catalog replaces Kafka's metadata log. The log's end, and the leader's offset, is the number of the last change in
the catalog; the offset of another voter is the number of the last change that it has applied. Nodes ask each other for
it.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import describe_quorum
from anabranch.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    PartitionData,
    PartitionDataResponse,
    ReplicaState,
    TopicData,
    TopicDataResponse,
)
from anabranch.s3stream.errors import StorageError

NODES_SINCE = 2
UNKNOWN = -1
"""Offset of a node that does not answer, and times that are not known."""


def handle(
    serving: Serving, request: DescribeQuorumRequest, exchange: Exchange
) -> DescribeQuorumResponse | Coroutine[Any, Any, DescribeQuorumResponse]:
    """Describe partition 0 of the metadata log. A request for anything else is refused."""
    requested = [
        (topic.topic_name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    if requested != [(CLUSTER_METADATA_TOPIC, 0)]:
        return DescribeQuorumResponse(
            error_message="", topics=[_unknown(topic, exchange.api_version) for topic in request.topics]
        )
    return _respond(serving, exchange.api_version)


def report(serving: Serving, _request: DescribeQuorumRequest, exchange: Exchange) -> DescribeQuorumResponse:
    """Answer another node: how far this one has come, and why it does not reach the other. Without other voters."""
    assert exchange.peer is not None, "only authenticated nodes are served"
    own = serving.members.own
    found = _response(_describe([own], own.node_id, serving.membership.version, {}, serving.now_ms()))
    return replace(found, error_message=serving.reach.failure_of(exchange.peer.node_id))


async def _respond(serving: Serving, api_version: int) -> DescribeQuorumResponse:
    living, leader_id = serving.members.living(), serving.members.controller_id
    try:
        end_offset = await serving.catalog.last_change()
    except StorageError:
        end_offset = serving.membership.version
    others = [member.node_id for member in living if member is not serving.members.own]
    offsets = {serving.node_id: serving.membership.version}
    async with asyncio.TaskGroup() as group:
        asked = {node_id: group.create_task(_ask(serving, node_id)) for node_id in others}
    offsets |= {node_id: task.result() for node_id, task in asked.items()}
    end_offset = max(end_offset, *offsets.values())
    partition = _describe(living, leader_id, end_offset, offsets, serving.now_ms())
    return _response(partition, [_node(member) for member in living] if api_version >= NODES_SINCE else ())


async def _ask(serving: Serving, node_id: int) -> int:
    """Return the last change that another node has applied, or UNKNOWN if it does not answer."""
    topic = TopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))
    try:
        answer: DescribeQuorumResponse = await serving.links.call(
            node_id, DescribeQuorumRequest(topics=(topic,)), NODES_SINCE
        )
    except PeerUnavailable:
        return UNKNOWN
    voters = [voter for each in answer.topics for part in each.partitions for voter in part.current_voters]
    return next((voter.log_end_offset for voter in voters if voter.replica_id == node_id), UNKNOWN)


def _response(partition: PartitionDataResponse, nodes: Sequence[describe_quorum.Node] = ()) -> DescribeQuorumResponse:
    topic = TopicDataResponse(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    return DescribeQuorumResponse(error_message="", topics=(topic,), nodes=nodes)


def _describe(
    living: Sequence[Member], leader_id: int, end_offset: int, offsets: Mapping[int, int], now_ms: int
) -> PartitionDataResponse:
    """Describe the quorum of the living nodes, the leader of which has all changes there are."""
    return PartitionDataResponse(
        error_message="",
        leader_id=leader_id,
        leader_epoch=next(member.epoch for member in living if member.node_id == leader_id),
        high_watermark=end_offset,
        current_voters=[
            _voter(
                member.node_id,
                end_offset if member.node_id == leader_id else offsets[member.node_id],
                end_offset,
                now_ms,
            )
            for member in living
        ],
    )


def _voter(node_id: int, offset: int, end_offset: int, now_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=node_id,
        log_end_offset=offset,
        last_fetch_timestamp=UNKNOWN if offset == UNKNOWN else now_ms,
        last_caught_up_timestamp=now_ms if offset >= end_offset else UNKNOWN,
    )


def _node(member: Member) -> describe_quorum.Node:
    listeners = [Listener(name=each.name, host=each.host, port=each.port) for each in member.listeners]
    return describe_quorum.Node(node_id=member.node_id, listeners=listeners)


def _unknown(topic: TopicData, version: int) -> TopicDataResponse:
    message = "This server does not host this topic-partition." if version >= NODES_SINCE else ""
    return TopicDataResponse(
        topic_name=topic.topic_name,
        partitions=[
            PartitionDataResponse(
                partition_index=partition.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=message,
            )
            for partition in topic.partitions
        ],
    )


def refusal(_request: DescribeQuorumRequest, _version: int) -> DescribeQuorumResponse:
    """Return the answer to a client that is not authorized."""
    return DescribeQuorumResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)


API = declare(DescribeQuorumRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE, refusal))
