"""Requests to the right nodes of a cluster: leaders of partitions, coordinators, all nodes.

Connections are opened when they are needed, one for each node, and closed together.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from anabranch.client.connection import Connection, connect_to_any, error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from anabranch.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from anabranch.protocol.messages.fetch import FetchResponse, PartitionData

Place = tuple[str, int]
"""Topic and partition."""
GROUP, TRANSACTION = 0, 1
"""Types of keys in FindCoordinator."""
LATEST: Final = -1
EARLIEST: Final = -2
TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 10_000
COORDINATOR_WAIT_S: Final = 10.0
COORDINATOR_POLL_S: Final = 0.1
_TOPIC_NAME: Final = re.compile("[a-zA-Z0-9._-]{1,249}")
_MOVING: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


def topic_error(name: str | None, code: int, message: str | None = None) -> ClientError:
    """Return the error of a topic, with the node's message if it has one."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ClientError(f"topic {name} does not exist")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION and not _TOPIC_NAME.fullmatch(name or ""):
        message = None  # only some responses have one: what is wrong with a name is always said in the same words
    return ClientError(f"topic {name}: {error_text(code, message)}")


class Cluster:
    """A cluster, as it is seen from the first node that answers. Every failure is a ClientError."""

    def __init__(self, servers: str, connect: Callable[[str, int], Connection]) -> None:
        self._connect = connect
        self.first: Connection = connect_to_any(servers, connect)
        """The node that was reached first."""
        self._nodes: dict[int, Connection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in (self.first, *self._nodes.values()):
            connection.close()

    def describe_topics(self, names: Iterable[str] | None = None) -> MetadataResponse:
        """Return the metadata of some topics, or of all, without creating any."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer: MetadataResponse = self.first.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        self._addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        return answer

    def topics(self, names: Sequence[str]) -> Sequence[MetadataResponseTopic]:
        """Return the metadata of topics that must exist."""
        found = self.describe_topics(names).topics
        for each in found:
            if each.error_code:
                raise topic_error(each.name, each.error_code)
        return found

    def node(self, node_id: int) -> Connection:
        """Return a connection to a node by its id."""
        if node_id not in self._nodes:
            if node_id not in self._addresses:
                self.describe_topics([])
            if node_id not in self._addresses:
                raise ClientError(f"node {node_id} is not in the cluster, or not reachable by this listener")
            self._nodes[node_id] = self._connect(*self._addresses[node_id])
        return self._nodes[node_id]

    def name_and_addresses(self) -> tuple[str, Mapping[int, tuple[str, int]]]:
        """Return the name of the cluster, and host and port of all nodes that are up, by id."""
        return self.describe_topics([]).cluster_id or "", self._addresses

    def nodes(self) -> Mapping[int, Connection]:
        """Return connections to all nodes that are up."""
        return {node_id: self.node(node_id) for node_id in self.name_and_addresses()[1]}

    def coordinator(self, key: str, kind: int) -> Connection:
        """Return a connection to the coordinator of a group or a transactional id."""
        until = time.perf_counter() + COORDINATOR_WAIT_S
        while True:
            code, message, node_id = self._find_coordinator(key, kind)
            if not code:
                return self.node(node_id)
            if code not in _MOVING or time.perf_counter() > until:
                raise ClientError(f"{key}: {error_text(code, message)}")
            time.sleep(COORDINATOR_POLL_S)

    def _find_coordinator(self, key: str, kind: int) -> tuple[int, str | None, int]:
        if self.first.version(FindCoordinatorRequest) >= 4:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer: FindCoordinatorResponse = self.first.call(request)
            found: Any = answer.coordinators[0]
        else:
            found = self.first.call(FindCoordinatorRequest(key=key, key_type=kind))
        return found.error_code, found.error_message, found.node_id

    def list_offsets(
        self,
        topics: Iterable[MetadataResponseTopic],
        timestamps: Mapping[Place, int] | int,
        *,
        read_committed: bool = False,
    ) -> dict[Place, int]:
        """Return the offsets of timestamps, or of LATEST and EARLIEST; -1: no record is that new.

        Partitions without a leader, and those that answer with an error, are left out.
        """
        by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        for topic in topics:
            name = topic.name or ""
            for partition in topic.partitions:
                place = (name, partition.partition_index)
                timestamp = timestamps if isinstance(timestamps, int) else timestamps.get(place)
                if timestamp is None or partition.leader_id < 0:
                    continue
                asked = ListOffsetsPartition(partition_index=place[1], timestamp=timestamp)
                by_leader.setdefault(partition.leader_id, {}).setdefault(name, []).append(asked)
        found: dict[Place, int] = {}
        for leader, wanted in by_leader.items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=[ListOffsetsTopic(name=name, partitions=each) for name, each in wanted.items()],
                timeout_ms=TIMEOUT_MS,
            )
            answer: ListOffsetsResponse = self.node(leader).call(request)
            for topic_answer in answer.topics:
                for each in topic_answer.partitions:
                    if not each.error_code:
                        found[topic_answer.name, each.partition_index] = each.offset
        return found

    def fetch_batch(self, place: Place, offset: int) -> memoryview:
        """Return the batch with the record at an offset, which must exist."""
        from anabranch.protocol.batch import iterate_batches  # late, as the messages of `fetch`

        name, index = place
        (topic,) = self.topics([name])
        found = self.fetch(topic, index, offset, bytes_max=1)
        records: Any = found.records or b""  # received in one piece
        for _, batch in iterate_batches(records):
            return batch
        raise ClientError(f"{name}-{index}: offset {offset} cannot be read: {error_text(found.error_code)}")

    def fetch(
        self, topic: MetadataResponseTopic, index: int, offset: int, *, bytes_max: int, read_committed: bool = False
    ) -> "PartitionData":
        """Return an answer with the batches from the one with an offset on: one, and more up to `bytes_max`.

        It waits while a node loads what is in objects only.
        """
        # Imported late: its messages are the largest, and few commands fetch.
        from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        leader = next(each.leader_id for each in topic.partitions if each.partition_index == index)
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            isolation_level=int(read_committed),
            topics=[FetchTopic(topic=topic.name or "", topic_id=topic.topic_id, partitions=[wanted])],
        )
        answer: FetchResponse = self.node(leader).call(request)
        return answer.responses[0].partitions[0]
