"""The state machine of streams groups: heartbeats, epochs, topologies, delays, static members, deadlines, records."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.kafka.configs.streams import StreamsConfigs
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.interface import Outcome
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import CommitRequest, Now
from anabranch.broker.kafka.groups.streams import records
from anabranch.broker.kafka.groups.streams.configured_topology import StatusCode
from anabranch.broker.kafka.groups.streams.group import StreamsGroup, StreamsGroupState
from anabranch.broker.kafka.groups.streams.kind import StreamsKind
from anabranch.broker.kafka.groups.streams.machine import StreamsMachine
from anabranch.broker.kafka.groups.streams.member import MemberState
from anabranch.broker.kafka.groups.streams.requests import Endpoint, StreamsHeartbeat, StreamsHeartbeatResponse
from anabranch.broker.kafka.groups.streams.tasks import Task, TaskAssignment, Tasks
from anabranch.broker.kafka.groups.streams.topology import Subtopology, TopicDescription, Topology
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

NO_DELAY = StreamsConfigs(initial_rebalance_delay_ms=0, assignment_interval_ms=0)
TOPOLOGY = Topology(1, (Subtopology("0", ("in",), changelogs=(TopicDescription("log", 0, 0),)),))


def tasks(*partitions: int) -> Tasks:
    return frozenset(Task("0", partition) for partition in partitions)


def active(*partitions: int) -> TaskAssignment:
    return TaskAssignment(tasks(*partitions))


class Client:
    """A coordinator of one group, which keeps its records as a log does."""

    def __init__(self, configs: StreamsConfigs = NO_DELAY, **partitions: int) -> None:
        self.configs = configs
        self.steady_ms = 1_000
        self.version = 0
        self.topics = TopicImage(0)
        self.set_topics(**(partitions or {"in": 2, "log": 2}))
        self.kind = StreamsKind(GroupSettings(streams_members_max=3), lambda: self.topics, lambda _: self.configs)
        self.machine: StreamsMachine | None = None
        self.log: dict[bytes, bytes] = {}
        self.kinds: list[int] = []
        """Kinds of the records that were written last, negative for deletions."""

    def set_topics(self, **partitions: int) -> None:
        self.version += 1
        topics = [TopicMetadata(name.encode().ljust(16, b"-"), name, count) for name, count in partitions.items()]
        self.topics = TopicImage.of(self.version, topics)

    def state(self) -> StreamsGroupState:
        return self.group.state

    @property
    def now(self) -> Now:
        return Now(self.steady_ms, 500_000 + self.steady_ms)

    @property
    def group(self) -> StreamsGroup:
        assert self.machine is not None
        return self.machine.group

    def write(self, written: Sequence[KeyValue]) -> None:
        self.kinds = []
        for key, value in written:
            kind = int.from_bytes(key[:2], "big")
            self.kinds.append(kind if value is not None else -kind)
            if value is None:
                del self.log[key]
            else:
                self.log[key] = value

    def beat(self, member_id: str, epoch: int = 0, **fields: Any) -> StreamsHeartbeatResponse:
        if epoch == 0:
            first = {"rebalance_timeout_ms": 300, "topology": TOPOLOGY, "process_id": f"p-{member_id}"}
            fields = {**first, "client_tags": {}, "owned": TaskAssignment(), **fields}
        request = StreamsHeartbeat(member_id, epoch, client_id="c", client_host="/h", ticket="t", **fields)
        if self.machine is None:
            outcome = self.kind.begin("g", request, None, self.now)
            assert isinstance(outcome.successor, StreamsMachine)
            self.machine = outcome.successor
        else:
            outcome = self.machine.handle(request, self.now)
        response = self.carried_out(outcome)
        assert isinstance(response, StreamsHeartbeatResponse)
        return response

    def carried_out(self, outcome: Outcome) -> Any:
        self.write(outcome.records)
        restored = self.kind.restore("g", self.log, self.now).group
        for name in ("recorded", "assignment_epoch", "members", "targets", "topology", "static"):
            assert getattr(restored, name) == getattr(self.group, name), name
        return outcome.when_durable[0].response if outcome.when_durable else None

    def settle(self, *member_ids: str) -> None:
        """Let members beat until all have their targets."""
        for _ in range(4):
            for member_id in member_ids:
                member = self.group.members[member_id]
                self.beat(member_id, member.epoch, owned=member.assigned.assignment)

    def tick(self, after_ms: int) -> None:
        self.steady_ms += after_ms
        assert self.machine is not None
        self.carried_out(self.machine.tick(self.now))

    def failover(self) -> None:
        self.machine = self.kind.restore("g", self.log, self.now)


def refused(code: ErrorCode, client: Client, *args: Any, **fields: Any) -> str:
    before = client.group.members if client.machine is not None else {}
    known, log = dict(before), dict(client.log)
    with pytest.raises(KafkaError) as error:
        client.beat(*args, **fields)
    assert error.value.code is code
    if client.machine is not None:
        assert (client.group.members, client.log) == (known, log)
    return error.value.message


def codes(response: StreamsHeartbeatResponse) -> list[StatusCode]:
    return [status.code for status in response.statuses]


# -- Joining and leaving -----------------------------------------------------------------------------------------------


def test_the_first_member_gets_all_tasks() -> None:
    client = Client()
    response = client.beat("a")
    assert (response.epoch, response.assignment, response.statuses) == (2, active(0, 1), [])
    assert client.kinds == [19, 23, 17, 21, 20, 22], "Kafka's order"
    assert client.group.state is StreamsGroupState.STABLE


def test_a_heartbeat_without_news_writes_and_tells_nothing() -> None:
    client = Client()
    client.beat("a")
    response = client.beat("a", 2)
    assert (response.assignment, response.endpoints, client.kinds) == (None, None, [])


def test_a_task_is_revoked_before_another_member_gets_it() -> None:
    client = Client()
    client.beat("a")
    joined = client.beat("b")
    assert (joined.epoch, joined.assignment) == (3, active())
    assert client.state() is StreamsGroupState.RECONCILING
    [moved] = client.group.targets["b"].active
    kept = client.beat("a", 2, owned=active(0, 1))
    assert (kept.epoch, kept.assignment) == (2, TaskAssignment(tasks(0, 1) - {moved}))
    assert client.beat("b", 3).assignment is None
    assert client.beat("a", 2, owned=kept.assignment).epoch == 3
    assert client.beat("b", 3).assignment == TaskAssignment(frozenset({moved}))
    assert client.state() is StreamsGroupState.STABLE


def test_a_member_that_leaves_hands_its_tasks_over() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.settle("a", "b")
    left = client.beat("b", -1)
    assert (left.member_id, left.epoch, client.kinds) == ("b", -1, [-22, -21, -19, 17])
    assert client.beat("a", 3).assignment == active(0, 1)


def test_the_last_member_leaves_an_empty_group() -> None:
    client = Client()
    client.beat("a")
    client.beat("a", -1)
    assert client.kinds == [-22, -21, -19, 17, 20]
    assert (client.group.state, client.group.epoch, client.group.assignment_epoch) == (StreamsGroupState.EMPTY, 3, 3)
    assert client.machine is not None
    tombstones = client.machine.retire()
    assert {key for key, _ in tombstones} == client.log.keys()
    assert [int.from_bytes(key[:2], "big") for key, _ in tombstones] == [20, 17, 23]


def test_a_group_has_a_maximum_of_members() -> None:
    client = Client()
    for name in "abc":
        client.beat(name)
    message = refused(ErrorCode.GROUP_MAX_SIZE_REACHED, client, "d")
    assert message == "The streams group has reached its maximum capacity of 3 members."
    client.beat("a")


def test_unknown_groups_and_members_are_refused() -> None:
    client = Client()
    assert refused(ErrorCode.GROUP_ID_NOT_FOUND, client, "a", 1) == "Streams group g not found."
    assert refused(ErrorCode.GROUP_ID_NOT_FOUND, client, "a", -1) == "Group g not found."
    client.beat("a")
    assert refused(ErrorCode.UNKNOWN_MEMBER_ID, client, "b", 1) == "Member b is not a member of group g."


def test_epochs_are_fenced() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.settle("a", "b")
    assert "greater member epoch (4)" in refused(ErrorCode.FENCED_MEMBER_EPOCH, client, "a", 4)
    assert "smaller member epoch (1)" in refused(ErrorCode.FENCED_MEMBER_EPOCH, client, "a", 1)
    has = client.group.members["a"].assigned.assignment
    refused(ErrorCode.FENCED_MEMBER_EPOCH, client, "a", 2, owned=active(0, 1))
    refused(ErrorCode.FENCED_MEMBER_EPOCH, client, "a", 2)
    assert client.group.members["a"].previous_epoch == 2
    assert client.beat("a", 2, owned=has).epoch == 3, "the response was lost"


def test_tasks_that_the_topology_has_not_got_are_refused() -> None:
    client = Client()
    client.beat("a")
    message = refused(ErrorCode.INVALID_REQUEST, client, "a", 2, owned=active(2))
    assert message == "Task 2 for subtopology 0 is invalid. Number of tasks for this subtopology: 2"
    wrong = TaskAssignment(standby=frozenset({Task("7", 0)}))
    message = refused(ErrorCode.INVALID_REQUEST, client, "a", 2, owned=wrong)
    assert message == "Subtopology 7 does not exist in the topology."


# -- Topologies --------------------------------------------------------------------------------------------------------


def test_a_group_waits_for_its_topics() -> None:
    client = Client(other=1)
    response = client.beat("a")
    assert codes(response) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert response.assignment == active()
    assert client.group.state is StreamsGroupState.NOT_READY
    client.set_topics(**{"in": 3})
    response = client.beat("a", 2)
    assert codes(response) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert response.missing_topics is not None
    assert [topic.partitions for topic in response.missing_topics.values()] == [3]
    client.set_topics(**{"in": 3, "log": 3})
    response = client.beat("a", response.epoch)
    assert (response.statuses, response.assignment, response.missing_topics) == ([], active(0, 1, 2), {})


def test_more_partitions_are_more_tasks_once_the_changelog_fits() -> None:
    client = Client()
    client.beat("a")
    client.set_topics(**{"in": 3, "log": 2})
    response = client.beat("a", 2)
    assert codes(response) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert response.assignment == active(), "as in Kafka, nothing runs until the topics fit"


def test_topics_that_the_application_does_not_need_change_nothing() -> None:
    client = Client()
    client.beat("a")
    client.set_topics(**{"in": 2, "log": 2, "other": 9})
    assert client.beat("a", 2).epoch == 2
    assert client.kinds == []


def test_an_invalid_topology_is_refused() -> None:
    topology = Topology(1, (Subtopology("0", ("in",), repartition_sources=(TopicDescription("r", 0, 0),)),))
    client = Client()
    refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, client, "a", topology=topology)
    assert client.machine is None


def test_another_topology_is_refused_and_an_older_one_reported() -> None:
    client = Client()
    client.beat("a", topology=replace(TOPOLOGY, epoch=2))
    for other in (replace(TOPOLOGY, epoch=3), Topology(2)):
        assert "not supported" in refused(ErrorCode.INVALID_REQUEST, client, "b", topology=other)
    response = client.beat("b", topology=Topology(1))
    assert response.statuses[0] == (
        StatusCode.STALE_TOPOLOGY,
        "The member's topology epoch 1 is behind the group's topology epoch 2.",
    )
    assert codes(client.beat("b", response.epoch)) == [StatusCode.STALE_TOPOLOGY]
    assert codes(client.beat("a", 2, owned=active(0, 1))) == []


# -- Delays, configs and statuses --------------------------------------------------------------------------------------


def test_the_first_assignment_waits_for_more_members() -> None:
    client = Client(replace(NO_DELAY, initial_rebalance_delay_ms=3_000))
    response = client.beat("a")
    assert (response.epoch, response.assignment) == (1, active())
    assert codes(response) == [StatusCode.ASSIGNMENT_DELAYED]
    client.beat("b")
    client.tick(2_999)
    assert codes(client.beat("a", 1)) == [StatusCode.ASSIGNMENT_DELAYED]
    client.tick(1)
    found = [client.beat(name, 1).assignment for name in "ab"]
    assert [len(each.active) for each in found if each is not None] == [1, 1]
    assert client.group.epoch == 3


def test_assignments_have_an_interval() -> None:
    client = Client(replace(NO_DELAY, assignment_interval_ms=1_000))
    client.beat("a")
    response = client.beat("b")
    assert codes(response) == [StatusCode.ASSIGNMENT_DELAYED]
    assert (response.epoch, client.group.state) == (2, StreamsGroupState.ASSIGNING)
    client.steady_ms += 1_000
    assert client.beat("b", 2).epoch == 3


def test_a_changed_number_of_standby_tasks_takes_effect() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.settle("a", "b")
    client.configs = replace(NO_DELAY, standby_replicas=1)
    client.settle("a", "b")
    assert client.group.epoch == 4
    assert client.group.recorded.assignment_configs == {"num.standby.replicas": "1"}
    held = [member.assigned for member in client.group.members.values()]
    assert [(len(each.active), len(each.standby)) for each in held] == [(1, 1), (1, 1)]


def test_missing_client_tags_are_reported_to_clients_that_know_the_status() -> None:
    client = Client(replace(NO_DELAY, rack_tags=("zone", "cluster")))
    [status] = client.beat("a", client_tags={"cluster": "k"}).statuses
    assert status.code is StatusCode.MISSING_CLIENT_TAGS
    assert "standby assignment: [zone]. Configure" in status.detail
    assert client.beat("a", 2, knows_missing_tags=False).statuses == []


def test_a_member_may_shut_the_application_down() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.beat("b", -1, shutdown_application=True)
    [status] = client.beat("a", 2).statuses
    assert status.code is StatusCode.SHUTDOWN_APPLICATION
    assert status.detail.startswith("Streams group member b encountered a fatal error")
    client.beat("a", -1)
    assert client.beat("a").statuses == [], "an empty group forgets it"


def test_a_member_learns_the_endpoints_of_all() -> None:
    client = Client()
    client.beat("a", endpoint=Endpoint("h", 1))
    known = client.beat("a", 2, endpoint=Endpoint("h", 2))
    assert known.endpoint_epoch == 1
    assert known.endpoints == [(("h", 2), [("in", [0, 1])], [])]
    assert client.beat("a", 3, endpoint_epoch=1).endpoints is None
    response = client.beat("b", endpoint=Endpoint("g", 1))
    assert response.endpoints is not None
    assert [each.endpoint.host for each in response.endpoints] == ["h", "g"]


# -- Static members ----------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_its_tasks() -> None:
    client = Client()
    client.beat("a", instance_id="i", process_id="p")
    message = refused(ErrorCode.UNRELEASED_INSTANCE_ID, client, "b", instance_id="i")
    assert message.endswith("the instance id is owned by a member.")
    left = client.beat("a", -2, instance_id="i")
    assert (left.epoch, client.kinds) == (-2, [22])
    response = client.beat("b", instance_id="i", process_id="p")
    assert (response.epoch, response.assignment) == (2, active(0, 1))
    assert client.kinds == [-22, -21, -19, 19, 21, 22]
    assert client.group.static == {"i": "b"}
    message = refused(ErrorCode.FENCED_INSTANCE_ID, client, "a", 2, instance_id="i")
    assert message == "Static member a with instance id i was fenced by member b."
    assert refused(ErrorCode.UNKNOWN_MEMBER_ID, client, "a", 2, instance_id="j") == "Instance id j is unknown."


def test_a_static_member_that_stays_away_is_removed() -> None:
    client = Client()
    client.beat("a", instance_id="i")
    client.beat("a", -2, instance_id="i")
    client.tick(45_000)
    assert not client.group.members
    assert not client.group.static


# -- Time and failures -------------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed() -> None:
    client = Client()
    client.beat("a")
    client.tick(44_999)
    assert client.group.members
    client.tick(1)
    assert not client.group.members
    assert client.kinds == [-22, -21, -19, 17, 20]


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.beat("a", 2, owned=active(0, 1))
    assert client.group.members["a"].state is MemberState.UNREVOKED
    client.tick(299)
    client.beat("b", 3)
    client.tick(1)
    assert client.group.members.keys() == {"b"}
    client.settle("b")
    assert client.group.members["b"].assigned.assignment == active(0, 1)


def test_members_go_on_after_their_coordinator_has_moved() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.beat("a", 2, owned=active(0, 1))
    client.failover()
    response = client.beat("a", 2)
    assert (response.epoch, response.assignment) == (2, None)
    client.tick(300)
    assert client.group.members.keys() == {"b"}, "the time to revoke has begun again"


def test_what_members_have_restored_decides() -> None:
    client = Client(NO_DELAY, **{"in": 1, "log": 1})
    client.beat("a")
    client.beat("b", task_offsets={Task("0", 0): 5}, task_end_offsets={Task("0", 0): 9})
    client.beat("c")
    client.beat("a", -1)
    client.settle("b", "c")
    assert client.group.members["b"].assigned.assignment == active(0)
    assert client.group.task_end_offsets == {"b": {Task("0", 0): 9}}


def committed(client: Client, member_id: str, epoch: int, *partitions: int, **fields: Any) -> ErrorCode:
    assert client.machine is not None
    places = [TopicPartition("in", index) for index in partitions]
    return client.machine.check_commit(CommitRequest(member_id, None, epoch, places, **fields), client.now)


def test_commits_are_checked() -> None:
    client = Client()
    client.beat("a")
    client.beat("b")
    client.settle("a", "b")
    [own] = client.group.members["a"].assigned.active
    other = 1 - own.partition
    assert committed(client, "a", 3, other) is ErrorCode.NONE, "as in Kafka, in the current epoch anything"
    assert committed(client, "a", 2, own.partition) is ErrorCode.NONE, "it has had the task since then"
    assert committed(client, "a", 2, other) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(client, "a", 1, own.partition) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(client, "a", 4, own.partition) is ErrorCode.STALE_MEMBER_EPOCH
    assert committed(client, "z", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(client, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(client, "", -1, transactional=True) is ErrorCode.NONE
    assert committed(client, "a", 3, knows_member_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    client.beat("a", -1)
    client.beat("b", -1)
    assert committed(client, "", -1) is ErrorCode.NONE


def test_offsets_may_be_read_in_the_current_epoch() -> None:
    client = Client()
    client.beat("a")
    assert client.group.check_fetch(None, -1) is ErrorCode.NONE
    assert client.group.check_fetch("a", 2) is ErrorCode.NONE
    assert client.group.check_fetch("a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert client.group.check_fetch("z", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_topics_are_in_use_while_there_are_members() -> None:
    client = Client()
    client.beat("a")
    assert client.group.topics_in_use() == {"in"}
    assert client.group.check_delete() is ErrorCode.NON_EMPTY_GROUP
    client.beat("a", -1)
    assert client.group.topics_in_use() == set()
    assert client.group.check_delete() is ErrorCode.NONE


def test_records_that_are_too_large_change_nothing() -> None:
    client = Client()
    client.beat("a")
    tags = {str(number): "x" * 30_000 for number in range(300)}
    refused(ErrorCode.UNKNOWN_SERVER_ERROR, client, "a", 2, client_tags=tags)
    assert client.beat("a", 2).assignment is None
    assert records.MEMBER not in client.kinds
