"""Random requests, answered or refused, to a group of both kinds, over a log that refuses some writes.

A group wakes at its earliest deadline, also if a request has changed that and was refused. And whatever writes have
failed, the group is what a replay of its log shows.
"""

import asyncio
import random
from typing import Any

import pytest

from anabranch.broker.kafka.configs.group_times import GroupTimes
from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.requests import (
    NEVER_MS,
    ClassicHeartbeat,
    GroupRequest,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    MemberProtocol,
    SyncRequest,
)
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription
from anabranch.s3stream.errors import AppendTooLarge
from tests.broker.kafka.groups.consumer.test_shard import LONG, TOPICS
from tests.support.memory_log import MemoryLog
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

SEEDS = 40
STEPS = 150
NAMES = "abc"
TIMEOUTS_MS = (1_000, 20_000, 300_000)
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, members_max=3)


class RandomClients:
    """Members that know their group, and send what comes to their mind."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.log = MemoryLog(delay_s=lambda: self.dice.uniform(0, 3))
        self.shard = GroupShard(
            LogWriter(self.log),
            SETTINGS,
            now_ms=lambda: 0,
            topics=lambda: TOPICS,
            consumer_times=lambda _: GroupTimes(self.dice.choice(TIMEOUTS_MS), self.dice.choice((0, 2))),
        )
        self.refusals = 0

    def epoch_of(self, name: str) -> int:
        """Return the epoch or generation of a member, or another one."""
        group = self.shard.group("g")
        known = 0
        if isinstance(group, ClassicGroup):
            known = group.generation
        elif isinstance(group, ConsumerGroup) and name in group.members:
            known = group.members[name].epoch
        return known + self.dice.choice([0] * 8 + [1, -1])

    def request(self) -> GroupRequest[Any]:
        dice, name = self.dice, self.dice.choice(NAMES)
        instance_id = dice.choice([None, None, None, name.upper()])
        topics = LONG if dice.random() < 0.05 else dice.choice([["t"], ["u"], ["t", "u"]])
        match dice.randrange(10):
            case 0 | 1 | 2:
                return self.join(name, instance_id, topics)
            case 3 | 4:
                return SyncRequest(ignore, name, instance_id, self.epoch_of(name), None, None, {name: b""})
            case 5 | 6:
                return ClassicHeartbeat(name, instance_id, self.epoch_of(name))
            case 7:
                return LeaveRequest([LeavingMember(name, instance_id)])
            case _:
                joins = dice.random() < 0.5
                return ConsumerHeartbeat(
                    name,
                    0 if joins else self.epoch_of(name),
                    instance_id,
                    rebalance_timeout_ms=dice.choice(TIMEOUTS_MS),
                    topic_names=topics if joins else None,
                    owned=frozenset() if joins else None,
                    ticket=ignore,
                )

    def join(self, name: str, instance_id: str | None, topics: list[str]) -> JoinRequest:
        group = self.shard.group("g")
        known = group is not None and name in group.members
        if isinstance(group, ClassicGroup) and name in group.pending:
            instance_id = None  # no two members get one id
        metadata = encode_versioned(ConsumerProtocolSubscription(topics=topics), 1)
        return JoinRequest(
            ticket=ignore,
            member_id=name if known else "",
            new_member_id=name,
            group_instance_id=instance_id,
            client_id="c",
            client_host="h",
            session_timeout_ms=self.dice.choice(TIMEOUTS_MS),
            rebalance_timeout_ms=self.dice.choice(TIMEOUTS_MS),
            protocol_type="consumer",
            protocols=[MemberProtocol("range", metadata)],
            member_id_required=self.dice.random() < 0.1,
            can_skip_assignment=True,
        )

    def commit(self) -> None:
        name = self.dice.choice(NAMES)
        offsets = [(TopicPartition("t", 0), CommittedOffset(1, -1, "", 0))]
        self.shard.offsets.commit("g", name, None, self.epoch_of(name), offsets, ignore)

    def step(self) -> None:
        self.log.refusal = AppendTooLarge("this one") if self.dice.random() < 0.05 else None
        before = self.sessions()
        try:
            if self.dice.random() < 0.1:
                self.commit()
            else:
                self.shard.membership.handle("g", self.request())
        except KafkaError:
            self.refusals += 1
            after = self.sessions()
            assert sum(before.get(name) != after[name] for name in after) <= 1, "only who asks has shown to be alive"

    def sessions(self) -> dict[str, int]:
        """Return the ends of the sessions of a consumer group."""
        group = self.shard.group("g")
        return dict(group.deadlines.sessions) if isinstance(group, ConsumerGroup) else {}

    def check_timers(self) -> None:
        for entry in self.shard.entries():
            assert entry.timer_ms <= earliest_deadline_ms(entry.group)

    async def check_log(self) -> None:
        """Compare the groups with those that another node would load, when no write is on its way."""
        self.log.refusal = None
        await until(lambda: not any(entry.writes for entry in self.shard.entries()), pause_s=1)
        other = GroupShard(LogWriter(self.log), SETTINGS, now_ms=lambda: 0, topics=lambda: TOPICS)
        await other.load()
        kept, replayed = ([entry.stored for entry in shard.entries() if entry.stored] for shard in (self.shard, other))
        assert kept == replayed
        group, loaded = self.shard.group("g"), other.group("g")
        if isinstance(group, ConsumerGroup) and group.members:
            assert isinstance(loaded, ConsumerGroup)
            assert (group.epoch, group.assignment_epoch) == (loaded.epoch, loaded.assignment_epoch)
            assert group.members == loaded.members
            assert group.targets == loaded.targets
        other.close()


def earliest_deadline_ms(group: object) -> int:
    """Return the earliest deadline of a member, without the bound that the group keeps."""
    if isinstance(group, ConsumerGroup):
        return min([*group.deadlines.sessions.values(), *group.deadlines.rebalances.values()], default=NEVER_MS)
    assert isinstance(group, ClassicGroup)
    return group.next_deadline_ms()


def ignore(_: object) -> None:
    """Take a response."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_wakes_at_its_earliest_deadline_and_is_what_its_log_shows(seed: int) -> None:
    async def main() -> None:
        clients = RandomClients(seed)
        await clients.shard.load()
        for step in range(1, STEPS):
            clients.step()
            clients.check_timers()
            await asyncio.sleep(clients.dice.choice([0, 0, 0.5, 5]))
            clients.check_timers()
            if step % 25 == 0:
                await clients.check_log()
        assert clients.refusals
        clients.shard.close()

    run_virtual(main())
