"""Consumption by share groups (KIP-932): sessions, acquired records, acknowledgements, deliveries, wrong requests."""

from collections.abc import Sequence
from typing import Any

from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.share_acknowledge import (
    AcknowledgementBatch as Acknowledged,
)
from anabranch.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from anabranch.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from anabranch.protocol.records import Record, build_batch
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator
from tests.differential.scripts.share_groups import prepared_topic

GROUP = 32
MEMBER = "0" * 21 + "w"
"""A member id must be one of Kafka's ids: 22 characters in base 64."""
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def _produce(script: Script, topic: str, values: Sequence[bytes]) -> None:
    batch = build_batch([Record(key=None, value=value, timestamp_ms=1_000) for value in values])
    data = PartitionProduceData(index=0, records=batch)
    script.ask(
        ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]), 9
    )


def _begin(script: Script, topic: str) -> bytes:
    """Make a topic with ten records, and a group of one member that reads it from its beginning."""
    coordinator(script)
    topic_id = prepared_topic(script, topic)
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=topic, configs=[config])
    script.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    _produce(script, topic, [b"%d" % number for number in range(10)])
    beat = ShareGroupHeartbeatRequest(group_id=topic, member_id=MEMBER, member_epoch=0, subscribed_topic_names=[topic])
    script.ask(beat, 1)
    script.until(beat, 1, lambda answer: answer.assignment is not None and answer.assignment.topic_partitions)
    return topic_id


def _fetch(group: str, topic_id: bytes, epoch: int, *acks: AcknowledgementBatch, **fields: Any) -> ShareFetchRequest:
    partition = FetchPartition(partition_index=0, acknowledgement_batches=acks)
    wanted: dict[str, Any] = {
        "group_id": group,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait_ms": 200,
        "min_bytes": 1,
        "max_records": 500,
        "batch_size": 500,
        "topics": [FetchTopic(topic_id=topic_id, partitions=[partition])],
    }
    return ShareFetchRequest(**{**wanted, **fields})


def _acknowledge(
    group: str, topic_id: bytes, epoch: int, *acks: tuple[int, int, int], **fields: Any
) -> ShareAcknowledgeRequest:
    batches = [
        Acknowledged(first_offset=first, last_offset=last, acknowledge_types=[kind]) for first, last, kind in acks
    ]
    topic = AcknowledgeTopic(
        topic_id=topic_id, partitions=[AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)]
    )
    return ShareAcknowledgeRequest(
        **{"group_id": group, "member_id": MEMBER, "share_session_epoch": epoch, "topics": [topic], **fields}
    )


def share_fetches(script: Script) -> None:
    topic = "sf-fetch"
    topic_id = _begin(script, topic)
    wait = _fetch(topic, topic_id, 0, max_records=4, batch_size=1, share_acquire_mode=1)
    script.until(wait, 2, lambda answer: answer.responses and answer.responses[0].partitions[0].acquired_records)
    script.call("released by leaving", _acknowledge(topic, topic_id, -1, (0, 3, RELEASE)), 2)
    script.call("delivered again", _fetch(topic, topic_id, 0, max_records=4, share_acquire_mode=1), 2)
    script.call("accepted and released", _acknowledge(topic, topic_id, 1, (0, 1, ACCEPT), (2, 2, RELEASE)), 2)
    script.call("rejected", _acknowledge(topic, topic_id, 2, (3, 3, REJECT)), 1)
    script.call("acknowledged twice", _acknowledge(topic, topic_id, 3, (0, 0, ACCEPT)), 2)
    script.call("the rest", _fetch(topic, topic_id, 4), 2)
    accepted = AcknowledgementBatch(first_offset=2, last_offset=9, acknowledge_types=[ACCEPT])
    script.call("acknowledged by a fetch", _fetch(topic, topic_id, 5, accepted), 1)
    script.call("the session ends", _acknowledge(topic, topic_id, -1, topics=[]), 2)


def share_fetches_refused(script: Script) -> None:
    topic = "sf-refused"
    topic_id = _begin(script, topic)
    script.call("an unknown session", _fetch(topic, topic_id, 1), 1, 2)
    script.call("no member id", _fetch(topic, topic_id, 0, member_id=""), 2)
    script.call("no group id", _fetch("", topic_id, 0), 2)
    script.call("an unknown topic", _fetch(topic, b"?" * 16, 0), 2)
    script.call("an unknown session of acknowledgements", _acknowledge(topic, topic_id, 3, (0, 0, ACCEPT)), 1, 2)
    script.call("acknowledgements that begin a session", _acknowledge(topic, topic_id, 0, (0, 0, ACCEPT)), 2)


SCRIPTS = (share_fetches, share_fetches_refused)
