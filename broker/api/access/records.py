"""Guards of the APIs for records and their offsets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.api.access.guard import Passed, Refused, Verdict
from anabranch.broker.api.handlers.caller import Caller
from anabranch.broker.api.handlers.produce_response import refuse_all
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from anabranch.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from anabranch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    TopicResponse,
)
from anabranch.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from anabranch.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from anabranch.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def split(topics: Sequence[Any], is_allowed: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """Return the allowed ones, and the others."""
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        (allowed if is_allowed(topic) else denied).append(topic)
    return allowed, denied


def produce(caller: Caller, request: ProduceRequest) -> Verdict:
    """Check WRITE on the transactional id, if a batch is transactional, and on each topic."""
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not caller.may_transaction(AclOperation.WRITE, transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.acks == 0:
                return Passed(replace(request, topic_data=()), failure=_no_answer(code))
            return Refused(refuse_all(request, code))
    codes = {id(topic): _code(caller, topic) for topic in request.topic_data}
    allowed, refused = split(request.topic_data, lambda topic: codes[id(topic)] is ErrorCode.NONE)
    if not refused:
        return Passed(request)
    passed = replace(request, topic_data=allowed)
    if request.acks == 0:
        return Passed(passed, failure=_no_answer(codes[id(refused[0])]))
    errors = [_unwritten(topic, codes[id(topic)]) for topic in refused]

    def amend(response: ProduceResponse) -> ProduceResponse:
        return replace(response, responses=[*response.responses, *errors])

    return Passed(passed, amend)


def _code(caller: Caller, topic: TopicProduceData) -> ErrorCode:
    name = caller.name_of(topic.name, topic.topic_id)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if caller.may_topic(AclOperation.WRITE, name) else DENIED


def _unwritten(topic: TopicProduceData, code: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1) for data in topic.partition_data
        ],
    )


def _no_answer(code: ErrorCode) -> str:
    return f"a Produce request with acks=0 failed: {code.message}"


def _is_transactional(request: ProduceRequest) -> bool:
    """Return whether a batch is transactional, as far as its header can be read: its partition refuses it otherwise."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is None:
                continue
            try:
                if any(header.is_transactional for header, _ in iterate_batches(data.records)):
                    return True
            except (ProtocolError, KafkaError, CorruptBatch):
                continue
    return False


def list_offsets(caller: Caller, request: ListOffsetsRequest) -> Verdict:
    """Check DESCRIBE on each topic."""
    describable = caller.topics(AclOperation.DESCRIBE, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in describable)
    return _merged(replace(request, topics=allowed), [_listed(topic) for topic in denied])


def _listed(topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=DENIED)
            for each in topic.partitions
        ],
    )


def _merged(request: Any, errors: Sequence[Any]) -> Passed:
    """Pass a request whose answer has a list `topics`, to which the errors are added."""
    if not errors:
        return Passed(request)

    def amend(response: Any) -> Any:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(request, amend)


def offset_for_leader_epoch(caller: Caller, request: OffsetForLeaderEpochRequest) -> Verdict:
    """Check CLUSTER_ACTION on the cluster, or DESCRIBE on each topic."""
    if caller.may_cluster(AclOperation.CLUSTER_ACTION, audited=False):
        return Passed(request)
    describable = caller.topics(AclOperation.DESCRIBE, (topic.topic for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.topic in describable)
    return _merged(replace(request, topics=allowed), [_epochs(topic) for topic in denied])


def _epochs(topic: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[EpochEndOffset(error_code=DENIED, partition=each.partition) for each in topic.partitions],
    )


def delete_records(caller: Caller, request: DeleteRecordsRequest) -> Verdict:
    """Check DELETE on each topic."""
    deletable = caller.topics(AclOperation.DELETE, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in deletable)
    return _merged(replace(request, topics=allowed), [_undeleted(topic) for topic in denied])


def _undeleted(topic: DeleteRecordsTopic) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            DeleteRecordsPartitionResult(partition_index=each.partition_index, low_watermark=-1, error_code=DENIED)
            for each in topic.partitions
        ],
    )


def describe_producers(caller: Caller, request: DescribeProducersRequest) -> Verdict:
    """Check READ on each topic."""
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    return _merged(replace(request, topics=allowed), [_producers(topic) for topic in denied])


def _producers(topic: ProducersTopic) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=[
            PartitionResponse(partition_index=index, error_code=DENIED, error_message=DENIED.message)
            for index in topic.partition_indexes
        ],
    )
