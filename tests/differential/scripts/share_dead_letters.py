"""Dead letters of share groups (KIP-1191): which records they are made of, and what is in them."""

from collections.abc import Mapping
from typing import Any

from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.records import decode_records
from tests.differential.script import Script
from tests.differential.scripts.share_fetches import ACCEPT, GAP, REJECT, RELEASE, Members


def share_dead_letters(script: Script) -> None:
    """Reject records, and use up the deliveries of others."""
    for name, copies in (("dl-headers", "false"), ("dl-copies", "true")):
        script.topic(f"dlq.{name}", errors_deadletterqueue_group_enable="true")
        members = _members(
            script,
            name,
            {
                "errors.deadletterqueue.topic.name": f"dlq.{name}",
                "errors.deadletterqueue.copy.record.enable": copies,
                "share.delivery.count.limit": "2",
            },
        )
        members.produce(4, 3)
        members.fetch(f"{name}: fetched", "m")
        members.acknowledge(f"{name}: some rejected", "m", (0, 3, [REJECT, ACCEPT, GAP, RELEASE]), (4, 5, [REJECT]))
        members.fetch(f"{name}: fetched again", "m", max_records=1)
        members.acknowledge(f"{name}: used up", "m", (3, 3, [RELEASE]))
        members.acknowledge(f"{name}: the last one", "m", (6, 6, [ACCEPT]))
        _note_dead_letters(script, f"{name}: dead letters", f"dlq.{name}", 4)
        members.note_done(f"{name}: done")


def share_dead_letters_refused(script: Script) -> None:
    """Reject records of groups whose dead-letter topic is missing, or may not be used: they are archived anyway."""
    script.topic("dlq.dl-disabled")
    script.topic("dl-prefix", errors_deadletterqueue_group_enable="true")
    for name, topic in (("dl-none", "dlq.dl-none"), ("dl-off", "dlq.dl-disabled"), ("dl-other", "dl-prefix")):
        members = _members(script, name, {"errors.deadletterqueue.topic.name": topic})
        members.produce(2)
        members.fetch(f"{name}: fetched", "m")
        members.acknowledge(f"{name}: rejected", "m", (0, 1, [REJECT]))
        members.note_done(f"{name}: done")
    for topic in ("dlq.dl-disabled", "dl-prefix"):
        _note_dead_letters(script, f"{topic}: dead letters", topic, 0)


def _members(script: Script, name: str, configs: Mapping[str, str]) -> Members:
    members = Members(script, name, configs)
    members.join("m")
    members.fetch("the state is loaded", "m", max_wait_ms=300)
    return members


def _note_dead_letters(script: Script, step: str, topic: str, count: int) -> None:
    """Wait for that many dead letters, and note them all."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=topic, partitions=[partition])])
    answer = script.until(request, 11, lambda answer: _partition(answer).high_watermark >= count)
    noted = [
        {
            "key": repr(record.key),
            "value": repr(record.value),
            "headers": [f"{name}={(value or b'').decode()}" for name, value in record.headers],
        }
        for _, batch in iterate_batches(bytes(_partition(answer).records or b""))
        for record in decode_records(batch)
    ]
    # Those of one acknowledgement may be written in several batches, which are not in order.
    script.note(step, sorted(noted, key=lambda each: each["headers"]))


def _partition(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


SCRIPTS = (share_dead_letters, share_dead_letters_refused)
