"""One request of each API, about a few topics, groups and transactional ids that random ACLs concern.

Requests that are allowed change as little as possible, so that each of them can be sent hundreds of times. A topic that
is to be created has a name that is refused after the check, for example.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from anabranch.protocol.messages.alter_configs import AlterableConfig as OldConfig
from anabranch.protocol.messages.alter_configs import AlterConfigsRequest
from anabranch.protocol.messages.alter_configs import AlterConfigsResource as OldResource
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest
from anabranch.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest
from anabranch.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest
from anabranch.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from anabranch.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from anabranch.protocol.messages.share_fetch import ShareFetchRequest
from anabranch.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from anabranch.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from anabranch.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TopicInfo,
    Topology,
)
from anabranch.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
)
from anabranch.protocol.messages.sync_group import SyncGroupRequest
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from anabranch.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.differential.scripts import share_states
from tests.support.raw_client import batch_of

TOPICS = ("apple", "apricot", "banana")
"""Topics of two partitions that exist."""
MISSING = ("avocado", "blueberry")
NOT_TOPICS = ("app/le", "ban/ana")
"""Names that no topic may have, and that prefixes concern all the same."""
GROUPS = ("ant", "ape", "bee")
GROUP_WITH_MEMBER = "antelope"
"""A consumer group of an administrator, whose member reads `apple` and `banana`."""
IDS = ("alpha", "beta")
UNKNOWN_ID = b"?" * 16


class Sent(NamedTuple):
    """One request, in one version."""

    name: str
    message: Any
    version: int


@dataclass
class Scene:
    """Ids that a broker has chosen and requests refer to, and what is used up."""

    topic_ids: Mapping[str, bytes]
    doomed: Mapping[str, bytes] = field(default_factory=dict)
    """Topics to be deleted, with their ids."""
    member_epoch: int = 0
    """Epoch of the member of `GROUP_WITH_MEMBER`."""


def _pair(names: tuple[str, ...]) -> tuple[str, str]:
    return names[0], names[-1]


def of_records(scene: Scene) -> Iterator[Sent]:
    """Requests about records and offsets."""
    ids = scene.topic_ids

    def produce(version: int, **batch: Any) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=IDS[0] if batch else None,
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                TopicProduceData(
                    name=name,
                    topic_id=ids.get(name, UNKNOWN_ID) if version >= 13 else bytes(16),
                    partition_data=[PartitionProduceData(index=0, records=batch_of(b"v", **batch))],
                )
                for name in ("apple", "banana", "avocado")
            ],
        )

    yield Sent("produce", produce(9), 9)
    yield Sent("produce by id", produce(13), 13)
    of_producer = {"producer_id": 4_000_000, "producer_epoch": 0, "base_sequence": 0}
    yield Sent("produce in a transaction", produce(9, **of_producer, attributes=TRANSACTIONAL_MASK), 9)

    def fetch(version: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1000,
            topics=[
                FetchTopic(
                    topic=name,
                    topic_id=ids.get(name, UNKNOWN_ID) if version >= 13 else bytes(16),
                    partitions=[FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=100)],
                )
                for name in ("apricot", "banana", "blueberry")
            ],
        )

    yield Sent("fetch", fetch(12), 12)
    yield Sent("fetch by id", fetch(16), 16)
    names = (*TOPICS, *MISSING)
    offsets = [ListOffsetsPartition(partition_index=1, timestamp=-1)]
    yield Sent(
        "list offsets",
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=offsets) for name in names]),
        7,
    )
    epochs = [OffsetForLeaderPartition(partition=1, leader_epoch=0)]
    yield Sent(
        "epochs",
        OffsetForLeaderEpochRequest(
            replica_id=-2, topics=[OffsetForLeaderTopic(topic=name, partitions=epochs) for name in _pair(names)]
        ),
        4,
    )
    kept = [DeleteRecordsPartition(partition_index=1, offset=0)]
    yield Sent(
        "delete records",
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=kept) for name in names], timeout_ms=5000
        ),
        2,
    )
    yield Sent(
        "producers",
        DescribeProducersRequest(topics=[ProducersTopic(name=name, partition_indexes=[1]) for name in _pair(names)]),
        0,
    )


def of_topics(scene: Scene) -> Iterator[Sent]:
    """Requests about topics."""

    def metadata(*names: str, create: bool = False) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create,
            include_topic_authorized_operations=True,
        )

    yield Sent("metadata", metadata("apple", "banana"), 9)
    yield Sent("metadata of unknown ones", metadata("apricot", "avocado"), 12)
    yield Sent("metadata that creates", metadata(*NOT_TOPICS, create=True), 12)
    yield Sent("metadata of all", MetadataRequest(topics=None, include_topic_authorized_operations=True), 12)
    by_id = [MetadataRequestTopic(topic_id=each, name=None) for each in (scene.topic_ids["banana"], UNKNOWN_ID)]
    yield Sent("metadata by id", MetadataRequest(topics=by_id, include_topic_authorized_operations=True), 12)
    yield Sent("metadata, old", MetadataRequest(topics=[MetadataRequestTopic(name="apricot")]), 0)
    of_cluster = MetadataRequest(topics=(), include_cluster_authorized_operations=True)
    yield Sent("metadata of the cluster", of_cluster, 8)
    names = [TopicRequest(name=name) for name in (*TOPICS, *MISSING)]
    yield Sent("partitions of topics", DescribeTopicPartitionsRequest(topics=names), 0)
    yield Sent("partitions of all topics", DescribeTopicPartitionsRequest(topics=()), 0)
    cursor = Cursor(topic_name="apricot", partition_index=1)
    yield Sent("partitions from a cursor on", DescribeTopicPartitionsRequest(topics=names, cursor=cursor), 0)
    wanted = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in (*MISSING, "apple", "cherry")
    ]
    for version in (4, 7):
        yield Sent("create topics", CreateTopicsRequest(topics=wanted, timeout_ms=5000, validate_only=True), version)
    yield Sent("create topics that cannot be", CreateTopicsRequest(topics=[*wanted, wanted[0]], validate_only=True), 7)
    more = [CreatePartitionsTopic(name=name, count=1) for name in (*TOPICS, MISSING[0])]
    yield Sent("create partitions", CreatePartitionsRequest(topics=more, timeout_ms=5000, validate_only=True), 3)
    states = [DeleteTopicState(name=name) for name in MISSING]
    states.append(DeleteTopicState(name=None, topic_id=UNKNOWN_ID))
    for at, (name, topic_id) in enumerate(scene.doomed.items()):
        states.append(DeleteTopicState(name=None, topic_id=topic_id) if at % 2 else DeleteTopicState(name=name))
    yield Sent("delete topics", DeleteTopicsRequest(topics=states, timeout_ms=5000), 6)
    yield Sent("delete topics by name", DeleteTopicsRequest(topic_names=list(MISSING), timeout_ms=5000), 5)


def of_groups(scene: Scene) -> Iterator[Sent]:
    """Requests about groups and their offsets."""
    ids = scene.topic_ids
    for group in _pair(GROUPS):
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id=group, session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=protocols
        )
        for version in (6, 9):
            yield Sent(f"join {group}", join, version)
        sync = SyncGroupRequest(group_id=group, generation_id=3, member_id="m")
        yield Sent(f"sync {group} without a protocol", sync, 5)
        yield Sent(f"sync {group}", replace(sync, protocol_type="consumer", protocol_name="range"), 5)
        yield Sent(f"heartbeat {group}", HeartbeatRequest(group_id=group, generation_id=3, member_id="m"), 4)
        yield Sent(f"leave {group}", LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m")]), 5)
        yield Sent(
            f"consumer heartbeat {group}",
            ConsumerGroupHeartbeatRequest(
                group_id=f"{group}-consumers", member_id="m", member_epoch=7, subscribed_topic_names=["apple", "banana"]
            ),
            1,
        )
        yield Sent(
            f"share heartbeat {group}",
            ShareGroupHeartbeatRequest(
                group_id=f"{group}-shared", member_id="m", member_epoch=7, subscribed_topic_names=["apple", "banana"]
            ),
            1,
        )
        yield from _share_offsets(f"{group}-shared")
        yield from _of_streams_group(f"{group}-streams")
        for version in (8, 10):
            yield Sent(f"commit in {group}", _commit(group, version, ids), version)
        for version in (1, 7):
            asked = [OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in (*TOPICS, MISSING[0])]
            yield Sent(f"offsets of {group}", OffsetFetchRequest(group_id=group, topics=asked), version)
        yield Sent(f"all offsets of {group}", OffsetFetchRequest(group_id=group, topics=None), 6)
        deleted = [
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("apricot", "blueberry")
        ]
        yield Sent(f"delete offsets of {group}", OffsetDeleteRequest(group_id=group, topics=deleted), 0)
        for version in (2, 4):
            keys: dict[str, Any] = {"key": group} if version < 4 else {"coordinator_keys": [group, "other", "ape"]}
            yield Sent(f"coordinator of {group}", FindCoordinatorRequest(key_type=0, **keys), version)
    groups = [
        OffsetFetchRequestGroup(
            group_id=group,
            topics=None
            if group == "ape"
            else [
                OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, UNKNOWN_ID), partition_indexes=[0])
                for name in (*TOPICS, MISSING[0])
            ],
        )
        for group in GROUPS
    ]
    for version in (8, 10):
        yield Sent("offsets of many groups", OffsetFetchRequest(groups=groups), version)
    described = [*GROUPS, "anteater"]
    yield Sent("groups", DescribeGroupsRequest(groups=described, include_authorized_operations=True), 6)
    consumers = ConsumerGroupDescribeRequest(group_ids=described, include_authorized_operations=True)
    yield Sent("consumer groups", consumers, 1)
    shares = ShareGroupDescribeRequest(group_ids=described, include_authorized_operations=True)
    yield Sent("share groups", shares, 1)
    streams = StreamsGroupDescribeRequest(group_ids=described, include_authorized_operations=True)
    yield Sent("streams groups", streams, 1)
    yield Sent("all groups", ListGroupsRequest(), 5)
    yield Sent("delete groups", DeleteGroupsRequest(groups_names=[*described, "ant"]), 2)


def _share_offsets(group: str) -> Iterator[Sent]:
    """Requests about offsets of a share group that does not exist."""
    names = [*TOPICS, MISSING[0]]
    named = [DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0]) for name in names]
    for topics in (named, None):
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)
        yield Sent(f"share offsets of {group} {topics is None}", DescribeShareGroupOffsetsRequest(groups=[asked]), 1)
    # The answers tell ids of topics that one may not read in Apache Kafka, and requests about others create the group.
    nowhere = [AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=1)]
    altered = [AlterShareGroupOffsetsRequestTopic(topic_name=MISSING[0], partitions=nowhere)]
    yield Sent(f"set share offsets of {group}", AlterShareGroupOffsetsRequest(group_id=group, topics=altered), 0)
    gone = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    yield Sent(f"delete share offsets of {group}", DeleteShareGroupOffsetsRequest(group_id=group, topics=gone), 0)
    session: dict[str, Any] = {"group_id": group, "member_id": "m", "share_session_epoch": 7}
    fetch = ShareFetchRequest(**session, max_wait_ms=0, min_bytes=1, max_bytes=1000, max_records=10, batch_size=10)
    yield Sent(f"share fetch of {group}", fetch, 1)
    yield Sent(f"share acknowledge in {group}", ShareAcknowledgeRequest(**session), 1)


def of_assigned_topics(_scene: Scene) -> Iterator[Sent]:
    """A request whose answer tells of topics that one may not describe."""
    yield Sent("a group with a member", ConsumerGroupDescribeRequest(group_ids=[GROUP_WITH_MEMBER]), 1)


def _commit(group: str, version: int, ids: Mapping[str, bytes]) -> OffsetCommitRequest:
    offsets = [OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m")]
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name, topic_id=ids.get(name, UNKNOWN_ID) if version >= 10 else bytes(16), partitions=offsets
            )
            for name in (*TOPICS, MISSING[0])
        ],
    )


def of_transactions(scene: Scene) -> Iterator[Sent]:
    """Requests about transactions and producers."""
    for version in (2, 4):
        keys: dict[str, Any] = {"key": "beta"} if version < 4 else {"coordinator_keys": list(IDS)}
        yield Sent("coordinator of a transaction", FindCoordinatorRequest(key_type=1, **keys), version)
    yield Sent("producer id", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    for each in IDS:
        init = InitProducerIdRequest(transactional_id=each, transaction_timeout_ms=10**9)
        yield Sent(f"producer id of {each}", init, 4)
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[0, 9]) for name in ("apple", "banana", "__consumer_offsets")
    ]
    yield Sent(
        "add partitions",
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="alpha",
            v3_and_below_producer_id=4_000_000,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        ),
        3,
    )
    of_broker = AddPartitionsToTxnTransaction(
        transactional_id="beta",
        producer_id=4_000_000,
        producer_epoch=0,
        verify_only=True,
        topics=[replace(topics[0], partitions=[0])],
    )
    yield Sent("verify partitions", AddPartitionsToTxnRequest(transactions=[of_broker]), 5)
    for each, group in zip(IDS, _pair(GROUPS), strict=True):
        ids: dict[str, Any] = {"transactional_id": each, "producer_id": 4_000_000, "producer_epoch": 0}
        yield Sent(f"add offsets of {group}", AddOffsetsToTxnRequest(**ids, group_id=group), 4)
        yield Sent(f"end {each}", EndTxnRequest(**ids, committed=True), 4)
        offsets = [TxnOffsetCommitRequestPartition(partition_index=7, committed_offset=1, committed_metadata=None)]
        commit = TxnOffsetCommitRequest(
            **ids,
            group_id=group,
            generation_id_or_member_epoch=5,
            member_id="m",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name, topic_id=scene.topic_ids.get(name, UNKNOWN_ID), partitions=offsets
                )
                for name in ("apple", "banana", MISSING[0])
            ],
        )
        for version in (3, 6):
            yield Sent(f"commit in transaction {each}", commit, version)
    marker = WritableTxnMarker(
        producer_id=4_000_000,
        producer_epoch=0,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name="avocado", partition_indexes=[0, 1])],
        coordinator_epoch=0,
    )
    yield Sent("write markers", WriteTxnMarkersRequest(markers=[marker]), 1)
    yield Sent("transactions", DescribeTransactionsRequest(transactional_ids=list(IDS)), 0)
    yield Sent("all transactions", ListTransactionsRequest(), 1)


def of_configs(_scene: Scene) -> Iterator[Sent]:
    """Requests about configs."""
    keys = {2: ["cleanup.policy"], 4: ["no.such.config"], 32: ["consumer.heartbeat.interval.ms"]}
    named = [*((2, name) for name in (*TOPICS, MISSING[0])), (4, "1"), *((32, name) for name in GROUPS), (16, "m")]
    yield Sent(
        "configs",
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=keys.get(kind, ["interval.ms"])
                )
                for kind, name in named
            ]
        ),
        4,
    )
    values = {2: ("cleanup.policy", "delete"), 32: ("consumer.heartbeat.interval.ms", "5000")}
    changed = [(kind, name) for kind, name in named if kind in values]
    old = [
        OldResource(
            resource_type=kind,
            resource_name=name,
            configs=[OldConfig(name=values[kind][0], value=values[kind][1])],
        )
        for kind, name in changed
    ]
    yield Sent("alter configs", AlterConfigsRequest(resources=old, validate_only=True), 2)
    new = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[AlterableConfig(name=values[kind][0], config_operation=0, value=values[kind][1])],
        )
        for kind, name in changed
    ]
    of_broker = AlterableConfig(name="log.cleaner.threads", config_operation=1, value=None)
    new.append(AlterConfigsResource(resource_type=4, resource_name="", configs=[of_broker]))
    yield Sent("alter some configs", IncrementalAlterConfigsRequest(resources=new, validate_only=True), 1)
    level = AlterableConfig(name="nobody", config_operation=0, value="INFO")
    loggers = [AlterConfigsResource(resource_type=8, resource_name="1", configs=[level])]
    yield Sent("alter levels", IncrementalAlterConfigsRequest(resources=loggers, validate_only=True), 1)
    for version, types in ((0, ()), (1, (16,))):
        yield Sent("resources with configs", ListConfigResourcesRequest(resource_types=types), version)


def of_cluster(_scene: Scene) -> Iterator[Sent]:
    """Requests about the cluster."""
    yield Sent("cluster", DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    everything: dict[str, Any] = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    nothing: dict[str, Any] = {"resource_name_filter": "none", "principal_filter": None, "host_filter": None}
    described = DescribeAclsRequest(**everything, resource_name_filter=None, principal_filter=None, host_filter=None)
    yield Sent("acls", described, 3)
    matching = DescribeAclsRequest(
        **{**everything, "pattern_type_filter": 2, "resource_type_filter": 2},
        **{**nothing, "resource_name_filter": "apple"},
    )
    yield Sent("acls that match", matching, 2)
    yield Sent("delete acls", DeleteAclsRequest(filters=[DeleteAclsFilter(**everything, **nothing)]), 3)
    bad = AclCreation(
        resource_type=2,
        resource_name="",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    yield Sent("create acls", CreateAclsRequest(creations=[bad, bad]), 3)
    yield Sent("log directories", DescribeLogDirsRequest(topics=()), 4)
    directory = AlterReplicaLogDir(
        path="/no/such/directory", topics=[AlterReplicaLogDirTopic(name="apple", partitions=[0, 1])]
    )
    yield Sent("alter log directories", AlterReplicaLogDirsRequest(dirs=[directory]), 2)
    elected = [TopicPartitions(topic="apple", partitions=[0, 1])]
    yield Sent("elect leaders", ElectLeadersRequest(election_type=0, topic_partitions=elected, timeout_ms=5000), 2)
    cancelled = ReassignableTopic(name="apple", partitions=[ReassignablePartition(partition_index=0, replicas=None)])
    yield Sent("reassign", AlterPartitionReassignmentsRequest(topics=[cancelled], timeout_ms=5000), 0)
    listed = [ListPartitionReassignmentsTopics(name="apple", partition_indexes=[0, 1])]
    yield Sent("reassignments", ListPartitionReassignmentsRequest(topics=listed, timeout_ms=5000), 0)
    quorum = TopicData(topic_name="apple", partitions=[PartitionData(partition_index=0)])
    yield Sent("quorum", DescribeQuorumRequest(topics=[quorum]), 1)
    feature = FeatureUpdateKey(feature="no.such.feature", max_version_level=1)
    yield Sent("features", UpdateFeaturesRequest(feature_updates=[feature], validate_only=True), 1)
    entity = [EntityData(entity_type="user", entity_name="nobody")]
    ops = [OpData(key="producer_byte_rate", value=1e12)]
    quota = EntryData(entity=entity, ops=ops)
    yield Sent("alter quotas", AlterClientQuotasRequest(entries=[quota], validate_only=True), 1)
    yield Sent("describe quotas", DescribeClientQuotasRequest(), 1)
    gone = ScramCredentialDeletion(name="nobody", mechanism=1)
    yield Sent("alter credentials", AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[]), 0)
    yield Sent("describe credentials", DescribeUserScramCredentialsRequest(users=[UserName(name="nobody")]), 0)
    yield from of_tokens()
    yield Sent("unregister", UnregisterBrokerRequest(broker_id=99), 0)
    yield Sent("versions", ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)


def _of_streams_group(group: str) -> Iterator[Sent]:
    """Requests of members of a streams group, whose topology names topics of each kind."""
    subtopology = Subtopology(
        subtopology_id="0",
        source_topics=["apple"],
        repartition_sink_topics=["banana"],
        repartition_source_topics=[TopicInfo(name="banana")],
        state_changelog_topics=[TopicInfo(name="cherry")],
    )
    for topology in (None, Topology(epoch=1, subtopologies=[subtopology])):
        beat = StreamsGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=7, topology=topology)
        yield Sent(f"streams heartbeat {group} {'without' if topology is None else 'with'} topology", beat, 1)
    description = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=group, member_id="m", topology_epoch=1, topology_description=TopologyDescription()
    )
    yield Sent(f"topology of {group}", description, 0)


def of_share_states(scene: Scene) -> Iterator[Sent]:
    """Requests of brokers about the states of share partitions."""
    for name in ("apple", "banana"):
        ids = scene.topic_ids[name]
        yield Sent(f"begin a state of {name}", share_states.initialize("bee", ids, (0, 1, 0)), 0)
        yield Sent(f"read a state of {name}", share_states.read("bee", ids, (0, 1), (7, 1)), 0)
        yield Sent(f"write a state of {name}", share_states.write("bee", ids, 0, (1, 1), 0, 0), 1)
        yield Sent(f"summary of a state of {name}", share_states.summary("bee", ids, 0), 1)
        yield Sent(f"delete a state of {name}", share_states.delete("bee", ids, 0), 0)


def of_tokens() -> Iterator[Sent]:
    """Requests about delegation tokens, none of which are made: renewers are refused after the check."""
    group = [CreatableRenewers(principal_type="Group", principal_name="g")]
    owners: Any = [{"owner_principal_type": "User", "owner_principal_name": name} for name in ("someone", "CN=alice")]
    for version, owner in ((1, {}), (2, {}), (3, {}), *((3, each) for each in owners)):
        created = CreateDelegationTokenRequest(renewers=group, max_lifetime_ms=-1, **owner)
        named = owner.get("owner_principal_name", "oneself")
        yield Sent(f"create token for {named} v{version}", created, version)
    yield Sent("renew token", RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), 2)
    yield Sent("expire token", ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), 2)
    someone = DescribeDelegationTokenOwner(principal_type="User", principal_name="someone")
    for owners in (None, [someone]):
        yield Sent(f"describe tokens of {owners and 'someone'}", DescribeDelegationTokenRequest(owners=owners), 3)


Part = Callable[[Scene], Iterator[Sent]]
ALL = (of_records, of_topics, of_groups, of_transactions, of_configs, of_cluster, of_share_states)
