"""The one list of the APIs whose messages are known: keys, versions and where headers change.

Versions are Apache Kafka's; what a node advertises is the part of this table it has handlers for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from protocol.messages.unserved import (
    add_raft_voter,
    alter_client_quotas,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_acls,
    describe_client_quotas,
    describe_delegation_token,
    describe_share_group_offsets,
    describe_user_scram_credentials,
    expire_delegation_token,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    remove_raft_voter,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    write_share_group_state,
)
from protocol.wire import schema_of


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its range of versions (inclusive), its messages, and the version its headers become flexible in.

    `advertised_min_version` differs from `min_version` for Produce only: librdkafka sends compressed batches
    uncompressed to a broker that does not name version 0, so Apache Kafka names 0 to 2 and refuses them when used.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    request: type[Any]
    response: type[Any]
    flexible_since: int | None
    advertised_min_version: int

    def is_flexible(self, version: int) -> bool:
        """Whether this version's messages and headers have tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


def _api(key: int, request: type[Any], response: type[Any], *, advertised_min_version: int | None = None) -> Api:
    schema = schema_of(request)
    versions = schema.versions
    assert versions is not None
    assert versions == schema_of(response).versions
    assert schema.flexible == schema_of(response).flexible
    return Api(
        key=key,
        name=request.__name__.removesuffix("Request"),
        min_version=versions.first,
        max_version=versions.last,
        request=request,
        response=response,
        flexible_since=schema.flexible.first if schema.flexible.last >= 0 else None,
        advertised_min_version=versions.first if advertised_min_version is None else advertised_min_version,
    )


