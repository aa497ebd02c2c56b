"""Random members, topics, losses, crashes and silences against one consumer group (KIP-848).

The model's clients behave as real ones may. Until they are fenced or leave, they own their last assignment and the
partitions that they have not released yet. The checks are what users rely on: no partition has two owners; a group
without further changes converges to its target, in which every partition is owned once; and a group rebuilt from its
records equals the original.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.consumer.kind import ConsumerKind
from anabranch.broker.kafka.groups.interface import Outcome
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.support.soak import SOAK

NAMES = "abcd"
TOPICS = "tuv"
SETTINGS = GroupSettings(consumer_session_timeout_ms=10_000)
REBALANCE_MS = 20_000


@dataclass
class ModelMember:
    """State of one consumer, as the consumer knows it."""

    member_id: str
    instance_id: str | None
    epoch: int = 0
    owned: set[TopicIdPartition] = field(default_factory=set)
    told: Partitions = frozenset()
    names: tuple[str, ...] = ("t",)
    regex: str | None = None
    assignor: str | None = None
    changed: bool = False
    last_ms: int = 0
    """Begin of the current session. When the session expires, the member must release its partitions by itself."""

    def beat(self, *, full: bool) -> ConsumerHeartbeat:
        tell = full or self.changed or self.epoch == 0
        self.changed = False
        return ConsumerHeartbeat(
            member_id=self.member_id,
            epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if tell else -1,
            topic_names=self.names if tell else None,
            topic_regex=(self.regex or "") if tell else None,
            assignor=self.assignor if tell else None,
            owned=frozenset() if self.epoch == 0 else frozenset(self.owned),
        )


class ConsumerGroupModel(RuleBasedStateMachine):
    """Up to four clients, two of them static."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.kind = ConsumerKind(SETTINGS, lambda: self.topics)
        self.machine = self.kind.restore("g", {}, Now(0, 0))
        self.clients: dict[str, ModelMember] = {}
        self.log: dict[bytes, bytes] = {}
        self.partitions = {"t": 3}
        self.version = 0
        self.made = 0
        self.last_epoch = 0

    @property
    def group(self) -> ConsumerGroup:
        return self.machine.group

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    @property
    def topics(self) -> TopicImage:
        return TopicImage.of(
            self.version, [TopicMetadata(name.encode() * 16, name, count) for name, count in self.partitions.items()]
        )

    def write(self, outcome: Outcome) -> None:
        for key, value in outcome.records:
            if value is None:
                del self.log[key]
            else:
                self.log[key] = value

    def send(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResponse | KafkaError:
        try:
            outcome = self.machine.handle(beat, self.now)
        except KafkaError as error:
            assert not self.group.records.take_changes(), "a refused request changes nothing"
            return error
        self.write(outcome)
        ((_, response),) = outcome.when_durable
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    @rule(
        name=st.sampled_from(NAMES),
        names=st.sampled_from([("t",), ("t", "u"), ("u",), ()]),
        regex=st.sampled_from([None, None, "[tv]", ".*"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def start(self, name: str, names: tuple[str, ...], regex: str | None, assignor: str | None) -> None:
        """Start a process, or restart it after a death without a leave request."""
        self.made += 1
        instance_id = name.upper() if name in "ab" else None
        self.clients[name] = ModelMember(
            f"{name}{self.made}", instance_id, names=names, regex=regex, assignor=assignor, last_ms=self.now_ms
        )

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), full=st.booleans(), lost=st.sampled_from([False, False, True]))
    def beat(self, data: st.DataObject, full: bool, lost: bool) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        self.heartbeat(client, full=full, lost=lost)

    def heartbeat(self, client: ModelMember, *, full: bool = False, lost: bool = False) -> None:
        answer = self.send(client.beat(full=full or lost))
        if lost:
            client.changed = True  # it repeats what it cannot know to have arrived
            return
        if isinstance(answer, KafkaError):
            assert answer.code in {
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.UNRELEASED_INSTANCE_ID,
                ErrorCode.FENCED_INSTANCE_ID,
            }
            client.epoch = 0
            client.owned.clear()
            client.told = frozenset()
            return
        assert answer.member_id == client.member_id
        client.epoch = answer.epoch
        client.last_ms = self.now_ms
        if answer.assignment is not None:
            client.told = answer.assignment
            client.owned |= answer.assignment

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        """Finish a revocation, after which the client owns exactly its assignment."""
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.owned &= client.told

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), names=st.sampled_from([("t",), ("u", "t"), ("v",)]), regex=st.sampled_from([None, "u|v"]))
    def subscribe(self, data: st.DataObject, names: tuple[str, ...], regex: str | None) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.names, client.regex, client.changed = names, regex, True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients.pop(name)
        if client.epoch > 0:
            epoch = LEAVE_EPOCH if client.instance_id is None else LEAVE_STATIC_EPOCH
            self.send(ConsumerHeartbeat(client.member_id, epoch, client.instance_id))

    @rule(topic=st.sampled_from(TOPICS), more=st.sampled_from([1, 4]))
    def grow(self, topic: str, more: int) -> None:
        self.partitions[topic] = min(self.partitions.get(topic, 0) + more, 9)
        self.version += 1

    @rule(topic=st.sampled_from(TOPICS))
    def drop(self, topic: str) -> None:
        if self.partitions.pop(topic, None) is not None:
            self.version += 1

    @rule(ms=st.sampled_from([1, 3_000, 9_999, 20_000]))
    def wait(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self.write(self.machine.tick(self.now))
        self.now_ms = end_ms

    @rule()
    def crash(self) -> None:
        """Kill the node, and rebuild the group from its records."""
        before = self.group
        self.machine = self.kind.restore("g", self.log, self.now)
        assert (self.group.epoch, self.group.assignment_epoch) == (before.epoch, before.assignment_epoch)
        assert self.group.members == before.members
        assert self.group.targets == before.targets
        assert self.group.static == before.static
        assert self.group.state == before.state
        assert self.group.subscribed_topics() == before.subscribed_topics()
        assert not self.group.records.take_changes()

    def alive(self) -> list[ModelMember]:
        """Clients whose session has not expired as far as they know; the others have released their partitions."""
        return [
            client
            for client in self.clients.values()
            if self.now_ms - client.last_ms <= SETTINGS.consumer_session_timeout_ms
        ]

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        held: set[TopicIdPartition] = set()
        for member in self.group.members.values():
            assert not held & member.held
            held |= member.held
        owned: set[TopicIdPartition] = set()
        for client in self.alive():
            # A member removed for a revocation that took too long may not know it yet: such an overlap is allowed.
            if client.member_id in self.group.members:
                assert not owned & client.owned
                owned |= client.owned

    @invariant()
    def epochs_only_grow_and_members_are_behind(self) -> None:
        assert self.group.epoch >= self.last_epoch
        self.last_epoch = self.group.epoch
        assert self.group.assignment_epoch <= self.group.epoch
        assert all(member.epoch <= self.group.assignment_epoch for member in self.group.members.values())

    @invariant()
    def targets_are_disjoint_and_static_members_are_members(self) -> None:
        targets = [partition for target in self.group.targets.values() for partition in target]
        assert len(targets) == len(set(targets))
        assert set(self.group.static.values()) <= self.group.members.keys()

    def teardown(self) -> None:
        """Left alone, members converge: each has its target, and every partition wanted is owned."""
        for _ in range(12):
            self.wait(3_000)
            for client in self.clients.values():
                client.owned &= client.told
                self.heartbeat(client)
        if not self.clients:
            self.wait(60_000)
            assert self.group.state is ConsumerGroupState.EMPTY
            return
        assert self.group.state is ConsumerGroupState.STABLE
        owned = [partition for client in self.clients.values() for partition in client.owned]
        wanted = {
            TopicIdPartition(name.encode() * 16, index)
            for name in self.group.subscribed_topics()
            for index in range(self.partitions.get(name, 0))
        }
        assert len(owned) == len(set(owned))
        assert set(owned) == wanted
        for client in self.clients.values():
            assert client.owned == self.group.targets[client.member_id]


ConsumerGroupModel.TestCase.settings = settings(
    max_examples=5_000 if SOAK else 250, stateful_step_count=50, deadline=None
)
TestConsumerGroupModel = ConsumerGroupModel.TestCase
