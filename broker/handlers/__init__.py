"""The APIs this node serves: one module and one function per API.

`HANDLERS` is what ApiVersions answers from and what the dispatcher looks up. An API is listed when it works; its
versions are those of the registry, capped where a version asks for more than is done here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from broker.handlers import (
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
from broker.net.exchange import Exchange
from broker.node import Node
from protocol.registry import APIS, Api

HandlerFunction = Callable[[Node, Any, Exchange], Any]
"""`handle(node, request, context)` returns the response, a coroutine that does, or None: then the handler itself calls
`context.complete`, now or later."""


@dataclass(frozen=True, slots=True)
class Handler:
    """An API that is served, in an inclusive range of versions."""

    api: Api
    min_version: int
    max_version: int
    function: HandlerFunction

    @property
    def advertised_min_version(self) -> int:
        """Lowest version named in ApiVersions; Produce names more than it serves (see the registry)."""
        return min(self.min_version, self.api.advertised_min_version)


def _table(*modules: ModuleType) -> Mapping[int, Handler]:
    table: dict[int, Handler] = {}
    for module in modules:
        api = APIS[module.KEY]
        max_version = min(api.max_version, getattr(module, "MAX_VERSION", api.max_version))
        table[api.key] = Handler(api, api.min_version, max_version, module.handle)
    return dict(sorted(table.items()))


HANDLERS: Mapping[int, Handler] = _table(
    alter_configs,
    add_offsets_to_txn,
    add_partitions_to_txn,
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