_ALL: Final = (
    _api(produce.KEY, produce.ProduceRequest, produce.ProduceResponse, advertised_min_version=0),
    _api(fetch.KEY, fetch.FetchRequest, fetch.FetchResponse),
    _api(list_offsets.KEY, list_offsets.ListOffsetsRequest, list_offsets.ListOffsetsResponse),
    _api(metadata.KEY, metadata.MetadataRequest, metadata.MetadataResponse),
    _api(offset_commit.KEY, offset_commit.OffsetCommitRequest, offset_commit.OffsetCommitResponse),
    _api(offset_fetch.KEY, offset_fetch.OffsetFetchRequest, offset_fetch.OffsetFetchResponse),
    _api(find_coordinator.KEY, find_coordinator.FindCoordinatorRequest, find_coordinator.FindCoordinatorResponse),
    _api(join_group.KEY, join_group.JoinGroupRequest, join_group.JoinGroupResponse),
    _api(heartbeat.KEY, heartbeat.HeartbeatRequest, heartbeat.HeartbeatResponse),
    _api(leave_group.KEY, leave_group.LeaveGroupRequest, leave_group.LeaveGroupResponse),
    _api(sync_group.KEY, sync_group.SyncGroupRequest, sync_group.SyncGroupResponse),
    _api(describe_groups.KEY, describe_groups.DescribeGroupsRequest, describe_groups.DescribeGroupsResponse),
    _api(list_groups.KEY, list_groups.ListGroupsRequest, list_groups.ListGroupsResponse),
    _api(sasl_handshake.KEY, sasl_handshake.SaslHandshakeRequest, sasl_handshake.SaslHandshakeResponse),
    _api(api_versions.KEY, api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse),
    _api(create_topics.KEY, create_topics.CreateTopicsRequest, create_topics.CreateTopicsResponse),
    _api(delete_topics.KEY, delete_topics.DeleteTopicsRequest, delete_topics.DeleteTopicsResponse),
    _api(delete_records.KEY, delete_records.DeleteRecordsRequest, delete_records.DeleteRecordsResponse),
    _api(init_producer_id.KEY, init_producer_id.InitProducerIdRequest, init_producer_id.InitProducerIdResponse),
    _api(
        offset_for_leader_epoch.KEY,
        offset_for_leader_epoch.OffsetForLeaderEpochRequest,
        offset_for_leader_epoch.OffsetForLeaderEpochResponse,
    ),
    _api(
        add_partitions_to_txn.KEY,
        add_partitions_to_txn.AddPartitionsToTxnRequest,
        add_partitions_to_txn.AddPartitionsToTxnResponse,
    ),
    _api(add_offsets_to_txn.KEY, add_offsets_to_txn.AddOffsetsToTxnRequest, add_offsets_to_txn.AddOffsetsToTxnResponse),
    _api(end_txn.KEY, end_txn.EndTxnRequest, end_txn.EndTxnResponse),
    _api(write_txn_markers.KEY, write_txn_markers.WriteTxnMarkersRequest, write_txn_markers.WriteTxnMarkersResponse),
    _api(txn_offset_commit.KEY, txn_offset_commit.TxnOffsetCommitRequest, txn_offset_commit.TxnOffsetCommitResponse),
    _api(describe_acls.KEY, describe_acls.DescribeAclsRequest, describe_acls.DescribeAclsResponse),
    _api(create_acls.KEY, create_acls.CreateAclsRequest, create_acls.CreateAclsResponse),
    _api(delete_acls.KEY, delete_acls.DeleteAclsRequest, delete_acls.DeleteAclsResponse),
    _api(describe_configs.KEY, describe_configs.DescribeConfigsRequest, describe_configs.DescribeConfigsResponse),
    _api(alter_configs.KEY, alter_configs.AlterConfigsRequest, alter_configs.AlterConfigsResponse),
    _api(
        alter_replica_log_dirs.KEY,
        alter_replica_log_dirs.AlterReplicaLogDirsRequest,
        alter_replica_log_dirs.AlterReplicaLogDirsResponse,
    ),
    _api(describe_log_dirs.KEY, describe_log_dirs.DescribeLogDirsRequest, describe_log_dirs.DescribeLogDirsResponse),
    _api(sasl_authenticate.KEY, sasl_authenticate.SaslAuthenticateRequest, sasl_authenticate.SaslAuthenticateResponse),
    _api(create_partitions.KEY, create_partitions.CreatePartitionsRequest, create_partitions.CreatePartitionsResponse),
    _api(
        create_delegation_token.KEY,
        create_delegation_token.CreateDelegationTokenRequest,
        create_delegation_token.CreateDelegationTokenResponse,
    ),
    _api(
        renew_delegation_token.KEY,
        renew_delegation_token.RenewDelegationTokenRequest,
        renew_delegation_token.RenewDelegationTokenResponse,
    ),
    _api(
        expire_delegation_token.KEY,
        expire_delegation_token.ExpireDelegationTokenRequest,
        expire_delegation_token.ExpireDelegationTokenResponse,
    ),
    _api(
        describe_delegation_token.KEY,
        describe_delegation_token.DescribeDelegationTokenRequest,
        describe_delegation_token.DescribeDelegationTokenResponse,
    ),
    _api(delete_groups.KEY, delete_groups.DeleteGroupsRequest, delete_groups.DeleteGroupsResponse),
    _api(elect_leaders.KEY, elect_leaders.ElectLeadersRequest, elect_leaders.ElectLeadersResponse),
    _api(
        incremental_alter_configs.KEY,
        incremental_alter_configs.IncrementalAlterConfigsRequest,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    ),
    _api(
        alter_partition_reassignments.KEY,
        alter_partition_reassignments.AlterPartitionReassignmentsRequest,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse,
    ),
    _api(
        list_partition_reassignments.KEY,
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        list_partition_reassignments.ListPartitionReassignmentsResponse,
    ),
    _api(offset_delete.KEY, offset_delete.OffsetDeleteRequest, offset_delete.OffsetDeleteResponse),
    _api(
        describe_client_quotas.KEY,
        describe_client_quotas.DescribeClientQuotasRequest,
        describe_client_quotas.DescribeClientQuotasResponse,
    ),
    _api(
        alter_client_quotas.KEY,
        alter_client_quotas.AlterClientQuotasRequest,
        alter_client_quotas.AlterClientQuotasResponse,
    ),
    _api(
        describe_user_scram_credentials.KEY,
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
        describe_user_scram_credentials.DescribeUserScramCredentialsResponse,
    ),
    _api(
        alter_user_scram_credentials.KEY,
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
    ),
    _api(describe_quorum.KEY, describe_quorum.DescribeQuorumRequest, describe_quorum.DescribeQuorumResponse),
    _api(update_features.KEY, update_features.UpdateFeaturesRequest, update_features.UpdateFeaturesResponse),
    _api(describe_cluster.KEY, describe_cluster.DescribeClusterRequest, describe_cluster.DescribeClusterResponse),
    _api(
        describe_producers.KEY,
        describe_producers.DescribeProducersRequest,
        describe_producers.DescribeProducersResponse,
    ),
    _api(unregister_broker.KEY, unregister_broker.UnregisterBrokerRequest, unregister_broker.UnregisterBrokerResponse),
    _api(
        describe_transactions.KEY,
        describe_transactions.DescribeTransactionsRequest,
        describe_transactions.DescribeTransactionsResponse,
    ),
    _api(list_transactions.KEY, list_transactions.ListTransactionsRequest, list_transactions.ListTransactionsResponse),
    _api(
        consumer_group_heartbeat.KEY,
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
    ),
    _api(
        consumer_group_describe.KEY,
        consumer_group_describe.ConsumerGroupDescribeRequest,
        consumer_group_describe.ConsumerGroupDescribeResponse,
    ),
    _api(
        get_telemetry_subscriptions.KEY,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsResponse,
    ),
    _api(push_telemetry.KEY, push_telemetry.PushTelemetryRequest, push_telemetry.PushTelemetryResponse),
    _api(
        list_config_resources.KEY,
        list_config_resources.ListConfigResourcesRequest,
        list_config_resources.ListConfigResourcesResponse,
    ),
    _api(
        describe_topic_partitions.KEY,
        describe_topic_partitions.DescribeTopicPartitionsRequest,
        describe_topic_partitions.DescribeTopicPartitionsResponse,
    ),
    _api(
        share_group_heartbeat.KEY,
        share_group_heartbeat.ShareGroupHeartbeatRequest,
        share_group_heartbeat.ShareGroupHeartbeatResponse,
    ),
    _api(
        share_group_describe.KEY,
        share_group_describe.ShareGroupDescribeRequest,
        share_group_describe.ShareGroupDescribeResponse,
    ),
    _api(share_fetch.KEY, share_fetch.ShareFetchRequest, share_fetch.ShareFetchResponse),
    _api(share_acknowledge.KEY, share_acknowledge.ShareAcknowledgeRequest, share_acknowledge.ShareAcknowledgeResponse),
    _api(add_raft_voter.KEY, add_raft_voter.AddRaftVoterRequest, add_raft_voter.AddRaftVoterResponse),
    _api(remove_raft_voter.KEY, remove_raft_voter.RemoveRaftVoterRequest, remove_raft_voter.RemoveRaftVoterResponse),
    _api(
        initialize_share_group_state.KEY,
        initialize_share_group_state.InitializeShareGroupStateRequest,
        initialize_share_group_state.InitializeShareGroupStateResponse,
    ),
    _api(
        read_share_group_state.KEY,
        read_share_group_state.ReadShareGroupStateRequest,
        read_share_group_state.ReadShareGroupStateResponse,
    ),
    _api(
        write_share_group_state.KEY,
        write_share_group_state.WriteShareGroupStateRequest,
        write_share_group_state.WriteShareGroupStateResponse,
    ),
    _api(
        delete_share_group_state.KEY,
        delete_share_group_state.DeleteShareGroupStateRequest,
        delete_share_group_state.DeleteShareGroupStateResponse,
    ),
    _api(
        read_share_group_state_summary.KEY,
        read_share_group_state_summary.ReadShareGroupStateSummaryRequest,
        read_share_group_state_summary.ReadShareGroupStateSummaryResponse,
    ),
    _api(
        streams_group_heartbeat.KEY,
        streams_group_heartbeat.StreamsGroupHeartbeatRequest,
        streams_group_heartbeat.StreamsGroupHeartbeatResponse,
    ),
    _api(
        streams_group_describe.KEY,
        streams_group_describe.StreamsGroupDescribeRequest,
        streams_group_describe.StreamsGroupDescribeResponse,
    ),
    _api(
        describe_share_group_offsets.KEY,
        describe_share_group_offsets.DescribeShareGroupOffsetsRequest,
        describe_share_group_offsets.DescribeShareGroupOffsetsResponse,
    ),
    _api(
        alter_share_group_offsets.KEY,
        alter_share_group_offsets.AlterShareGroupOffsetsRequest,
        alter_share_group_offsets.AlterShareGroupOffsetsResponse,
    ),
    _api(
        delete_share_group_offsets.KEY,
        delete_share_group_offsets.DeleteShareGroupOffsetsRequest,
        delete_share_group_offsets.DeleteShareGroupOffsetsResponse,
    ),
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({api.key: api for api in _ALL})
"""Every API by its key."""
