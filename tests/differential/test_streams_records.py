"""Records of streams groups: the same requests leave the same in both brokers, in the same order, byte for byte.

The members of a script leave at its end: what their sessions' ends would write depends on when the log is read.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.streams import records
from anabranch.protocol.codec import decode_exact, encode_versioned
from anabranch.protocol.messages.embedded import streams_groups as messages
from tests.differential.conftest import Runner
from tests.differential.logs import log_of
from tests.differential.peer import Peer
from tests.differential.script import ScriptFunction
from tests.differential.scripts.streams_groups import (
    streams_copartitioning,
    streams_heartbeats,
    streams_internal_topics,
    streams_static_members,
    streams_tasks,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VALUES: Mapping[int, tuple[Any, Mapping[str, int]]] = {
    records.EPOCH: (messages.StreamsGroupMetadataValue, {"metadata_hash": 0}),
    records.MEMBER: (messages.StreamsGroupMemberMetadataValue, {}),
    records.TARGET_EPOCH: (messages.StreamsGroupTargetAssignmentMetadataValue, {"assignment_timestamp": 0}),
    records.TARGET: (messages.StreamsGroupTargetAssignmentMemberValue, {}),
    records.CURRENT: (messages.StreamsGroupCurrentMemberAssignmentValue, {}),
    records.TOPOLOGY: (messages.StreamsGroupTopologyValue, {}),
}
"""Message of each kind of record, with its fields that no two brokers have in common."""


def history(log: Iterable[KeyValue], group: str) -> Sequence[tuple[RecordKey, bytes | None]]:
    """Return the records of a streams group in the order of the log, without hashes and times.

    Targets that follow each other are sorted: Apache Kafka writes them in the order of a hash table. Of records of one
    key that follow each other there is the last: Apache Kafka writes two when a static member returns.
    """
    found: list[tuple[RecordKey, bytes | None]] = []
    for raw, value in log:
        key = records.KINDS.parse_key(raw)
        if key is None or key.group_id != group:
            continue
        assert records.KINDS.key_bytes(key) == raw
        if value is not None:
            message, dropped = VALUES[key.kind]
            decoded = decode_exact(message, value, 0, 2)
            assert encode_versioned(decoded, 0) == value, "written again, byte for byte"
            value = encode_versioned(replace(decoded, **dropped), 0)
        if found and found[-1][0] == key:
            found.pop()
        found.append((key, value))
    runs = itertools.groupby(found, key=lambda each: (each[0].kind, each[1] is None))
    return [each for (kind, _), run in runs for each in (sorted(run) if kind == records.TARGET else run)]


@pytest.mark.parametrize(
    ("script", "group"),
    [
        (streams_heartbeats, "stg-beat"),
        (streams_internal_topics, "stg-topics"),
        (streams_tasks, "stg-tasks"),
        (streams_static_members, "stg-static"),
        (streams_copartitioning, "stg-co"),
    ],
)
def test_the_logs_of_both_brokers_are_the_same(
    runner: Runner, kafka: Peer, ours: Peer, script: ScriptFunction, group: str
) -> None:
    runner.run(script)
    theirs, mine = (history(log_of(peer, OFFSETS_TOPIC), group) for peer in (kafka, ours))
    assert len(theirs) > 5
    for at, (one, other) in enumerate(itertools.zip_longest(theirs, mine)):
        assert one == other, at
