"""The transactional client of the commands and of the Spark sink, against the node and Apache Kafka."""

import pytest

from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.client.transactional import ProducerFenced, TransactionalProducer
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record
from tests.differential.peer import Peer
from tests.support.events import committed_records, create_topic

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("name", ["ours", "kafka"])
def test_transactions_with_lost_answers_and_an_old_epoch(request: pytest.FixtureRequest, name: str) -> None:
    peer: Peer = request.getfixturevalue(name)
    servers, topic = f"{peer.host}:{peer.port}", "transactional-client"
    create_topic(servers, topic, 2)
    producer = TransactionalProducer(lambda: Cluster(servers, Connection))
    producer_name, place = f"{topic}-sink", (topic, 0)

    def record(text: bytes) -> Record:
        return Record(None, text, 1)

    try:
        first = producer.begin(producer_name, 60_000)
        producer.add_partitions(first, topic, [0, 1])
        producer.produce(first, place, [record(b"lost"), record(b"too")], 0)
        producer.end(first, commit=False)
        second = producer.begin(producer_name, 60_000, after=first)
        producer.add_partitions(second, topic, [0])
        for _ in range(2):  # the answer was lost
            producer.produce(second, place, [record(b"kept")], 0)
        producer.produce(second, place, [record(b"also")], 1, Compression.GZIP)
        producer.commit_offsets(second, producer_name, {place: 7, (topic, 1): 9})
        with pytest.raises(ProducerFenced):
            producer.produce(first, place, [record(b"late")], 2)
        for _ in range(2):  # the answer was lost
            producer.end(second, commit=True)
        assert producer.begin(producer_name, 60_000, after=first) == second, "the answer was lost"
        producer.begin(producer_name, 60_000)
        with pytest.raises(ProducerFenced):
            producer.begin(producer_name, 60_000, after=second)
        assert producer.committed_offsets(producer_name, [(topic, 1), place]) == {place: 7, (topic, 1): 9}
        assert producer.committed_offsets(f"{topic}-none", [place]) == {place: -1}
        with pytest.raises(ClientError, match=f"topic {topic}-none does not exist"):
            producer.partition_count(f"{topic}-none")
    finally:
        producer.close()
    assert committed_records(servers, topic) == [(0, None, b"kept"), (0, None, b"also")]
