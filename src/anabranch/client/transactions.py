"""Transactions of a cluster. Every failure is a ClientError."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.client.cluster import TRANSACTION, Cluster, Place
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

ABORT_WAIT_S: Final = 30.0
"""Limit for a transaction whose end is being written to be ended."""
ABORT_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id. `start_ms` is -1 if no transaction is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    places: Sequence[Place]


def list_transactions(cluster: Cluster, states: Sequence[str] = ()) -> Sequence[ListedTransaction]:
    """Return the transactional ids of all nodes, ordered by id; `states` empty: in any state."""
    found = []
    for node_id, connection in cluster.nodes().items():
        answer: ListTransactionsResponse = connection.call(ListTransactionsRequest(state_filters=states))
        if answer.error_code:
            raise ClientError(f"{connection.where}: {error_text(answer.error_code)}")
        found += [
            ListedTransaction(each.transactional_id, each.producer_id, each.transaction_state, node_id)
            for each in answer.transaction_states
        ]
    return sorted(found, key=lambda each: each.transactional_id)


def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Return the state of a transactional id."""
    connection = cluster.coordinator(transactional_id, TRANSACTION)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    answer: DescribeTransactionsResponse = connection.call(request)
    found = answer.transaction_states[0]
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise ClientError(f"transactional id {transactional_id} does not exist")
    if found.error_code:
        raise ClientError(f"transactional id {transactional_id}: {error_text(found.error_code)}")
    return TransactionDescription(
        transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        [(each.topic, index) for each in found.topics for index in sorted(each.partitions)],
    )


def abort_transaction(cluster: Cluster, described: TransactionDescription) -> None:
    """End the open transaction and fence its producer, as a new producer with the same id would (KIP-98)."""
    request = InitProducerIdRequest(
        transactional_id=described.transactional_id, transaction_timeout_ms=described.timeout_ms
    )
    until = time.perf_counter() + ABORT_WAIT_S
    while True:
        connection = cluster.coordinator(described.transactional_id, TRANSACTION)
        answer: InitProducerIdResponse = connection.call(request)
        if not answer.error_code:
            return
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS or time.perf_counter() > until:
            raise ClientError(f"transactional id {described.transactional_id}: {error_text(answer.error_code)}")
        time.sleep(ABORT_POLL_S)
