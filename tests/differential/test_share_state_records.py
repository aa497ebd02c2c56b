"""The log of the share coordinator: the same requests leave the same records in both brokers, byte for byte."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.broker.kafka.coordination.internal_topics import SHARE_STATE_TOPIC
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.share.state.records import StateRecord, parse_record, state_record
from anabranch.broker.kafka.share.state.stored import StoredState
from tests.differential.conftest import Runner
from tests.differential.logs import log_of
from tests.differential.peer import Peer
from tests.differential.script import ScriptFunction
from tests.differential.scripts.share_states import random_share_states, share_states

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


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
    theirs, mine = (history(list(log_of(peer, SHARE_STATE_TOPIC)), group) for peer in (kafka, ours))
    assert len(theirs) > 10
    for at, (one, other) in enumerate(itertools.zip_longest(theirs, mine)):
        assert one == other, at
