"""A member of a share group (KIP-932): records that no other member gets while this one has them.

Not librdkafka's consumer, which acquires whole batches: what a command that wants one record does not show would count
as delivered, and a group gives up records that were delivered too often. Every failure is a ClientError.
"""

import math
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from anabranch.client.cluster import GROUP, Cluster, Place
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.batch import check_crc, iterate_batches
from anabranch.protocol.errors import ErrorCode, ProtocolError
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from anabranch.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from anabranch.protocol.records import Record, decode_records

GAP, ACCEPT, RELEASE, REJECT = range(4)
"""Types of acknowledgements. A gap is an offset without a record, such as that of a marker."""
FETCH_BYTES: Final = 16 << 20
RECORD_LIMIT: Final = 1
"""Acquire mode in which a node gives no more records than it is asked for (KIP-1206)."""
JOINING_S: Final = 5.0
"""Time after joining in which a member without partitions asks for them at each turn."""
PAUSE_S: Final = 0.1
LEAVING, FINAL = -1, -1
"""Epochs of a member that leaves, and of the last request of a session."""
_REJOIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_NO_SESSION: Final = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
_ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors of a partition that has moved, or whose topic is deleted."""
_IdAndPartition = tuple[bytes, int]


class Delivery(NamedTuple):
    """A record that the member has acquired. `delivery_count` is 1 for the first delivery."""

    place: Place
    record: Record
    is_append_time: bool
    delivery_count: int


@dataclass(slots=True)
class _Session:
    """State of the member at a node. `epoch` is that of the next request."""

    epoch: int = 0
    partitions: set[_IdAndPartition] = field(default_factory=set)


class ShareMember:
    """A member that reads topics. It beats whenever it fetches, which it must do more often than its session ends."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = sorted(set(topics))
        self._member_id = uuid_text(secrets.token_bytes(16))
        self._epoch = 0
        self._beat_s = self._joining_until_s = 0.0
        self._assigned: Sequence[_IdAndPartition] = ()
        self._names: dict[bytes, str] = {}
        """Names of topics by id, of deleted ones too: records of theirs may still be acknowledged, and are refused."""
        self._leaders: dict[_IdAndPartition, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._turn = 0
        self.locked_until_s = math.inf
        """Time, by `time.perf_counter`, at which the first of the locks may end, and its records be delivered again."""

    def fetch(self, records_max: int, wait_s: float) -> Sequence[Delivery]:
        """Acquire records, at most `records_max`; empty if there are none within that time. Raises ClientError."""
        self._beat()
        if any(each not in self._leaders for each in self._assigned):
            self._find_leaders()
        by_node: dict[int, set[_IdAndPartition]] = {}
        for each in self._assigned:
            if each in self._leaders:
                by_node.setdefault(self._leaders[each], set()).add(each)
        if not by_node:
            time.sleep(PAUSE_S)
        nodes = sorted(by_node)
        self._turn += 1
        found: list[Delivery] = []
        for position in range(len(nodes)):  # another node comes first in each turn: one may always have enough
            node_id = nodes[(self._turn + position) % len(nodes)]
            if len(found) < records_max:
                node_wait_s = 0.0 if found else wait_s / len(nodes)
                found += self._fetch(node_id, by_node[node_id], records_max - len(found), node_wait_s)
        return found

    def acknowledge(self, offsets: Mapping[Place, Sequence[int]], kind: int) -> Sequence[str]:
        """Acknowledge records that were fetched; return why those of a partition cannot be, a line for each."""
        ids = {name: topic_id for topic_id, name in self._names.items()}
        by_node: dict[int | None, dict[_IdAndPartition, Sequence[int]]] = {}
        for (name, index), chosen in offsets.items():
            place = ids[name], index
            by_node.setdefault(self._leaders.get(place), {})[place] = chosen
        failures: dict[_IdAndPartition, str] = {}
        for node_id, wanted in by_node.items():
            if node_id is None or not (session := self._sessions.get(node_id)) or not session.epoch:
                failures |= dict.fromkeys(wanted, "its leader has changed")
            else:
                failures |= self._acknowledge(node_id, session, wanted, kind)
        return [f"{self._names[topic_id]}-{index}: {why}" for (topic_id, index), why in failures.items()]

    def reconnect(self, cluster: Cluster) -> None:
        """Continue through other connections: what was acquired by the earlier ones is given back with them."""
        self._cluster = cluster
        self._sessions.clear()
        self._leaders = {}
        self.locked_until_s = math.inf

    def leave(self) -> None:
        """Give back what was acquired and not acknowledged, and leave the group. What fails here, time does."""
        for node_id, session in self._sessions.items():
            if session.epoch:
                request = ShareAcknowledgeRequest(
                    group_id=self._group, member_id=self._member_id, share_session_epoch=FINAL
                )
                with suppress(ClientError):
                    self._cluster.node(node_id).call(request)
        if self._epoch > 0:
            with suppress(ClientError):
                self._heartbeat(LEAVING)

    # -- The group ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Join the group, or tell it that the member is there, if it is time."""
        now_s = time.perf_counter()
        if self._epoch == 0:
            self._joining_until_s = now_s + JOINING_S
        if now_s < self._beat_s and (self._assigned or now_s > self._joining_until_s):
            return
        answer = self._heartbeat(self._epoch)
        code = answer.error_code
        if code in _REJOIN and self._epoch:
            self._epoch, self._assigned = 0, ()
        elif code in _MOVED:
            time.sleep(PAUSE_S)
        elif code:
            raise ClientError(f"group {self._group}: {error_text(code, answer.error_message)}")
        else:
            self._epoch = answer.member_epoch
            self._beat_s = now_s + answer.heartbeat_interval_ms / 1000
            if answer.assignment is not None:
                self._assigned = [
                    (topic.topic_id, index)
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                ]

    def _heartbeat(self, epoch: int) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=epoch,
            subscribed_topic_names=self._topics if epoch == 0 else None,
        )
        answer: ShareGroupHeartbeatResponse = self._cluster.coordinator(self._group, GROUP).call(request)
        return answer

    def _find_leaders(self) -> None:
        topics = [each for each in self._cluster.describe_topics(self._topics).topics if not each.error_code]
        self._names |= {each.topic_id: each.name or "" for each in topics}
        self._leaders = {
            (topic.topic_id, each.partition_index): each.leader_id
            for topic in topics
            for each in topic.partitions
            if each.leader_id >= 0
        }

    # -- Records -----------------------------------------------------------------------------------------------------

    def _fetch(self, node_id: int, wanted: set[_IdAndPartition], records_max: int, wait_s: float) -> Sequence[Delivery]:
        session = self._sessions.setdefault(node_id, _Session())
        request = ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=int(wait_s * 1000),
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=RECORD_LIMIT,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition_index=index)])
                for topic_id, index in sorted(wanted - session.partitions)
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=[index])
                for topic_id, index in sorted(session.partitions - wanted)
            ],
        )
        asked_s = time.perf_counter()
        answer: ShareFetchResponse = self._cluster.node(node_id).call(request)
        if answer.error_code in _NO_SESSION:
            del self._sessions[node_id]
            return ()
        if answer.error_code:
            raise ClientError(f"group {self._group}: {error_text(answer.error_code, answer.error_message)}")
        session.epoch, session.partitions = session.epoch + 1, wanted
        found: list[Delivery] = []
        gaps: dict[_IdAndPartition, Sequence[int]] = {}
        for topic in answer.responses:
            for each in topic.partitions:
                place = topic.topic_id, each.partition_index
                if each.error_code in _ELSEWHERE:
                    self._leaders.pop(place, None)
                    time.sleep(PAUSE_S)
                elif each.error_code:
                    where = f"{self._names[place[0]]}-{place[1]}"
                    raise ClientError(f"{where}: {error_text(each.error_code, each.error_message)}")
                deliveries, missing = self._deliveries(place, each)
                found += deliveries
                if missing:
                    gaps[place] = missing
        if gaps:
            self._acknowledge(node_id, session, gaps, GAP)
        if found:
            self.locked_until_s = min(self.locked_until_s, asked_s + answer.acquisition_lock_timeout_ms / 1000)
        return found

    def _deliveries(self, place: _IdAndPartition, found: PartitionData) -> tuple[Sequence[Delivery], Sequence[int]]:
        """Return the records that were acquired, and the acquired offsets without one."""
        counts = {
            offset: each.delivery_count
            for each in found.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        named = self._names[place[0]], place[1]
        records: Any = found.records or b""  # received in one piece
        deliveries: list[Delivery] = []
        try:
            for header, batch in iterate_batches(records):
                check_crc(batch, header)
                deliveries += [
                    Delivery(named, record, header.is_log_append_time, counts.pop(record.offset))
                    for record in (() if header.is_control else decode_records(batch))
                    if record.offset in counts
                ]
        except ProtocolError as error:
            raise ClientError(f"{named[0]}-{named[1]}: {error}") from None
        return deliveries, sorted(counts)

    def _acknowledge(
        self, node_id: int, session: _Session, wanted: Mapping[_IdAndPartition, Sequence[int]], kind: int
    ) -> Mapping[_IdAndPartition, str]:
        """Acknowledge offsets at the node that leads their partitions; return why that of a partition failed."""
        runs = {place: [(first, last, kind) for first, last in _runs(offsets)] for place, offsets in wanted.items()}
        request = acknowledge_request(self._group, self._member_id, session.epoch, runs)
        answer: ShareAcknowledgeResponse = self._cluster.node(node_id).call(request)
        if answer.error_code:
            del self._sessions[node_id]
            return dict.fromkeys(wanted, error_text(answer.error_code, answer.error_message))
        session.epoch += 1
        return {
            (topic.topic_id, each.partition_index): error_text(each.error_code, each.error_message)
            for topic in answer.responses
            for each in topic.partitions
            if each.error_code
        }


def acknowledge_request(
    group: str, member_id: str, session_epoch: int, runs: Mapping[tuple[bytes, int], Iterable[tuple[int, int, int]]]
) -> ShareAcknowledgeRequest:
    """Return a request that acknowledges runs of offsets, by topic id and partition: first, last, and type of each."""
    topics: dict[bytes, list[AcknowledgePartition]] = {}
    for (topic_id, index), each in runs.items():
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
            for first, last, kind in each
        ]
        partition = AcknowledgePartition(partition_index=index, acknowledgement_batches=batches)
        topics.setdefault(topic_id, []).append(partition)
    return ShareAcknowledgeRequest(
        group_id=group,
        member_id=member_id,
        share_session_epoch=session_epoch,
        topics=[AcknowledgeTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
    )


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last offset of each run of offsets that follow one another."""
    first = last = None
    for offset in sorted(offsets):
        if first is None or last is None:
            first = offset
        elif offset != last + 1:
            yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last
