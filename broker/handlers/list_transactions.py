"""ListTransactions: the transactional ids coordinated here, by state, producer id, age and pattern if asked."""

from broker.groups.consumer_regex import TextPattern
from broker.net.connection import Exchange
from broker.node import Node
from broker.transactions.table import BY_LABEL
from protocol.errors import KafkaError
from protocol.messages import list_transactions
from protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

KEY = list_transactions.KEY


def handle(node: Node, request: ListTransactionsRequest, context: Exchange) -> ListTransactionsResponse:  # noqa: ARG001 - every handler's signature
    """Answer at once. States nobody knows are named in the answer; if there are no others, nothing matches."""
    unknown = [label for label in request.state_filters if label not in BY_LABEL]
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    now_ms = node.now_ms()
    try:
        # Patterns are strangers' and matched here, on the loop: in linear time, by the engine that topics' have.
        pattern = TextPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        found = [
            TransactionState(
                transactional_id=state.transactional_id,
                producer_id=state.producer_id,
                transaction_state=state.status.label,
            )
            for state in node.transactions.transactions()
            if (not request.state_filters or state.status in states)
            and (not producer_ids or state.producer_id in producer_ids)
            and (pattern is None or pattern.matches(state.transactional_id))
            and (request.duration_filter < 0 or now_ms - state.start_ms > request.duration_filter)
        ]
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
