"""ListTransactions: the transactional ids coordinated here, filtered by state, producer id, age and pattern."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.patterns import Pattern
from anabranch.broker.kafka.transactions.state_table import BY_LABEL
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

MATCHED_AT_ONCE = 500
"""Ids that are matched before other tasks get their turn: a few ms."""


def handle(
    serving: Serving, request: ListTransactionsRequest, _exchange: Exchange
) -> ListTransactionsResponse | Coroutine[Any, Any, ListTransactionsResponse]:
    """Answer at once, or with a coroutine for a pattern. Unknown states are named in the answer and match nothing."""
    unknown = [label for label in request.state_filters if label not in BY_LABEL]
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    now_ms = serving.now_ms()
    try:
        pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        found = [
            TransactionState(
                transactional_id=state.transactional_id,
                producer_id=state.producer_id,
                transaction_state=state.status.label,
            )
            for state in serving.transactions.transactions()
            if (not request.state_filters or state.status in states)
            and (not producer_ids or state.producer_id in producer_ids)
            and (request.duration_filter < 0 or now_ms - state.start_ms > request.duration_filter)
        ]
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    answer = ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
    return answer if pattern is None else _matching(answer, pattern)


async def _matching(answer: ListTransactionsResponse, pattern: Pattern) -> ListTransactionsResponse:
    """Filter an answer by a pattern. Since clients choose it, matching is linear in time and yields to other tasks."""
    found = []
    for at, state in enumerate(answer.transaction_states, 1):
        if pattern.matches(state.transactional_id):
            found.append(state)
        if at % MATCHED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return replace(answer, transaction_states=found)


def guard(caller: Caller, request: ListTransactionsRequest) -> Verdict:
    """Leave out transactional ids that the client may not describe."""

    def amend(response: ListTransactionsResponse) -> ListTransactionsResponse:
        seen = [
            state
            for state in response.transaction_states
            if caller.may_transaction(AclOperation.DESCRIBE, state.transactional_id)
        ]
        return replace(response, transaction_states=seen)

    return Passed(request, amend)


API = declare(ListTransactionsRequest, handle, guard=guard, reads=True, relayed=True)
