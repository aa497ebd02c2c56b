"""Migration of groups between the two protocols: live clients of both kinds against a shard that is killed at times.

The clients do what real ones do. A classic client heartbeats, revokes everything (eager) or the partitions it has lost
(cooperative), joins again, and assigns if it is elected leader. A client of the new protocol owns its assignment.
Clients join, leave, die, and return with the other protocol. At all times no partition may have two owners. In the end,
a group without further changes must become stable, each partition must have an owner, and the group's type must be that
of its members.
"""

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.member import ClassicMember
from anabranch.broker.kafka.groups.consumer.embedded_protocol import parse_assignment, parse_subscription
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.consumer.migration import to_consumer_group
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import (
    ClassicHeartbeat,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    MemberProtocol,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import encode_versioned, read_version
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.embedded.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    TopicPartitionResponse,
)
from anabranch.wal.interface import WalFailed
from tests.broker.kafka.groups.consumer.test_shard import LONG
from tests.support.memory_log import MemoryLog
from tests.support.virtual_time import run_virtual

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, consumer_session_timeout_ms=10_000)
SESSION_MS = 10_000
REBALANCE_MS = 30_000
HEARTBEAT_S = 3.0
REQUEST_TIMEOUT_S = 40.0
PARTITIONS = 5
TOPIC_ID = b"t" * 16
TOPICS = TopicImage.of(1, [TopicMetadata(TOPIC_ID, "t", PARTITIONS)])
REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
SEEDS = 400 if os.environ.get("ANABRANCH_SOAK") else 40


def as_classic(numbers: set[int]) -> list[TopicPartition]:
    return [TopicPartition(topic="t", partitions=sorted(numbers))] if numbers else []


def assignment_of(numbers: set[int]) -> bytes:
    found = [TopicPartitionResponse(topic="t", partitions=sorted(numbers))]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=found), 1)


class World:
    """The coordinator's process, its log, and the owner of each partition."""

    def __init__(self, seed: int, settings: GroupSettings = SETTINGS) -> None:
        self.random = random.Random(seed)
        self.settings = settings
        self.log = MemoryLog(delay_s=lambda: self.random.uniform(0.001, 0.02))
        self.owners: dict[int, str] = {}
        self.shard = self._new_shard()

    def _new_shard(self) -> GroupShard:
        return GroupShard(LogWriter(self.log), self.settings, now_ms=lambda: 0, topics=lambda: TOPICS)

    async def begin(self) -> None:
        await self.shard.load()

    async def crash(self) -> None:
        """Kill the process: data that is not durable is lost, and no request is answered after this."""
        self.shard.close()
        self.log = self.log.crash()
        self.shard = self._new_shard()
        await self.shard.load()

    def own(self, name: str, numbers: set[int]) -> None:
        """A client owns these partitions from now on, and no others."""
        for number in [number for number, owner in self.owners.items() if owner == name]:
            del self.owners[number]
        for number in numbers:
            assert number not in self.owners, f"{name} and {self.owners[number]} both own {number}"
            self.owners[number] = name

    def group(self) -> ClassicGroup | ConsumerGroup:
        group = self.shard.group("g")
        assert isinstance(group, ClassicGroup | ConsumerGroup)
        return group


def answer_once(
    done: "asyncio.Future[ConsumerHeartbeatResponse | KafkaError]", answer: ConsumerHeartbeatResponse | KafkaError
) -> None:
    """Answer a client that may have left."""
    if not done.done():
        done.set_result(answer)


