"""Guards of the APIs for transactions and producer ids, and of FindCoordinator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from anabranch.broker.api.access.guard import Passed, Refused, Verdict
from anabranch.broker.api.access.records import DENIED, split
from anabranch.broker.api.handlers.add_partitions_to_txn import BATCH_VERSION
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.handlers.find_coordinator import BATCH_VERSION as MANY_KEYS_SINCE
from anabranch.broker.api.handlers.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE
from anabranch.broker.kafka.acls.model import CLUSTER_NAME, AclOperation, AclResourceType
from anabranch.broker.kafka.topics.names import INTERNAL_TOPICS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from anabranch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from anabranch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from anabranch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from anabranch.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ID_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def find_coordinator(caller: Caller, request: FindCoordinatorRequest) -> Verdict:
    """Check DESCRIBE on each group or transactional id."""
    if request.key_type == GROUP_KEY_TYPE:
        code = GROUP_DENIED
    elif request.key_type == TRANSACTION_KEY_TYPE:
        code = ID_DENIED
    else:
        return Passed(request)

    def is_allowed(key: str) -> bool:
        if code is GROUP_DENIED:
            return caller.may_group(AclOperation.DESCRIBE, key)
        return caller.may_transaction(AclOperation.DESCRIBE, key)

    if caller.version < MANY_KEYS_SINCE:
        if is_allowed(request.key):
            return Passed(request)
        return Refused(
            FindCoordinatorResponse(error_code=code, error_message=code.message, node_id=-1, host="", port=-1)
        )
    allowed, denied = split(request.coordinator_keys, is_allowed)
    errors = [Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code) for key in denied]
    if errors and not allowed:
        return Refused(FindCoordinatorResponse(coordinators=errors))

    def amend(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        found = {each.key: each for each in (*response.coordinators, *errors)}
        return replace(response, coordinators=[found[key] for key in request.coordinator_keys])

    return Passed(replace(request, coordinator_keys=allowed), amend if errors else None)


def init_producer_id(caller: Caller, request: InitProducerIdRequest) -> Verdict:
    """Check WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on some topic."""
    if request.transactional_id is not None:
        code = None if caller.may_transaction(AclOperation.WRITE, request.transactional_id) else ID_DENIED
    elif caller.may_cluster(AclOperation.IDEMPOTENT_WRITE, audited=False) or caller.may_write_some_topic():
        code = None
    else:
        caller.denied(AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, CLUSTER_NAME)
        code = CLUSTER_DENIED
    return Passed(request) if code is None else Refused(InitProducerIdResponse(error_code=code, producer_epoch=-1))


def add_partitions_to_txn(caller: Caller, request: AddPartitionsToTxnRequest) -> Verdict:
    """Check WRITE on the transactional id and on all topics; versions for brokers need CLUSTER_ACTION."""
    if caller.version >= BATCH_VERSION:
        if caller.may_cluster(AclOperation.CLUSTER_ACTION):
            return Passed(request)
        return Refused(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    topics = request.v3_and_below_topics
    if not caller.may_transaction(AclOperation.WRITE, request.v3_and_below_transactional_id):
        return Refused(_not_added(topics, lambda *_: ID_DENIED))
    names = (topic.name for topic in topics if topic.name not in INTERNAL_TOPICS)
    writable = caller.topics(AclOperation.WRITE, names)
    if all(topic.name in writable for topic in topics):
        return Passed(request)

    def code_of(name: str, index: int) -> ErrorCode:
        if name not in writable:
            return DENIED
        is_known = caller.node.topics.has_partition(name, index)
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return Refused(_not_added(topics, code_of))


def _not_added(
    topics: Sequence[AddPartitionsToTxnTopic], code_of: Callable[[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code_of(topic.name, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def add_offsets_to_txn(caller: Caller, request: AddOffsetsToTxnRequest) -> Verdict:
    """Check WRITE on the transactional id, and READ on the group."""
    if not caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        return Refused(AddOffsetsToTxnResponse(error_code=ID_DENIED))
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(AddOffsetsToTxnResponse(error_code=GROUP_DENIED))
    return Passed(request)


def end_txn(caller: Caller, request: EndTxnRequest) -> Verdict:
    """Check WRITE on the transactional id."""
    if caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        return Passed(request)
    return Refused(EndTxnResponse(error_code=ID_DENIED))


def txn_offset_commit(caller: Caller, request: TxnOffsetCommitRequest) -> Verdict:
    """Check WRITE on the transactional id, and READ on the group and each topic."""
    code = None
    if not caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        code = ID_DENIED
    elif not caller.may_group(AclOperation.READ, request.group_id):
        code = GROUP_DENIED
    if code is not None:
        return Refused(TxnOffsetCommitResponse(topics=[_uncommitted(topic, code) for topic in request.topics]))
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    errors = [_uncommitted(topic, DENIED) for topic in denied]
    if errors and not allowed:
        return Refused(TxnOffsetCommitResponse(topics=errors))

    def amend(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _uncommitted(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


def write_txn_markers(caller: Caller, request: WriteTxnMarkersRequest) -> Verdict:
    """Check ALTER or CLUSTER_ACTION on the cluster."""
    may_alter = caller.may_cluster(AclOperation.ALTER, audited=False)
    if may_alter or caller.may_cluster(AclOperation.CLUSTER_ACTION):
        return Passed(request)
    return Refused(
        WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index, error_code=CLUSTER_DENIED)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )
    )


def describe_transactions(caller: Caller, request: DescribeTransactionsRequest) -> Verdict:
    """Check DESCRIBE on each transactional id, and leave out topics that the client may not describe."""
    allowed, denied = split(request.transactional_ids, lambda each: caller.may_transaction(AclOperation.DESCRIBE, each))
    errors = [TransactionState(error_code=ID_DENIED, transactional_id=each) for each in denied]

    def amend(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        shown = []
        for state in response.transaction_states:
            seen = caller.topics(AclOperation.DESCRIBE, (topic.topic for topic in state.topics))
            shown.append(replace(state, topics=[topic for topic in state.topics if topic.topic in seen]))
        return replace(response, transaction_states=[*shown, *errors])

    return Passed(replace(request, transactional_ids=allowed), amend)


def list_transactions(caller: Caller, request: ListTransactionsRequest) -> Verdict:
    """Leave out transactional ids that the client may not describe."""

    def amend(response: ListTransactionsResponse) -> ListTransactionsResponse:
        seen = [
            state
            for state in response.transaction_states
            if caller.may_transaction(AclOperation.DESCRIBE, state.transactional_id)
        ]
        return replace(response, transaction_states=seen)

    return Passed(request, amend)
