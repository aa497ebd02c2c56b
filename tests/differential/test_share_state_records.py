"""The log of the share coordinator: the same requests leave the same records in both brokers, byte for byte."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from anabranch.broker.kafka.coordination.internal_topics import SHARE_STATE_TOPIC
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.share.state.records import StateRecord, parse_record, state_record
from anabranch.broker.kafka.share.state.stored import StoredState
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.records import decode_records
from tests.differential.conftest import Runner
from tests.differential.peer import Peer, Wire
from tests.differential.script import ScriptFunction
from tests.differential.scripts.share_states import random_share_states, share_states

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def log_of(peer: Peer) -> Iterator[KeyValue]:
    """The records of the only partition of the state topic."""
    wire = Wire(peer)
    offset = 0
    try:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic=SHARE_STATE_TOPIC, partitions=[partition])]
            wire.send(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 12)
            (found,) = wire.receive(FetchRequest, 12).responses[0].partitions
            records = [
                record
                for _, batch in iterate_batches(found.records or b"")
                for record in decode_records(batch)
                if record.offset >= offset
            ]
            if not records:
                return
            for record in records:
                yield KeyValue(bytes(record.key or b""), None if record.value is None else bytes(record.value))
            offset = records[-1].offset + 1
    finally:
        wire.close()


def history(records: Sequence[KeyValue], group: str) -> Sequence[object]:
    """Contents of the records of a group, without ids and times."""
    said: list[object] = []
    for record in records:
        parsed = parse_record(record)
        assert isinstance(parsed, StateRecord)
        assert state_record(*parsed) == record, "written again, byte for byte"
        if parsed.key.group_id == group:
            value = parsed.value
            if isinstance(value, StoredState):
                value = replace(value, create_ms=0, write_ms=0)
            said.append((record.key[:2], parsed.key.partition, value))
    return said


@pytest.mark.parametrize(("script", "group"), [(share_states, "ss"), (random_share_states, "rss")])
def test_the_logs_of_both_brokers_are_the_same(
    runner: Runner, kafka: Peer, ours: Peer, script: ScriptFunction, group: str
) -> None:
    _ = runner.run(script)
    theirs, mine = (history(list(log_of(peer)), group) for peer in (kafka, ours))
    assert len(theirs) > 10
    for at, (one, other) in enumerate(itertools.zip_longest(theirs, mine)):
        assert one == other, at
