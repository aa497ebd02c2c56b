"""ElectLeaders (KIP-460): a preferred leader leads whenever it can; an unclean election accepts the loss of a log.

An unclean election is for partitions whose newest records are in the log of a dead node that nobody can open. They are
given up: other nodes open the partitions at their committed ends, and the loss is logged with offsets. A partition that
has a leader, or whose log can be recovered, keeps what it has.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from broker.handlers.leadership import find_leadership, leadership_of
from broker.membership.failover import TakeoverRefused
from broker.net.exchange import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from s3stream.errors import StorageError

PREFERRED, UNCLEAN = 0, 1


def handle(
    node: Node, request: ElectLeadersRequest, _exchange: Exchange
) -> ElectLeadersResponse | Coroutine[Any, Any, ElectLeadersResponse]:
    """Elect leaders, or answer why no election is needed. If all are requested, only the others are named."""
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return _refuse(request)
    results = (
        _find_all(node, request.election_type)
        if request.topic_partitions is None
        else [_elect_in(node, request.election_type, requested) for requested in request.topic_partitions]
    )
    if request.election_type == UNCLEAN and _without_leader(results):
        return _elect_unclean(node, results, request.timeout_ms / 1000)
    return ElectLeadersResponse(replica_election_results=results)


def _find_all(node: Node, election_type: int) -> list[ReplicaElectionResult]:
    results = []
    for topic in node.topics:
        found = [_elect(node, election_type, topic.name, index) for index in range(len(topic.partitions))]
        unable = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(ReplicaElectionResult(topic=topic.name, partition_result=unable))
    return results


def _without_leader(results: Sequence[ReplicaElectionResult]) -> list[tuple[str, int]]:
    return [
        (result.topic, partition.partition_id)
        for result in results
        for partition in result.partition_result
        if partition.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    ]


async def _elect_unclean(
    node: Node, results: Sequence[ReplicaElectionResult], timeout_s: float
) -> ElectLeadersResponse:
    """Give up what only dead nodes' logs have of the partitions that have no leader; answer when they have one."""
    owned: dict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
    for name, index in _without_leader(results):
        topic = node.topics.get(name)
        assert topic is not None, "a partition without a leader exists"
        info = topic.info.partitions[index]
        owned[info.owner][info.stream_id] = (name, index)
    answers: dict[tuple[str, int], PartitionResult] = {}
    for owner, partitions in owned.items():
        answers |= await _give_up(node, owner, partitions)
    elected = [place for place, answer in answers.items() if answer.error_code == ErrorCode.NONE]
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0, timeout_s)):
            while any(_has_no_leader(node, *place) for place in elected):
                await node.topics.changed()
    return ElectLeadersResponse(
        replica_election_results=[
            replace(
                result,
                partition_result=[
                    answers.get((result.topic, each.partition_id), each) for each in result.partition_result
                ],
            )
            for result in results
        ]
    )


async def _give_up(
    node: Node, owner: int, partitions: dict[int, tuple[str, int]]
) -> dict[tuple[str, int], PartitionResult]:
    """Give up partitions, by stream id, of one owner; return the answer for each."""
    code, message = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ""
    given_up: set[int] = set()
    if owner < 0 or owner == node.node_id:
        message = "no other node's log holds records of it" if owner < 0 else "this node has it open: see its log"
    else:
        try:
            given_up = set(await node.operations.give_up_partitions(owner, partitions.keys()))
        except TakeoverRefused as error:
            message = str(error)
        except StorageError as error:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return {
        (name, index): PartitionResult(partition_id=index)
        if stream_id in given_up
        else PartitionResult(partition_id=index, error_code=code, error_message=message or code.message)
        for stream_id, (name, index) in partitions.items()
    }


def _has_no_leader(node: Node, name: str, index: int) -> bool:
    found = find_leadership(node, name, index)
    return found is not None and found.leader is None


def _elect_in(node: Node, election_type: int, requested: TopicPartitions) -> ReplicaElectionResult:
    results = [_elect(node, election_type, requested.topic, index) for index in requested.partitions]
    return ReplicaElectionResult(topic=requested.topic, partition_result=results)


def _elect(node: Node, election_type: int, name: str, index: int) -> PartitionResult:
    topic = node.topics.get(name)
    code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if topic is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif not 0 <= index < len(topic.partitions):
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    elif leadership_of(node, topic, index).leader is None:
        code = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if election_type == PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        message = code.message
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


def _refuse(request: ElectLeadersRequest) -> ElectLeadersResponse:
    message = f"Unknown election type {request.election_type}"
    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(
                topic=requested.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=ErrorCode.INVALID_REQUEST, error_message=message)
                    for index in requested.partitions
                ],
            )
            for requested in request.topic_partitions or ()
        ],
    )
