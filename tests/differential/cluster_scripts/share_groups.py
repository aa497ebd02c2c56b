"""A share group whose coordinator and whose partitions are on different brokers, and requests to the wrong ones."""

from collections.abc import Sequence

from anabranch.protocol.messages import share_acknowledge, share_fetch
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from anabranch.protocol.messages.share_fetch import ShareFetchRequest
from anabranch.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.differential.cluster_script import NODES, ClusterScript
from tests.differential.scripts.share_fetches import ACCEPT, GROUP, RELEASE
from tests.support.raw_client import batch_of

TOPIC = "cs-shared"
MEMBER = "m"


def _beat(group: str, epoch: int) -> ShareGroupHeartbeatRequest:
    topics = [TOPIC] if epoch == 0 else None
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=MEMBER, member_epoch=epoch, subscribed_topic_names=topics
    )


def _fetch(group: str, topic_id: bytes, epoch: int, *indexes: int, max_records: int = 10) -> ShareFetchRequest:
    partitions = [share_fetch.FetchPartition(partition_index=index) for index in indexes]
    return ShareFetchRequest(
        group_id=group,
        member_id=MEMBER,
        share_session_epoch=epoch,
        max_wait_ms=5_000 if max_records else 0,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=max_records,
        batch_size=10,
        topics=[share_fetch.FetchTopic(topic_id=topic_id, partitions=partitions)],
    )


def _acknowledge(
    group: str, topic_id: bytes, epoch: int, index: int, last: int, types: Sequence[int]
) -> ShareAcknowledgeRequest:
    batch = share_acknowledge.AcknowledgementBatch(first_offset=0, last_offset=last, acknowledge_types=types)
    partition = share_acknowledge.AcknowledgePartition(partition_index=index, acknowledgement_batches=[batch])
    return ShareAcknowledgeRequest(
        group_id=group,
        member_id=MEMBER,
        share_session_epoch=epoch,
        topics=[share_acknowledge.AcknowledgeTopic(topic_id=topic_id, partitions=[partition])],
    )


def share_group_of_three_brokers(script: ClusterScript) -> None:
    group = script.key_at("cs-group", 2)
    topic_id = script.place(TOPIC, *NODES)
    config = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=[config])
    script.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    script.until(
        _beat(group, 0),
        1,
        lambda answer: (
            answer.assignment and sum(len(each.partitions) for each in answer.assignment.topic_partitions) == 3
        ),
        on="2",
    )
    for index, node_id in enumerate(NODES):
        data = PartitionProduceData(index=index, records=bytes(batch_of(b"a", b"b", b"c")))
        produced = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])])
        script.ask(produced, 9, on=str(node_id))
    script.call("a heartbeat to another broker", _beat(group, 1), 1, on="1")
    described = ShareGroupDescribeRequest(group_ids=[group])
    script.call("described by another broker", described, 1, on="3")
    for index, node_id in enumerate(NODES):
        on, other = str(node_id), (index + 1) % len(NODES)
        script.ask(_fetch(group, topic_id, 0, index, max_records=0), 2, on=on)
        script.call(f"from {on}", _fetch(group, topic_id, 1, index), 2, on=on)
        script.call(f"also what another leads, from {on}", _fetch(group, topic_id, 2, other), 2, on=on)
        script.call(f"what another leads, to {on}", _acknowledge(group, topic_id, 3, other, 0, [ACCEPT]), 2, on=on)
        script.call(f"to {on}", _acknowledge(group, topic_id, 4, index, 2, [ACCEPT, ACCEPT, RELEASE]), 2, on=on)
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    offsets = DescribeShareGroupOffsetsRequest(groups=[asked])
    script.call_each("offsets", offsets, 1)
    for node_id in NODES:
        script.call(f"the end of the session with {node_id}", _fetch(group, topic_id, -1), 2, on=str(node_id))
    script.call("the member leaves", _beat(group, -1), 1, on="2")
    script.call_each("deleted", DeleteGroupsRequest(groups_names=[group]), 2)


SCRIPTS = (share_group_of_three_brokers,)