@dataclass
class MigratingConsumer:
    """A consumer. It notices a crash of the coordinator as a request without an answer."""

    world: World
    name: str
    cooperative: bool
    owned: set[int] = field(default_factory=set)
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    lives: int = 0

    def own(self, numbers: set[int]) -> None:
        self.owned = set(numbers)
        self.world.own(self.name, self.owned)

    def die(self) -> None:
        self.own(set())
        self.member_id, self.generation = "", -1

    def reset(self, *, forget_member: bool) -> None:
        self.own(set())
        self.generation = -1
        if forget_member:
            self.member_id = ""

    # -- The classic protocol --------------------------------------------------------------------------------------

    async def run_classic(self) -> None:
        while True:
            try:
                await self.join_classic_member()
                await self.beat_until_over()
            except KafkaError as error:
                self.reset(forget_member=error.code is not ErrorCode.ILLEGAL_GENERATION)
                await asyncio.sleep(0.1)
            except TimeoutError:
                await asyncio.sleep(0.1)  # it joins again with its partitions

    async def beat_until_over(self) -> None:
        for _ in itertools.repeat(None):
            if not self.beat_classic():
                return
            await asyncio.sleep(HEARTBEAT_S)

    def beat_classic(self) -> bool:
        """Return True while the generation lasts. Raises KafkaError when the member is out of the group."""
        shard = self.world.shard
        if not shard.loaded:
            return True
        error = shard.membership.handle("g", ClassicHeartbeat(self.member_id, self.instance_id, self.generation))
        if error in REJOIN:
            return False
        if error:
            raise KafkaError(error)
        return True

    async def join_classic_member(self) -> None:
        while True:
            if not self.cooperative:
                self.own(set())
            joined = await self.ask_join()
            if joined.error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            if joined.error in REJOIN:
                await asyncio.sleep(0.1)
                continue
            if joined.error:
                raise KafkaError(joined.error)
            self.member_id, self.generation = joined.member_id, joined.generation
            synced = await self.ask_sync(joined)
            if synced.error in REJOIN:
                continue
            if synced.error:
                raise KafkaError(synced.error)
            assigned, _ = parse_assignment(synced.assignment, TOPICS)
            numbers = {partition for _, partition in assigned}
            gave_up = self.owned - numbers
            self.own(numbers)
            if not (self.cooperative and gave_up):
                return

    async def ask_join(self) -> JoinResponse:
        self.lives += 1
        subscription = ConsumerProtocolSubscription(topics=["t"], owned_partitions=as_classic(self.owned))
        ticket: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        request = JoinRequest(
            ticket=respond_to(ticket),
            member_id=self.member_id,
            new_member_id=f"{self.name}-{self.lives}",
            group_instance_id=self.instance_id,
            client_id=self.name,
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[MemberProtocol("p", encode_versioned(subscription, 1))],
            member_id_required=True,
            can_skip_assignment=False,
        )
        self.world.shard.membership.handle("g", request)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await ticket

    async def ask_sync(self, joined: JoinResponse) -> SyncResponse:
        ticket: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        assignments = self.assign(joined) if joined.leader == self.member_id else {}
        sync = SyncRequest(
            respond_to(ticket), self.member_id, self.instance_id, self.generation, "consumer", "p", assignments
        )
        self.world.shard.membership.handle("g", sync)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await ticket

    def assign(self, joined: JoinResponse) -> dict[str, bytes]:
        """Assign partitions as the leader does. One that another member still owns waits for the next generation."""
        owned = {
            member.member_id: {partition for _, partition in parse_subscription(member.metadata, TOPICS).owned}
            for member in joined.members
        }
        members = sorted(owned)
        dealt: dict[str, set[int]] = {member_id: set() for member_id in members}
        for number in range(PARTITIONS):
            member_id = members[number % len(members)]
            if not any(number in theirs for other, theirs in owned.items() if other != member_id):
                dealt[member_id].add(number)
        return {member_id: assignment_of(numbers) for member_id, numbers in dealt.items()}

    def leave_classic(self) -> None:
        if self.member_id and self.world.shard.loaded:
            self.world.shard.membership.handle("g", LeaveRequest([LeavingMember(self.member_id, self.instance_id)]))

    # -- The new protocol --------------------------------------------------------------------------------------------

    async def run_consumer(self) -> None:
        self.lives += 1
        self.member_id, self.generation = self.member_id or f"{self.name}-{self.lives}", 0
        full = True
        while True:
            try:
                answer = await self.ask_beat(full=full)
                full = False
            except TimeoutError:
                full = True
                continue
            except KafkaError as error:
                if error.code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
                    self.own(set())
                    self.generation = 0
                full = True
                await asyncio.sleep(0.1)
                continue
            self.generation = answer.epoch
            if answer.assignment is not None:
                self.own({partition for _, partition in answer.assignment})
            await asyncio.sleep(HEARTBEAT_S)

    async def ask_beat(self, *, full: bool) -> ConsumerHeartbeatResponse:
        done: asyncio.Future[ConsumerHeartbeatResponse | KafkaError] = asyncio.get_running_loop().create_future()
        tell = full or self.generation == 0
        owned = frozenset(TopicIdPartition(TOPIC_ID, number) for number in self.owned)
        beat = ConsumerHeartbeat(
            member_id=self.member_id,
            epoch=self.generation,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if tell else -1,
            topic_names=["t"] if tell else None,
            owned=frozenset() if self.generation == 0 else owned,
            ticket=partial(answer_once, done),
        )
        self.world.shard.membership.handle("g", beat)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            found = await done
        if isinstance(found, KafkaError):
            raise found
        return found

    def leave_consumer(self) -> None:
        if self.generation > 0 and self.world.shard.loaded:
            try:
                self.world.shard.membership.handle("g", ConsumerHeartbeat(self.member_id, -1, ticket=lambda _: None))
            except KafkaError:
                return  # removed, or the group is gone: the same to it


