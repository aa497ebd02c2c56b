"""The guard of each API. An API that is served without an entry here stops the start of a node: see `guarded`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from broker.access import cluster, groups, records, topics, transactions
from broker.access.guard import Guard, needs_cluster, open_to_all
from broker.acls.model import AclOperation
from protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
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

GUARDS: Final[Mapping[int, Guard]] = MappingProxyType(
    {
        # records
        produce.KEY: records.produce,
        fetch.KEY: open_to_all,  # the handler checks READ: a session has topics that its requests do not name
        list_offsets.KEY: records.list_offsets,
        offset_for_leader_epoch.KEY: records.offset_for_leader_epoch,
        delete_records.KEY: records.delete_records,
        describe_producers.KEY: records.describe_producers,
        # topics
        metadata.KEY: topics.metadata,
        describe_topic_partitions.KEY: topics.describe_topic_partitions,
        create_topics.KEY: topics.create_topics,
        delete_topics.KEY: topics.delete_topics,
        create_partitions.KEY: topics.create_partitions,
        # groups
        join_group.KEY: groups.join_group,
        sync_group.KEY: groups.sync_group,
        heartbeat.KEY: groups.reads_group(heartbeat.HeartbeatResponse),
        leave_group.KEY: groups.reads_group(leave_group.LeaveGroupResponse),
        consumer_group_heartbeat.KEY: groups.consumer_group_heartbeat,
        describe_groups.KEY: groups.describe_groups,
        consumer_group_describe.KEY: groups.consumer_group_describe,
        list_groups.KEY: groups.list_groups,
        delete_groups.KEY: groups.delete_groups,
        offset_commit.KEY: groups.offset_commit,
        offset_fetch.KEY: groups.offset_fetch,
        offset_delete.KEY: groups.offset_delete,
        # transactions
        find_coordinator.KEY: transactions.find_coordinator,
        init_producer_id.KEY: transactions.init_producer_id,
        add_partitions_to_txn.KEY: transactions.add_partitions_to_txn,
        add_offsets_to_txn.KEY: transactions.add_offsets_to_txn,
        end_txn.KEY: transactions.end_txn,
        txn_offset_commit.KEY: transactions.txn_offset_commit,
        write_txn_markers.KEY: transactions.write_txn_markers,
        describe_transactions.KEY: transactions.describe_transactions,
        list_transactions.KEY: transactions.list_transactions,
        # configs
        describe_configs.KEY: cluster.describe_configs,
        alter_configs.KEY: cluster.alter_configs,
        incremental_alter_configs.KEY: cluster.incremental_alter_configs,
        list_config_resources.KEY: needs_cluster(AclOperation.DESCRIBE_CONFIGS, cluster.list_config_resources_refusal),
        # the cluster
        describe_acls.KEY: needs_cluster(AclOperation.DESCRIBE, cluster.describe_acls_refusal),
        create_acls.KEY: needs_cluster(AclOperation.ALTER, cluster.create_acls_refusal),
        delete_acls.KEY: needs_cluster(AclOperation.ALTER, cluster.delete_acls_refusal),
        describe_cluster.KEY: cluster.describe_cluster,
        describe_log_dirs.KEY: needs_cluster(AclOperation.DESCRIBE, cluster.describe_log_dirs_refusal),
        alter_replica_log_dirs.KEY: needs_cluster(AclOperation.ALTER, cluster.alter_replica_log_dirs_refusal),
        elect_leaders.KEY: needs_cluster(AclOperation.ALTER, cluster.elect_leaders_refusal),
        alter_partition_reassignments.KEY: needs_cluster(AclOperation.ALTER, cluster.alter_reassignments_refusal),
        list_partition_reassignments.KEY: needs_cluster(AclOperation.DESCRIBE, cluster.list_reassignments_refusal),
        describe_quorum.KEY: needs_cluster(AclOperation.DESCRIBE, cluster.describe_quorum_refusal),
        update_features.KEY: needs_cluster(AclOperation.ALTER, cluster.update_features_refusal),
        unregister_broker.KEY: needs_cluster(AclOperation.ALTER, cluster.unregister_broker_refusal),
        # of the connection and of the client itself
        api_versions.KEY: open_to_all,
        get_telemetry_subscriptions.KEY: open_to_all,
        push_telemetry.KEY: open_to_all,
    }
)
"""Guards by API key."""
