"""Requests that wait for a partition that this node is opening, or for groups and transactions that it is loading.

Produce and Fetch do this themselves, since their other partitions need not wait. All other requests wait here until
everything that they name is served, or the time is over.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_records,
    describe_groups,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    txn_offset_commit,
)

Pending = Callable[[], bool]
"""Returns whether a request still has to wait."""
Names = Callable[[Any], Iterable[str]]


def _group(request: Any) -> Iterable[str]:
    return (request.group_id,)


def _transaction(request: Any) -> Iterable[str]:
    return () if request.transactional_id is None else (request.transactional_id,)


GROUPS: Final[Mapping[int, Names]] = {
    join_group.KEY: _group,
    sync_group.KEY: _group,
    heartbeat.KEY: _group,
    leave_group.KEY: _group,
    offset_commit.KEY: _group,
    offset_delete.KEY: _group,
    consumer_group_heartbeat.KEY: _group,
    txn_offset_commit.KEY: _group,
    offset_fetch.KEY: lambda request: [each.group_id for each in request.groups] or (request.group_id,),
    describe_groups.KEY: lambda request: request.groups,
    consumer_group_describe.KEY: lambda request: request.group_ids,
    delete_groups.KEY: lambda request: request.groups_names,
}
"""Groups that a request names, by API key."""
TRANSACTIONS: Final[Mapping[int, Names]] = {
    init_producer_id.KEY: _transaction,
    add_offsets_to_txn.KEY: _transaction,
    end_txn.KEY: _transaction,
    add_partitions_to_txn.KEY: lambda request: (
        [each.transactional_id for each in request.transactions] or (request.v3_and_below_transactional_id,)
    ),
    describe_transactions.KEY: lambda request: request.transactional_ids,
}
"""Transactional ids that a request names, by API key."""
PARTITIONS: Final[Mapping[int, Callable[[Any], Iterable[tuple[str, int]]]]] = {
    list_offsets.KEY: lambda request: (
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ),
    offset_for_leader_epoch.KEY: lambda request: (
        (topic.topic, each.partition) for topic in request.topics for each in topic.partitions
    ),
    delete_records.KEY: lambda request: (
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    ),
    describe_producers.KEY: lambda request: (
        (topic.name, index) for topic in request.topics for index in topic.partition_indexes
    ),
}
"""Partitions that a request names, by API key."""
READS: Final = frozenset({fetch.KEY, list_groups.KEY, list_transactions.KEY, *GROUPS, *TRANSACTIONS, *PARTITIONS})
"""APIs whose answers depend on this node's ownership. The acknowledgement of an append proves it as well."""


def may_read(node: Node, key: int) -> bool:
    """Return whether this node may answer an API now: it must have proved that it owns what it reads."""
    return key not in READS or node.ownership.is_proved


def pending_of(node: Node, key: int, request: Any) -> Pending | None:
    """Return what the request has to wait for; None if it can be handled now."""

    def is_pending() -> bool:
        if not may_read(node, key):
            return True
        if not node.parking.opening:
            return False
        if (groups := GROUPS.get(key)) is not None:
            return any(_awaits_group(node, name) for name in groups(request))
        if (transactions := TRANSACTIONS.get(key)) is not None:
            return any(_awaits_transaction(node, name) for name in transactions(request))
        partitions = PARTITIONS.get(key)
        return partitions is not None and any(_awaits(node, *where) for where in partitions(request))

    return is_pending if is_pending() else None


def _awaits_group(node: Node, group_id: str) -> bool:
    return node.groups.is_loading(group_id) or _awaits_coordinator(node, OFFSETS_TOPIC, group_id)


def _awaits_transaction(node: Node, transactional_id: str) -> bool:
    return node.transactions.is_loading(transactional_id) or _awaits_coordinator(
        node, TRANSACTION_TOPIC, transactional_id
    )


def _awaits_coordinator(node: Node, topic_name: str, name: str) -> bool:
    topic = node.topics.get(topic_name)
    return topic is not None and node.topics.is_opening(topic, partition_of(name, len(topic.partitions)))


def _awaits(node: Node, topic_name: str, index: int) -> bool:
    topic = node.topics.get(topic_name)
    return topic is not None and node.topics.is_opening(topic, index)