async def live(
    client: MigratingConsumer, until: Callable[[], Awaitable[object]], *, classic: bool, politely: bool
) -> None:
    """Run a client in one of the protocols until it is stopped; it then leaves, or dies."""
    task = asyncio.create_task(client.run_classic() if classic else client.run_consumer())
    try:
        await until()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    if politely:
        if classic:
            client.leave_classic()
        else:
            client.leave_consumer()
    client.die()


async def simulate(seed: int) -> None:
    world = World(seed)
    await world.begin()
    dice = world.random
    cooperative = dice.random() < 0.5
    the_end = asyncio.Event()
    kinds: dict[str, bool] = {}

    async def wander(client: MigratingConsumer) -> None:
        await asyncio.sleep(dice.uniform(0, 20))
        while True:
            kinds[client.name] = classic = dice.random() < 0.5
            if the_end.is_set():
                await live(client, asyncio.Event().wait, classic=classic, politely=False)
            seconds = dice.choice([2.0, 15.0, 60.0])
            await live(client, partial(asyncio.sleep, seconds), classic=classic, politely=dice.random() < 0.7)
            await asyncio.sleep(dice.uniform(0, 5))

    async with asyncio.TaskGroup() as tasks:
        clients = [tasks.create_task(wander(MigratingConsumer(world, name, cooperative))) for name in "abc"]
        for _ in range(4):
            await asyncio.sleep(dice.uniform(20, 80))
            if dice.random() < 0.7:
                await world.crash()
        the_end.set()
        await asyncio.sleep(600)
        assert sorted(world.owners) == list(range(PARTITIONS)), f"owned are {world.owners}"
        assert isinstance(world.group(), ClassicGroup) == all(kinds.values())
        for task in clients:
            task.cancel()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_partition_has_one_owner_while_clients_change_protocol(seed: int) -> None:
    run_virtual(simulate(seed))


# -- Step by step ----------------------------------------------------------------------------------------------------


