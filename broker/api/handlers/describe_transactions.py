"""DescribeTransactions: the state of transactional ids."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TRANSACTION_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import transactions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def handle(serving: Serving, request: DescribeTransactionsRequest, _exchange: Exchange) -> DescribeTransactionsResponse:
    """Answer at once."""
    return DescribeTransactionsResponse(
        transaction_states=[_described(serving, transactional_id) for transactional_id in request.transactional_ids]
    )


def _described(serving: Serving, transactional_id: str) -> TransactionState:
    if not transactional_id:
        return TransactionState(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)
    try:
        state = serving.transactions.describe(transactional_id)
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=state.status.label,
        transaction_timeout_ms=state.timeout_ms,
        transaction_start_time_ms=state.start_ms,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        topics=[TopicData(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def guard(caller: Caller, request: DescribeTransactionsRequest) -> Verdict:
    """Check DESCRIBE on each transactional id, and leave out topics that the client may not describe."""
    allowed, denied = split(request.transactional_ids, lambda each: caller.may_transaction(AclOperation.DESCRIBE, each))
    errors = [TransactionState(error_code=TRANSACTION_DENIED, transactional_id=each) for each in denied]

    def amend(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        shown = []
        for state in response.transaction_states:
            seen = caller.topics(AclOperation.DESCRIBE, (topic.topic for topic in state.topics))
            shown.append(replace(state, topics=[topic for topic in state.topics if topic.topic in seen]))
        return replace(response, transaction_states=[*shown, *errors])

    return Passed(replace(request, transactional_ids=allowed), amend)


API = declare(
    DescribeTransactionsRequest,
    handle,
    guard=guard,
    waits_for=transactions(lambda request: request.transactional_ids),
    relayed=True,
)
