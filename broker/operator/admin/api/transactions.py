"""Transactions, wherever in the cluster they are coordinated: listed, and aborted."""

import asyncio
from typing import Final

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import TRANSACTION_TOPIC
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, ValidationQuery, check
from anabranch.broker.operator.admin.api.groups import AssignedPartition
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest

TRANSACTIONS_MAX: Final = 500
PIECE_TRANSACTIONS: Final = 100
"""Transactions of one request."""
ONGOING: Final = "Ongoing"
ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort"})
"""States in which the end of a transaction is decided, and its markers are being written."""
AGAIN_S: Final = 0.1
"""Pause between questions whether they are written."""


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
    """Endpoints of transactions."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        path = "/transactions/{transaction}/abort"
        abort = "Abort the open transaction of a transactional id, and fence its producer."
        self.endpoints = [
            Endpoint("GET", "/transactions", "All transactional ids.", self._list, TransactionList),
            Endpoint("POST", path, abort, self._abort, TransactionRow, query=ValidationQuery),
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

    async def _abort(self, call: Call) -> TransactionRow:
        """Fence the producer, as a new one with the same id would (KIP-98). Return the transaction that was open."""
        transactional_id = call.path["transaction"]
        found = await self._describe(transactional_id, call)
        if found.state != ONGOING:
            reason = f"transactional id {transactional_id} has no transaction that can be aborted: it is {found.state}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, reason)
        if call.query.validate_only:
            return found
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=found.timeout_ms)
        code = (await self._calls.call(found.coordinator, request, call.user)).error_code
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:  # the end is decided, and its markers are being written
            # To ask for it again could end a later transaction, of a producer that has started anew.
            while (now := await self._describe(transactional_id, call)).state in ENDING:
                if now.started_ms != found.started_ms:
                    break
                await asyncio.sleep(AGAIN_S)
        else:
            check(code)
        return found

    async def _describe(self, transactional_id: str, call: Call) -> TransactionRow:
        coordinator = self._calls.transaction_coordinator_of(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = (await self._calls.call(coordinator, request, call.user)).transaction_states
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            check(state.error_code, f"transactional id {transactional_id} does not exist")
        check(state.error_code)
        return _row(state, coordinator)


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
