"""Transactions, wherever in the cluster they are coordinated."""

from typing import Final

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import TRANSACTION_TOPIC
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.broker.operator.admin.api.groups import AssignedPartition
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest

TRANSACTIONS_MAX: Final = 500
PIECE_TRANSACTIONS: Final = 100
"""Transactions of one request."""


class TransactionRow(Model):
    """A transactional id, and its transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    coordinator: int
    started_ms: int | None
    timeout_ms: int
    partitions: list[AssignedPartition]


class TransactionList(Model):
    """All transactional ids."""

    transactions: list[TransactionRow]
    more: bool
    unreachable: list[int]


class TransactionEndpoints:
    """Endpoint of transactions."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        self.endpoints = [
            Endpoint("GET", "/transactions", "All transactional ids.", self._list, TransactionList),
        ]

    async def _list(self, call: Call) -> TransactionList:
        if self._serving.topics.get(TRANSACTION_TOPIC) is None:
            return TransactionList(transactions=[], more=False, unreachable=[])
        answers, missing = await self._calls.call_each(
            self._calls.living(), lambda _: ListTransactionsRequest(), call.user
        )
        missing += [node_id for node_id, answer in answers.items() if answer.error_code]  # it still loads them
        found = sorted(
            (each.transactional_id, node_id)
            for node_id, answer in answers.items()
            for each in answer.transaction_states
        )
        shown = dict(found[:TRANSACTIONS_MAX])
        by_node: dict[int, list[str]] = {}
        for transactional_id, node_id in shown.items():
            by_node.setdefault(node_id, []).append(transactional_id)
        described, unreachable = await self._calls.ask_in_pieces(
            by_node, lambda ids: DescribeTransactionsRequest(transactional_ids=ids), PIECE_TRANSACTIONS, call.user
        )
        rows = [
            _row(each, shown[each.transactional_id])
            for answer in described
            for each in answer.transaction_states
            if not each.error_code
        ]
        return TransactionList(
            transactions=sorted(rows, key=lambda row: row.transactional_id),
            more=len(found) > len(shown),
            unreachable=sorted(unreachable.union(missing)),
        )


def _row(state: TransactionState, coordinator: int) -> TransactionRow:
    return TransactionRow(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        state=state.transaction_state,
        coordinator=coordinator,
        started_ms=state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        timeout_ms=state.transaction_timeout_ms,
        partitions=[
            AssignedPartition(topic=topic.topic, partition=index)
            for topic in state.topics
            for index in topic.partitions
        ],
    )
