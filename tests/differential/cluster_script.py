"""The API for scripts that send requests to several brokers of one cluster.

`on` names a connection, as in `Script`; its first word is the id of the broker that it goes to: `2`, or `2 consumer`.
Without it requests go to broker 1. Both clusters have the brokers 1, 2 and 3. `place` and `key_at` fix which of them
leads a partition and coordinates a group, so that answers name the same brokers.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.answers import Normal, Symbols
from tests.differential.peer import Peer
from tests.differential.script import MAIN, Script, Step

NODES = (1, 2, 3)
ANY_BROKER = "<a broker>"
CHOICES = {
    "MetadataResponse.controller_id": ANY_BROKER,
    "DescribeClusterResponse.controller_id": ANY_BROKER,
    "PartitionDataResponse.leader_id": ANY_BROKER,
}
"""Apache Kafka's brokers name any broker as the controller, and any may lead the quorum."""


class ClusterScript(Script):
    """One cluster's run of a script."""

    def __init__(self, peers: Mapping[int, Peer], *, takes_over: bool) -> None:
        """`takes_over` says that living brokers lead the partitions of dead ones, even without other replicas."""
        super().__init__(peers[1])
        self.takes_over = takes_over
        self._peers = peers
        ports = {peer.port: f"<port of {node_id}>" for node_id, peer in peers.items()}
        self._normal = Normal(Symbols(), ports, CHOICES)

    def call_each(self, name: str, request: object, *versions: int, own: str = "") -> None:
        """Send a request to each broker in each of the versions, and record the answers."""
        for node_id in NODES:
            self.call(f"{name}, by {node_id}", request, *versions, on=str(node_id), own=own)

    def until_each(self, request: object, version: int, done: Callable[[Any], bool]) -> None:
        """Ask each broker until its answer is as it should be."""
        for node_id in NODES:
            self.until(request, version, done, on=str(node_id))

    def place(self, name: str, *leaders: int, **configs: str) -> bytes:
        """Create a topic whose partitions are led by these brokers; return its id when all brokers know it."""
        given = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        wanted = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=[leader])
                for index, leader in enumerate(leaders)
            ],
            configs=given,
        )
        result = self.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics[0]
        assert not result.error_code, f"{self.peer.name}: {result}"
        self.led_by(name, *leaders)
        return bytes(result.topic_id)

    def led_by(self, name: str, *leaders: int) -> None:
        """Wait until these brokers serve the partitions of a topic, and all brokers say so."""
        for node_id in set(leaders):
            led = [index for index, leader in enumerate(leaders) if leader == node_id]
            asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in led]
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
            self.until(
                request,
                7,
                lambda answer: not any(part.error_code for part in answer.topics[0].partitions),
                on=str(node_id),
            )
        metadata = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        self.until_each(metadata, 9, lambda answer: _leaders(answer.topics[0].partitions) == list(leaders))

    def key_at(self, prefix: str, node_id: int) -> str:
        """Return the first name with that prefix that the broker coordinates: a group or a transactional id."""
        return next(key for at in count() if partition_of(key := f"{prefix}-{at}", len(NODES)) == node_id - 1)

    def _peer_of(self, name: str) -> Peer:
        return self.peer if name == MAIN else self._peers[int(name.split(maxsplit=1)[0])]


def _leaders(partitions: Sequence[Any]) -> list[int]:
    return [part.leader_id for part in sorted(partitions, key=lambda part: part.partition_index)]


ClusterScriptFunction = Callable[[ClusterScript], None]


def run_cluster_script(
    function: ClusterScriptFunction, peers: Mapping[int, Peer], *, takes_over: bool
) -> Sequence[Step]:
    """Run a script against a cluster and return its answers."""
    script = ClusterScript(peers, takes_over=takes_over)
    try:
        function(script)
    finally:
        script.close()
    return script.steps
