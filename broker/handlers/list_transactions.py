"""ListTransactions: the transactional ids coordinated here, by state, producer id and age if asked."""

from broker.net.connection import Exchange
from broker.node import Node
from broker.transactions.table import BY_LABEL
from protocol.errors import KafkaError
from protocol.messages import list_transactions
from protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

KEY = list_transactions.KEY
MAX_VERSION = 1
"""Version 2 brings a client's regular expression, which wants an engine whose time is bounded (Kafka has RE2)."""


def handle(node: Node, request: ListTransactionsRequest, context: Exchange) -> ListTransactionsResponse:  # noqa: ARG001 - every handler's signature
    """Answer at once. States nobody knows are named in the answer; if there are no others, nothing matches."""
    unknown = [label for label in request.state_filters if label not in BY_LABEL]
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    now_ms = node.now_ms()
    try:
        found = [
            TransactionState(
                transactional_id=state.transactional_id,
                producer_id=state.producer_id,
                transaction_state=state.status.label,
            )
            for state in node.transactions.transactions()
            if (not request.state_filters or state.status in states)
            and (not producer_ids or state.producer_id in producer_ids)
            and (request.duration_filter < 0 or now_ms - state.start_ms > request.duration_filter)
        ]
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