class Pair:
    """A classic member `m` that has everything, and a log that is durable at once."""

    def __init__(self, settings: GroupSettings = SETTINGS, log: MemoryLog | None = None) -> None:
        self.settings = settings
        self.log = log or MemoryLog()
        self.shard = GroupShard(LogWriter(self.log), settings, now_ms=lambda: 0, topics=lambda: TOPICS)

    async def crash(self) -> "Pair":
        other = Pair(self.settings, self.log.crash())
        await other.shard.load()
        self.shard.close()
        return other

    async def join(
        self, member_id: str, *owned: int, instance_id: str | None = None, member_id_required: bool = False
    ) -> JoinResponse:
        subscription = ConsumerProtocolSubscription(topics=["t"], owned_partitions=as_classic(set(owned)))
        ticket: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        join = JoinRequest(
            ticket=respond_to(ticket),
            member_id=member_id,
            new_member_id=f"fresh-{instance_id}",
            group_instance_id=instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[MemberProtocol("p", encode_versioned(subscription, 1))],
            member_id_required=member_id_required,
            can_skip_assignment=False,
        )
        self.shard.membership.handle("g", join)
        return await ticket

    async def sync(self, member_id: str, generation: int, *assigned: int, instance_id: str | None = None) -> set[int]:
        ticket: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        assignments = {member_id: assignment_of(set(assigned))}
        self.shard.membership.handle(
            "g", SyncRequest(respond_to(ticket), member_id, instance_id, generation, "consumer", "p", assignments)
        )
        answer = await ticket
        assert answer.error is ErrorCode.NONE
        return {partition for _, partition in parse_assignment(answer.assignment, TOPICS)[0]}

    async def begin(self, instance_id: str | None = None) -> JoinResponse:
        await self.shard.load()
        joined = await self.join("", instance_id=instance_id)
        await self.sync(joined.member_id, joined.generation, *range(PARTITIONS), instance_id=instance_id)
        return joined

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        return self.shard.membership.handle("g", ClassicHeartbeat(member_id, instance_id, generation))

    def beat(
        self, member_id: str, epoch: int = 0, instance_id: str | None = None
    ) -> "asyncio.Future[ConsumerHeartbeatResponse | KafkaError]":
        done: asyncio.Future[ConsumerHeartbeatResponse | KafkaError] = asyncio.get_running_loop().create_future()
        told: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topic_names": ["t"]} if epoch == 0 else {}
        beat = ConsumerHeartbeat(member_id, epoch, instance_id, owned=frozenset(), ticket=done.set_result, **told)
        self.shard.membership.handle("g", beat)
        return done

    def group(self) -> ClassicGroup | ConsumerGroup:
        group = self.shard.group("g")
        assert isinstance(group, ClassicGroup | ConsumerGroup)
        return group

    def kinds_in_log(self) -> set[int]:
        """The kinds of keys that a replay of the log would leave."""
        live: dict[bytes, bytes | None] = {record.key: record.value for record in self.log.records()}
        return {read_version(key) for key, value in live.items() if value is not None}


@pytest.fixture
async def pair() -> Pair:
    return Pair()


async def test_what_a_group_is_survives_a_crash_at_each_step(pair: Pair) -> None:
    joined = await pair.begin()
    classic = joined.member_id
    assert pair.kinds_in_log() == {2}
    assert isinstance(await pair.beat("n"), ConsumerHeartbeatResponse)
    assert pair.kinds_in_log() == {3, 5, 6, 7, 8}
    pair = await pair.crash()
    assert pair.heartbeat(classic, None, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = await pair.join(classic)
    pair = await pair.crash()
    kept = await pair.sync(classic, again.generation)
    assert len(kept) in {2, 3}
    await pair.beat("n", again.generation)
    await pair.beat("n", -1)
    assert pair.kinds_in_log() == {2}
    pair = await pair.crash()
    group = pair.group()
    assert isinstance(group, ClassicGroup)
    assert list(group.members) == [classic]
    assert pair.heartbeat(classic, None, group.generation) is ErrorCode.NONE, "a crash ends a rebalance"


async def test_an_upgrade_that_is_not_written_did_not_happen(pair: Pair) -> None:
    joined = await pair.begin()
    pair.log.hold = True
    beat = pair.beat("n")
    await asyncio.sleep(0)
    pair.log.release(WalFailed("gone"))
    assert isinstance(await beat, KafkaError)
    pair.log.hold = False
    assert isinstance(pair.group(), ClassicGroup)
    assert pair.heartbeat(joined.member_id, None, joined.generation) is ErrorCode.NONE


async def test_a_downgrade_that_is_not_written_did_not_happen(pair: Pair) -> None:
    await pair.begin()
    await pair.beat("n")
    pair.log.hold = True
    left = pair.beat("n", -1)
    await asyncio.sleep(0)
    pair.log.release(WalFailed("gone"))
    assert isinstance(await left, KafkaError)
    group = pair.group()
    assert isinstance(group, ConsumerGroup)
    assert "n" in group.members


async def test_a_request_that_waits_in_a_group_whose_downgrade_is_not_written_is_answered(pair: Pair) -> None:
    await pair.begin()
    await pair.beat("n")
    pair.log.hold = True
    left = pair.beat("n", -1)
    joined = asyncio.create_task(pair.join("", instance_id="late"))
    await asyncio.sleep(0)
    assert isinstance(pair.group(), ClassicGroup)
    pair.log.release(WalFailed("gone"))
    assert isinstance(await left, KafkaError)
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        assert (await joined).error is ErrorCode.NOT_COORDINATOR
    assert "n" in pair.group().members


async def test_a_member_with_an_id_and_nothing_else_joins_the_group_that_came_first(pair: Pair) -> None:
    await pair.shard.load()
    given = await pair.join("", member_id_required=True)
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(await pair.beat("n"), ConsumerHeartbeatResponse)
    assert (await pair.join(given.member_id)).error is ErrorCode.NONE
    assert set(pair.group().members) == {"n", given.member_id}


async def test_a_static_member_changes_protocol_and_back_without_a_rebalance(pair: Pair) -> None:
    joined = await pair.begin("i")
    answer = await pair.beat("n", instance_id="i")
    assert answer == ConsumerHeartbeatResponse(
        "n", joined.generation, frozenset(TopicIdPartition(TOPIC_ID, n) for n in range(5))
    )
    assert isinstance(pair.group(), ConsumerGroup)
    back = await pair.join("", instance_id="i")
    assert isinstance(pair.group(), ClassicGroup)
    assert await pair.sync(back.member_id, back.generation, instance_id="i") == set(range(PARTITIONS))
    assert pair.heartbeat(back.member_id, "i", back.generation) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("policy", "goes_up", "goes_down"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, False), ("disabled", False, False)],
)
async def test_the_policy_says_which_way_a_group_may_go(policy: Any, *, goes_up: bool, goes_down: bool) -> None:
    pair = Pair(GroupSettings(initial_rebalance_delay_ms=0, consumer_migration_policy=policy))
    joined = await pair.begin()
    if not goes_up:
        with pytest.raises(KafkaError, match="Cannot upgrade classic group g to consumer group because online upgrade"):
            _ = pair.beat("n")
        assert pair.heartbeat(joined.member_id, None, joined.generation) is ErrorCode.NONE
        return
    await pair.beat("n")
    await pair.beat("n", -1)
    assert isinstance(pair.group(), ClassicGroup) is goes_down


