"""Write what Apache Kafka answers: `python -m tests.differential.transaction_matrix.record` (a few minutes).

The first broker leads all but the partition HELD, and the second is stopped by a signal while that one is held. The
third is for their quorum. Ids with the last epoch come from records of `__transaction_state`: the first broker loads
them when it is given the partition.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.records import transaction_record
from anabranch.broker.kafka.transactions.state_machine import EPOCH_LAST, Transaction
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from benchmarks.lab.processes import Broker
from tests.differential.kafka_cluster import kafka_cluster
from tests.differential.peer import Peer, Wire
from tests.differential.transaction_matrix.matrix import (
    EXPIRED,
    LONG_MS,
    MOMENTS,
    TIMEOUT_MS,
    TOPIC,
    Answers,
    ask_all,
    to_text,
)

FILE = Path(__file__).with_name("answers.txt")
SETTINGS = {
    "broker.session.timeout.ms": "600000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
EXPIRES = {
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}
SEEDED = 2_000
"""Ids with the last epoch, for each timeout."""
SEEDED_FROM = 1 << 40
"""Their first producer id."""
ADMIN = "__admin_client"
"""Client id that may produce to internal topics."""


class KafkaBrokers:
    """Apache Kafka: `matrix.Cluster`."""

    def __init__(self, brokers: Mapping[int, Broker]) -> None:
        self._second = brokers[2]
        self._wires = {node_id: Wire(Peer("", "127.0.0.1", broker.port)) for node_id, broker in brokers.items()}
        self._seeded = {TIMEOUT_MS: iter(range(SEEDED)), LONG_MS: iter(range(SEEDED, 2 * SEEDED))}
        self.topic_id = b""
        self.group, self.group_partition = "group", 0

    def send(self, request: Any, version: int, node_id: int = 1) -> Any:
        wire = self._wires[node_id]
        wire.send(request, version)
        return wire.receive(type(request), version)

    def until(self, request: Any, version: int, done: Callable[[Any], bool], node_id: int = 1) -> Any:
        """Ask until the answer is as it should be."""
        while not done(answer := self.send(request, version, node_id)):
            time.sleep(0.05)
        return answer

    async def ask(self, request: Any, version: int) -> Any:
        return self.send(request, version)

    def create(self, name: str, *leaders: int, **configs: str) -> bytes:
        wanted = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=[leader])
                for index, leader in enumerate(leaders)
            ],
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        (result,) = self.send(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics
        assert not result.error_code, result
        for index, leader in enumerate(leaders):
            self.serves(name, index, leader)
        return bytes(result.topic_id)

    def serves(self, name: str, index: int, node_id: int) -> None:
        """Wait until a broker leads a partition."""
        asked = ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1)])
        request = ListOffsetsRequest(replica_id=-1, topics=[asked])
        self.until(request, 7, lambda answer: not answer.topics[0].partitions[0].error_code, node_id)

    def seed(self) -> None:
        """Let the first broker load ids with the last epoch."""
        self.create(TRANSACTION_TOPIC, 2, cleanup_policy="compact")
        records = []
        for number in range(2 * SEEDED):
            timeout_ms = TIMEOUT_MS if number < SEEDED else LONG_MS
            state = Transaction(f"last-{number}", SEEDED_FROM + number, EPOCH_LAST, timeout_ms, update_ms=_now_ms())
            key, value = transaction_record(state.transactional_id, state)
            records.append(Record(key=key, value=value, timestamp_ms=_now_ms()))
        data = PartitionProduceData(index=0, records=memoryview(build_batch(records)))
        topic = TopicProduceData(name=TRANSACTION_TOPIC, partition_data=[data])
        wire = Wire(Peer("", "127.0.0.1", self._second.port), client_id=ADMIN)
        wire.send(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
        (answer,) = wire.receive(ProduceRequest, 9).responses[0].partition_responses
        assert not answer.error_code, answer
        wire.close()
        partition = ReassignablePartition(partition_index=0, replicas=[1])
        moved = ReassignableTopic(name=TRANSACTION_TOPIC, partitions=[partition])
        response = self.send(AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[moved]), 0)
        assert not response.responses[0].partitions[0].error_code, response
        self.serves(TRANSACTION_TOPIC, 0, 1)
        described = DescribeTransactionsRequest(transactional_ids=["last-0"])
        self.until(described, 0, lambda answer: not answer.transaction_states[0].error_code)

    async def begin(self, transactional_id: str, timeout_ms: int, epoch: int) -> Producer:
        if epoch:
            number = int(transactional_id.removeprefix("last-"))
            return Producer(SEEDED_FROM + number, epoch)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        response = self.until(request, 4, lambda answer: not answer.error_code)
        return Producer(response.producer_id, response.producer_epoch)

    def name_of(self, name: str) -> str:
        """Return a seeded id for a moment with the last epoch."""
        if "last epoch" not in name:
            return name
        return f"last-{next(self._seeded[TIMEOUT_MS if name.startswith('timeout') else LONG_MS])}"

    async def hold(self) -> None:
        self._second.send_signal(signal.SIGSTOP)

    async def release(self) -> None:
        self._second.send_signal(signal.SIGCONT)

    async def expire(self, transactional_ids: Collection[str]) -> None:
        request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
        gone = {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
        self.until(request, 0, lambda answer: {state.error_code for state in answer.transaction_states} == gone)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def record(moments: Sequence[Any], settings: Mapping[str, str]) -> Answers:
    """Return what new brokers of Apache Kafka answer."""
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-matrix-") as folder,
        kafka_cluster(Path(folder), 3, {**SETTINGS, **settings}) as brokers,
    ):
        kafka = KafkaBrokers(brokers)
        kafka.topic_id = kafka.create(TOPIC, 1, 1, 2)
        kafka.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
        kafka.seed()
        return asyncio.run(ask_all(kafka, moments, kafka.name_of))


def main() -> None:
    """Record everything."""
    answers = {**record(MOMENTS, {}), **record([EXPIRED], EXPIRES)}
    FILE.write_text(to_text(answers))


if __name__ == "__main__":
    main()
