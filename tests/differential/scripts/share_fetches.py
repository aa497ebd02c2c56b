"""ShareFetch and ShareAcknowledge: sessions, acknowledgements valid and invalid, and random histories.

Which neighbours among acquired records are named as one range is not compared: Apache Kafka names single offsets where
a node names ranges.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import share_acknowledge, share_fetch
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from anabranch.protocol.messages.share_fetch import ShareFetchRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.differential.script import WAIT_S, Script
from tests.differential.scripts.groups import coordinator
from tests.support.raw_client import batch_of

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP = 32
NEWEST = 2
WAIT_MS = 5_000
ROUNDS_MAX = 10
Acked = tuple[int, int, Sequence[int]]


class Members:
    """Members of a share group of one topic, each with its connection and its session's epoch.

    Acknowledgements are of partition 0.
    """

    def __init__(
        self,
        script: Script,
        name: str,
        configs: Mapping[str, str] = MappingProxyType({}),
        *,
        partitions: int = 1,
        **topic_configs: str,
    ) -> None:
        self.script = script
        self.group = name
        self.partitions = partitions
        coordinator(script)
        self.topic_id = script.topic(name, partitions, **topic_configs)
        self.epochs: dict[str, int] = {}
        self.held: dict[str, list[int]] = {}
        """Offsets of partition 0 that each member has acquired."""
        entries = [
            AlterableConfig(name=key, config_operation=0, value=value)
            for key, value in {"share.auto.offset.reset": "earliest", **configs}.items()
        ]
        resource = AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=entries)
        script.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)

    def produce(self, *sizes: int, partition: int = 0) -> None:
        """Produce a batch of each size."""
        for size in sizes:
            data = bytes(batch_of(*(b"v%d" % at for at in range(size))))
            partitions = [PartitionProduceData(index=partition, records=data)]
            topics = [TopicProduceData(name=self.group, partition_data=partitions)]
            self.script.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics), 9)

    def join(self, member: str) -> None:
        """Have a member join, so that the state of the share partition exists; then begin its session."""
        beat = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=member, member_epoch=0, subscribed_topic_names=[self.group]
        )
        self.script.until(beat, 1, self._is_assigned)
        self.begin(member)

    def _is_assigned(self, answer: Any) -> bool:
        assigned = answer.assignment.topic_partitions if answer.assignment else ()
        return sum(len(topic.partitions) for topic in assigned) == self.partitions

    def begin(self, member: str) -> None:
        """Begin a session, without acquiring anything."""
        self.script.ask(self.fetch_request(member, 0, max_records=0, max_wait_ms=0), NEWEST, on=member)
        self.epochs[member] = 1
        self.held[member] = []

    def fetch_request(self, member: str, epoch: int, *acked: Acked, **fields: Any) -> ShareFetchRequest:
        batches = [
            share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acked
        ]
        values: dict[str, Any] = {
            "share_session_epoch": epoch,
            "max_records": 100,
            "batch_size": 100,
            "max_bytes": 1 << 20,
            "min_bytes": 1,
            "max_wait_ms": WAIT_MS,
            "topics": [
                share_fetch.FetchTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        share_fetch.FetchPartition(
                            partition_index=index, acknowledgement_batches=() if index else batches
                        )
                        for index in range(self.partitions)
                    ],
                )
            ],
            **fields,
        }
        return ShareFetchRequest(group_id=self.group, member_id=member, **values)

    def acknowledge_request(self, member: str, epoch: int, *acked: Acked, **fields: Any) -> ShareAcknowledgeRequest:
        batches = [
            share_acknowledge.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acked
        ]
        partition = share_acknowledge.AcknowledgePartition(acknowledgement_batches=batches)
        topic = share_acknowledge.AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])
        return ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=member,
            **{"share_session_epoch": epoch, "topics": [topic], **fields},
        )

    def next(self, member: str) -> int:
        """Return the epoch of the member's next request, and count it."""
        epoch = self.epochs[member]
        self.epochs[member] += 1
        return epoch

    def fetch(self, step: str, member: str, *acked: Acked, **fields: Any) -> None:
        """Fetch, and note what was acquired in each partition, offset by offset."""
        self.script.note(step, self._fetch(member, *acked, **fields)[0])

    def fetch_quietly(self, member: str) -> None:
        """Fetch, and note nothing."""
        self._fetch(member)

    def fetch_some(self, step: str, member: str, **fields: Any) -> None:
        """Fetch until something was acquired, and note it: Apache Kafka may answer too early."""
        noted: Any = None
        for _ in range(ROUNDS_MAX):
            noted, acquired = self._fetch(member, **fields)
            if acquired:
                break
        self.script.note(step, noted)

    def _fetch(self, member: str, *acked: Acked, **fields: Any) -> tuple[Any, int]:
        """Fetch; returns what is to be noted, and the number of records that were acquired."""
        request = self.fetch_request(member, self.next(member), *acked, **fields)
        answer = self.script.ask(request, NEWEST, on=member)
        noted: dict[str, Any] = {"error": ErrorCode(answer.error_code).name}
        count = 0
        for topic in answer.responses:
            for partition in topic.partitions:
                acquired = [
                    (offset, each.delivery_count)
                    for each in partition.acquired_records
                    for offset in range(each.first_offset, each.last_offset + 1)
                ]
                errors = [ErrorCode(partition.error_code).name, ErrorCode(partition.acknowledge_error_code).name]
                count += len(acquired)
                if partition.partition_index == 0:
                    self.held[member] += [offset for offset, _ in acquired]
                if acquired or acked or errors != ["NONE", "NONE"]:
                    noted[f"partition {partition.partition_index}"] = [*errors, str(acquired)]
        return noted, count

    def acknowledge(self, step: str, member: str, *acked: Acked, **fields: Any) -> None:
        """Acknowledge, and note the errors. What was acknowledged with success is held no more."""
        request = self.acknowledge_request(member, self.next(member), *acked, **fields)
        answer = self.script.ask(request, NEWEST, on=member)
        self.script.note(step, [ErrorCode(answer.error_code).name, _results(answer)])
        if not any(each.error_code for topic in answer.responses for each in topic.partitions):
            gone = {offset for first, last, types in acked if types != [RENEW] for offset in range(first, last + 1)}
            self.held[member] = [offset for offset in self.held[member] if offset not in gone]

    def until_unlocked(self, offset: int, other: str, *, renewed: tuple[str, int] | None = None) -> None:
        """Wait until the lock of a record has ended. Until then, another member is not its owner.

        `renewed` are a member and a record whose lock the member renews meanwhile.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            if renewed is not None:
                member, kept = renewed
                request = self.acknowledge_request(member, self.next(member), (kept, kept, [RENEW]), is_renew_ack=True)
                results = _results(self.script.ask(request, NEWEST, on=member))
                assert all("NONE" in each for each in results), f"{self.script.peer.name}: {kept}: {results}"
            request = self.acknowledge_request(other, self.next(other), (offset, offset, [ACCEPT]))
            results = _results(self.script.ask(request, NEWEST, on=other))
            if not any("owner" in each for each in results):
                return
            assert time.monotonic() < deadline, f"{self.script.peer.name}: the lock of {offset} does not end: {results}"
            time.sleep(0.02)

    def note_done(self, step: str) -> None:
        """Wait until the group is done with all. The start offset that is stored follows with the next write."""
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=[asked])

        def lags(answer: Any) -> list[int]:
            return [each.lag for topic in answer.groups[0].topics for each in topic.partitions]

        self.script.note(step, lags(self.script.until(request, 1, lambda answer: not any(lags(answer)))))


def _results(answer: Any) -> list[str]:
    return [
        f"{ErrorCode(each.error_code).name}: {each.error_message}"
        for topic in answer.responses
        for each in topic.partitions
    ]


def share_fetch_sessions(script: Script) -> None:
    members = Members(script, "sf-sessions")
    members.join("m")
    fetch, acknowledge = members.fetch_request, members.acknowledge_request
    for version in (1, 2):
        for name, request in {
            "no group": ShareFetchRequest(group_id=None, member_id="m"),
            "a group without a name": ShareFetchRequest(group_id="", member_id="m"),
            "no member": fetch("", 0),
            "no member at all": ShareFetchRequest(group_id="sf-sessions", member_id=None),
            "a long member id": fetch("m" * 37, 0),
            "an unknown session": fetch("n", 1),
            "the end of an unknown session": fetch("n", -1),
            "another epoch": fetch("m", 99),
            "acknowledgements at the beginning": fetch("m", 0, (0, 0, [ACCEPT])),
        }.items():
            script.call(name, request, version)
        for name, asked in {
            "no group to acknowledge in": ShareAcknowledgeRequest(group_id=None, member_id="m"),
            "no member who acknowledges": acknowledge("", 1),
            "at the beginning": acknowledge("m", 0, (0, 0, [ACCEPT])),
            "in an unknown session": acknowledge("n", 1, (0, 0, [ACCEPT])),
            "at the end of an unknown session": acknowledge("n", -1, (0, 0, [ACCEPT])),
            "in another epoch": acknowledge("m", 99, (0, 0, [ACCEPT])),
        }.items():
            script.call(name, asked, version)
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    for name in nothing:
        script.call(f"a renewal with {name}", fetch("m", 1, is_renew_ack=True, **{**nothing, name: 1}), 2)
    unknown = [share_fetch.FetchTopic(topic_id=b"\1" * 16, partitions=[share_fetch.FetchPartition()])]
    script.call("an unknown topic", fetch("m", 1, topics=unknown, max_wait_ms=0), 2, on="m")
    gone = [share_fetch.ForgottenTopic(topic_id=b"\1" * 16, partitions=[0])]
    script.call("forgotten", fetch("m", 2, topics=[], forgotten_topics_data=gone, max_wait_ms=0), 2, on="m")
    topics = [
        share_fetch.FetchTopic(topic_id=members.topic_id, partitions=[share_fetch.FetchPartition(partition_index=7)])
    ]
    script.call("an unknown partition", fetch("m", 3, topics=topics, max_wait_ms=0), 2, on="m")
    script.call("the end", fetch("m", -1, max_wait_ms=0), 2, on="m")
    script.call("after the end", fetch("m", 4, max_wait_ms=0), 2, on="m")
    script.call("an unknown topic at the beginning", fetch("m", 0, topics=unknown, max_wait_ms=0), 2, on="m")


def share_fetches(script: Script) -> None:
    """Compare whole answers, with their records, where nothing but one range is acquired."""
    members = Members(script, "sf-fetches")
    members.join("m")
    members.produce(10)
    fetch, acknowledge = members.fetch_request, members.acknowledge_request
    strict = {"max_records": 4, "batch_size": 1, "share_acquire_mode": 1}
    script.call("four of ten", fetch("m", 1, **strict), 2, on="m")
    script.call("released by leaving", acknowledge("m", -1, (0, 3, [RELEASE])), 2, on="m")
    script.call("delivered again", fetch("m", 0, **strict), 2, on="m")
    script.call("accepted and released", acknowledge("m", 1, (0, 1, [ACCEPT]), (2, 2, [RELEASE])), 2, on="m")
    script.call("rejected", acknowledge("m", 2, (3, 3, [REJECT])), 1, on="m")
    script.call("acknowledged twice", acknowledge("m", 3, (0, 0, [ACCEPT])), 2, on="m")
    script.call("the rest", fetch("m", 4), 2, on="m")
    script.call("acknowledged by a fetch", fetch("m", 5, (2, 9, [ACCEPT]), max_wait_ms=200), 1, on="m")
    script.call("the end, without topics", acknowledge("m", -1, topics=[]), 2, on="m")


def share_acknowledgements(script: Script) -> None:
    members = Members(script, "sf-acks")
    members.join("m")
    members.produce(5, 5)
    acknowledge = members.acknowledge_request
    script.call("fetched", members.fetch_request("m", 1), 2, on="m")
    acknowledgements: dict[str, list[Acked]] = {
        "from the end to the beginning": [(3, 2, [ACCEPT])],
        "no types": [(0, 1, [])],
        "too many types": [(0, 1, [ACCEPT] * 3)],
        "too few types": [(0, 3, [ACCEPT] * 2)],
        "an unknown type": [(0, 1, [5])],
        "a negative type": [(0, 1, [-1])],
        "a renewal unannounced": [(0, 1, [RENEW])],
        "in descending order": [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])],
        "beyond the end": [(5, 12, [ACCEPT])],
        "past the end": [(11, 12, [ACCEPT])],
        "none": [],
        "some": [(0, 1, [ACCEPT, REJECT]), (2, 3, [GAP]), (4, 4, [RELEASE])],
        "again": [(0, 1, [ACCEPT])],
        "what was released": [(4, 4, [ACCEPT])],
        "twice in one request": [(5, 6, [ACCEPT]), (6, 7, [ACCEPT])],
        "the rest": [(5, 9, [ACCEPT])],
    }
    for epoch, (name, acked) in enumerate(acknowledgements.items()):
        script.call(name, acknowledge("m", 2 + epoch, *acked), 2, on="m")
    script.call("unknown topic", acknowledge("m", 18, topics=[_unknown_topic()]), 2, on="m")
    script.call("in version 1", acknowledge("m", 19, (0, 0, [ACCEPT])), 1, on="m")
    script.call("delivered again", members.fetch_request("m", 20), 1, on="m")
    script.call("renewed", acknowledge("m", 21, (4, 4, [RENEW]), is_renew_ack=True), 2, on="m")
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait_ms": 0}
    renewal = members.fetch_request("m", 22, (4, 4, [RENEW]), is_renew_ack=True, **nothing)
    script.call("renewed while fetching", renewal, 2, on="m")
    script.call("the end", acknowledge("m", -1, (4, 4, [ACCEPT])), 2, on="m")


def _unknown_topic() -> share_acknowledge.AcknowledgeTopic:
    batches = [share_acknowledge.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[ACCEPT])]
    partition = share_acknowledge.AcknowledgePartition(acknowledgement_batches=batches)
    return share_acknowledge.AcknowledgeTopic(topic_id=b"\1" * 16, partitions=[partition])


def history(seed: int, requests: int) -> Callable[[Script], None]:
    """Return a script of random requests of three members: what they do follows from the seed and the answers."""

    def run(script: Script) -> None:
        rng = random.Random(seed)
        members = Members(script, f"sf-history-{seed}")
        names = ["a", "b", "c"]
        for name in names:
            members.join(name)
        members.fetch("the state is loaded", "a", max_wait_ms=300)
        members.produce(*(rng.randint(1, 12) for _ in range(8)))
        for at in range(requests):
            if rng.random() < 0.08:
                members.produce(rng.randint(1, 12))
            member = rng.choice(names)
            held = members.held[member]
            kind = rng.random()
            if kind < 0.4 or not held:
                fields = {
                    "max_records": rng.randint(1, 20),
                    "batch_size": rng.randint(1, 20),
                    "share_acquire_mode": rng.randint(0, 1),
                    "max_wait_ms": 0,
                }
                members.fetch(f"{at}: {member} fetches {fields}", member, **fields)
            elif kind < 0.9:
                _acknowledge_some(members, rng, at, member)
            elif kind < 0.95:
                first = rng.randint(0, 60)
                acked = (first, first + rng.randint(0, 9), [rng.choice((ACCEPT, RELEASE, REJECT))])
                members.acknowledge(f"{at}: {member} acknowledges anything: {acked}", member, acked)
            else:
                # Apache Kafka answers before what is left is released, so nothing may be left.
                members.epochs[member] = -1
                released = [(offset, offset, [RELEASE]) for offset in sorted(held)]
                members.acknowledge(f"{at}: {member} ends its session", member, *released)
                members.begin(member)

    run.__name__ = f"share_history_{seed}"
    return run


def _acknowledge_some(members: Members, rng: random.Random, at: int, member: str) -> None:
    """Acknowledge a run of neighbours that the member holds, as a whole or each in another way."""
    held = sorted(members.held[member])
    first = rng.choice(held)
    last = first
    while last + 1 in held and rng.random() < 0.8:
        last += 1
    kind = rng.choice((ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, GAP, RENEW))
    types = [kind]
    if rng.random() < 0.3:
        types = [rng.choice((GAP, ACCEPT, RELEASE, REJECT)) for _ in range(first, last + 1)]
    acked = (first, last, types)
    members.acknowledge(f"{at}: {member} acknowledges {acked}", member, acked, is_renew_ack=RENEW in types)


SCRIPTS = (share_fetch_sessions, share_fetches, share_acknowledgements)
