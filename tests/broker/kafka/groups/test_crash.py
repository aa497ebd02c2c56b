"""A node killed while a group works: every acknowledged commit is there after the restart."""

import asyncio
from pathlib import Path

import pytest

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.support.node import NodeProcess
from tests.support.raw_client import RawClient, raw_client

KILLED_AFTER_COMMITS = (1, 7, 60, 300)
UNDER_WAY = 5
TIMEOUT_S = 60


async def prepare(client: RawClient) -> JoinGroupResponse:
    """Make a topic and a group with one member in it."""
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    await client.call(CreateTopicsRequest(topics=topics))
    await client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=protocols,
    )
    joined: JoinGroupResponse = await client.call(join, 3)
    assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    await client.call(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
    )
    return joined


def commit(member: JoinGroupResponse, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=str(offset))
    return OffsetCommitRequest(
        group_id="g",
        member_id=member.member_id,
        generation_id_or_member_epoch=member.generation_id,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )


async def committed(client: RawClient) -> int:
    """Return the committed offset, once the group is loaded."""
    while True:
        fetched = await client.call(OffsetFetchRequest(group_id="g", topics=None), 7)
        if fetched.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    assert fetched.error_code == ErrorCode.NONE
    (partition,) = fetched.topics[0].partitions
    assert partition.metadata == str(partition.committed_offset)
    return int(partition.committed_offset)


@pytest.mark.slow
async def test_acknowledged_commits_survive_every_kill(tmp_path: Path) -> None:
    acked = 0
    with NodeProcess(tmp_path) as node:
        async with asyncio.timeout(TIMEOUT_S), raw_client(node.bootstrap) as client:
            member = await prepare(client)
        heartbeat = HeartbeatRequest(group_id="g", generation_id=member.generation_id, member_id=member.member_id)
        for count in KILLED_AFTER_COMMITS:
            async with asyncio.timeout(TIMEOUT_S), raw_client(node.bootstrap) as client:
                assert acked == 0 or await committed(client) == acked
                for _ in range(count):
                    response = await client.call(commit(member, acked + 1), 9)
                    assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
                    acked += 1
                for late in range(UNDER_WAY):
                    client.send(commit(member, acked + 1 + late), 9)
                node.kill9()
            node.start()
            async with asyncio.timeout(TIMEOUT_S), raw_client(node.bootstrap) as client:
                found = await committed(client)
                assert acked <= found <= acked + UNDER_WAY
                assert (await client.call(heartbeat)).error_code == ErrorCode.NONE
                acked = found