def test_a_group_whose_assignments_could_not_be_encoded_stays_classic() -> None:
    """An assignment is encoded in the version of a member's first metadata, whichever protocol the group has chosen."""
    subscription = encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 1)
    group = ClassicGroup("g")
    group.protocol_type, group.protocol_name = "consumer", "p"
    protocols = [MemberProtocol("other", b"\xff\xff"), MemberProtocol("p", subscription)]
    group.members["m"] = ClassicMember("m", None, "c", "/h", SESSION_MS, REBALANCE_MS, protocols)
    with pytest.raises(KafkaError, match="the embedded consumer protocol is malformed"):
        to_consumer_group(group, SETTINGS, TOPICS, Now(0, 0))


@pytest.mark.parametrize("refused", [False, True], ids=["alone", "beside requests that are too large"])
def test_members_that_do_not_rejoin_or_sync_in_time_are_removed(refused: bool) -> None:
    run_virtual(stay_silent(refused=refused))


async def stay_silent(*, refused: bool) -> None:
    """Also while they heartbeat, which keeps their session."""
    pair = Pair(GroupSettings(initial_rebalance_delay_ms=0, consumer_session_timeout_ms=3_600_000))
    joined = await pair.begin()
    await pair.beat("n")
    await wait_silently(pair, joined.member_id, joined.generation, refused=refused)
    assert list(pair.group().members) == ["n"]
    late = await pair.join("late")
    assert late.error is ErrorCode.NONE
    await wait_silently(pair, "late", late.generation, refused=refused)
    assert list(pair.group().members) == ["n"]


async def wait_silently(pair: Pair, member_id: str, generation: int, *, refused: bool) -> None:
    too_large = ConsumerHeartbeat("x", 0, rebalance_timeout_ms=1, topic_names=LONG)
    for _ in range(40):
        await asyncio.sleep(1)
        if refused:
            with pytest.raises(KafkaError):
                pair.shard.membership.handle("g", too_large)
        try:
            pair.heartbeat(member_id, None, generation)
        except KafkaError:  # it is removed
            break
