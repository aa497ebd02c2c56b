"""Members of consumer groups, of the classic protocol and of the new one (KIP-848), and what their commits promise."""

import asyncio
from collections.abc import Mapping
from typing import Any

from anabranch.protocol.codec import decode, encode_versioned, read_version
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from anabranch.protocol.messages.embedded.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitionResponse,
)
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.consumers import committed_offset
from tests.simulation.history import TopicPartition, Violation
from tests.simulation.routing import Client, Lost, Refused, check
from tests.simulation.world import World

SESSION_MS = 3_000
REBALANCE_MS = 3_000
REJOIN = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.MEMBER_ID_REQUIRED,
}


class GroupHistory:
    """Commits of a group, as far as its members know. Each goes on from the committed offset, and only forward."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.acked: dict[TopicPartition, int] = {}
        self.sent: dict[TopicPartition, int] = {}
        self._all_acked: set[tuple[TopicPartition, int]] = set()

    def begin(self, where: TopicPartition, found: int) -> None:
        """A member begins at a committed offset."""
        acked = self.acked.get(where, -1)
        if found < acked:
            raise Violation(f"group {self.group} {where}: committed offset {found}, {acked} was acked")
        if found > self.sent.get(where, -1):
            raise Violation(f"group {self.group} {where}: committed offset {found} was never sent")

    def send(self, where: TopicPartition, offset: int) -> None:
        self.sent[where] = max(self.sent.get(where, -1), offset)

    def ack(self, where: TopicPartition, offset: int) -> None:
        """A commit was acked. Each owner goes on from the committed offset, so that no offset is acked twice."""
        if (where, offset) in self._all_acked:
            raise Violation(f"group {self.group} {where}: {offset} was acked twice: there were two owners")
        self._all_acked.add((where, offset))
        self.acked[where] = max(offset, self.acked.get(where, -1))


class Member:
    """A member that counts up the offsets of its partitions. Subclasses speak one of the protocols."""

    stay_s = 20.0
    """Time after which it leaves, on average."""

    def __init__(self, world: World, name: str, history: GroupHistory, topics: Mapping[str, int]) -> None:
        self.client = Client(world, name)
        self.world = world
        self.random = self.client.random
        self.name = name
        self.history = history
        self.topics = topics
        self.member_id = ""
        self.epoch = 0
        """Generation or member epoch."""
        self.owned: dict[TopicPartition, int] = {}
        """Partitions with the offset committed last."""
        self.commits = 0

    async def run(self) -> None:
        while not self.world.faults_over.is_set():
            try:
                await self.join()
                await self._work()
            except Lost:
                await self.client.pause()
            except Refused as error:
                if error.code not in REJOIN and not error.code.retriable and error.code != -1:
                    raise Violation(str(error)) from error
                if error.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
                    self.member_id, self.epoch = "", 0
                await self.client.pause()
            self.owned.clear()

    async def _work(self) -> None:
        """Commit and beat until something ends the membership."""
        ends_s = self.world.now_s + self.random.expovariate(1 / self.stay_s)
        while not self.world.faults_over.is_set():
            await self.beat()
            for where in sorted(self.owned):
                await self._commit(where)
            if self.world.now_s > ends_s:
                await self.leave()
                return
            await asyncio.sleep(self.random.uniform(0.1, SESSION_MS / 4000))

    async def adopt(self, owned: set[TopicPartition]) -> None:
        """Take over partitions, from their committed offsets on."""
        self.owned = {where: offset for where, offset in self.owned.items() if where in owned}
        for where in sorted(owned - self.owned.keys()):
            known = self.history.acked.get(where, -1)
            found = await committed_offset(self.client, self.history.group, where)
            if found < known:
                raise Violation(f"group {self.history.group} {where}: committed {found}, {known} was acked before")
            self.owned[where] = max(found, self.world.first_offset)

    async def _commit(self, where: TopicPartition) -> None:
        offset = self.owned[where] + 1
        self.history.send(where, offset)
        answer = await self.client.call(
            OffsetCommitRequest(
                group_id=self.history.group,
                generation_id_or_member_epoch=self.epoch,
                member_id=self.member_id,
                topics=[
                    OffsetCommitRequestTopic(
                        name=where[0],
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=where[1], committed_offset=offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            9,
        )
        check(answer.topics[0].partitions[0].error_code, f"OffsetCommit {self.name}")
        self.history.ack(where, offset)
        self.owned[where] = offset
        self.commits += 1

    async def join(self) -> None:
        raise NotImplementedError

    async def beat(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError


class ClassicMember(Member):
    """A member of a group whose members assign the partitions."""

    async def join(self) -> None:
        subscription = encode_versioned(ConsumerProtocolSubscription(topics=sorted(self.topics)), 1)
        answer = await self.client.call(
            JoinGroupRequest(
                group_id=self.history.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(subscription))],
            ),
            5,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        check(answer.error_code, f"JoinGroup {self.name}")
        self.member_id, self.epoch = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == self.member_id:
            assignments = self._assign([each.member_id for each in answer.members])
        synced = await self.client.call(
            SyncGroupRequest(
                group_id=self.history.group,
                generation_id=self.epoch,
                member_id=self.member_id,
                assignments=assignments,
            ),
            3,
        )
        check(synced.error_code, f"SyncGroup {self.name}")
        found, _ = decode(ConsumerProtocolAssignment, synced.assignment, read_version(synced.assignment), 2)
        await self.adopt({(topic.topic, index) for topic in found.assigned_partitions for index in topic.partitions})

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """Give each partition to one member."""
        chosen: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        for topic, count in sorted(self.topics.items()):
            for index in range(count):
                member = members[index % len(members)]
                chosen[member].setdefault(topic, []).append(index)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=bytes(
                    encode_versioned(
                        ConsumerProtocolAssignment(
                            assigned_partitions=[
                                TopicPartitionResponse(topic=topic, partitions=partitions)
                                for topic, partitions in topics.items()
                            ]
                        ),
                        1,
                    )
                ),
            )
            for member, topics in chosen.items()
        ]

    async def beat(self) -> None:
        answer = await self.client.call(
            HeartbeatRequest(group_id=self.history.group, generation_id=self.epoch, member_id=self.member_id), 3
        )
        check(answer.error_code, f"Heartbeat {self.name}")

    async def leave(self) -> None:
        answer = await self.client.call(
            LeaveGroupRequest(group_id=self.history.group, members=[MemberIdentity(member_id=self.member_id)]), 3
        )
        check(answer.error_code, f"LeaveGroup {self.name}")
        self.member_id = ""


class ConsumerMember(Member):
    """A member of a group whose coordinator assigns the partitions."""

    names: dict[bytes, str] | None = None

    async def join(self) -> None:
        if self.names is None:
            await self._learn_names()
        if not self.member_id:
            self.member_id = f"{self.name}-{self.random.getrandbits(64):016x}"
        self.owned.clear()
        self.epoch = 0
        await self._heartbeat(joining=True)

    async def _learn_names(self) -> None:
        answer = await self.client.call(
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in sorted(self.topics)]), 12
        )
        for topic in answer.topics:
            check(topic.error_code, f"Metadata {topic.name}")
        self.names = {topic.topic_id: topic.name for topic in answer.topics}

    async def _heartbeat(self, *, joining: bool) -> None:
        assert self.names is not None
        ids = {name: topic_id for topic_id, name in self.names.items()}
        owned = [
            TopicPartitions(
                topic_id=ids[topic], partitions=[index for name, index in sorted(self.owned) if name == topic]
            )
            for topic in sorted({topic for topic, _ in self.owned})
        ]
        answer: Any = await self.client.call(
            ConsumerGroupHeartbeatRequest(
                group_id=self.history.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=REBALANCE_MS if joining else -1,
                subscribed_topic_names=sorted(self.topics) if joining else None,
                topic_partitions=owned,
            ),
            1,
        )
        check(answer.error_code, f"ConsumerGroupHeartbeat {self.name}")
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            await self.adopt(
                {
                    (self.names[each.topic_id], index)
                    for each in answer.assignment.topic_partitions
                    for index in each.partitions
                }
            )

    async def beat(self) -> None:
        await self._heartbeat(joining=False)

    async def leave(self) -> None:
        self.epoch = -1
        answer = await self.client.call(
            ConsumerGroupHeartbeatRequest(group_id=self.history.group, member_id=self.member_id, member_epoch=-1), 1
        )
        check(answer.error_code, f"leave {self.name}")
        self.member_id, self.epoch = "", 0


async def check_group(world: World, history: GroupHistory) -> None:
    """Check the committed offsets of a group when all is over."""
    client = Client(world, f"check-{history.group}")
    for where in sorted(history.sent):
        history.begin(where, await committed_offset(client, history.group, where))
    await client.drop()
