"""AddOffsetsToTxn: add a group's partition of `__consumer_offsets` to a transaction."""

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TRANSACTION_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import transaction
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.errors import code_for_version
from anabranch.broker.kafka.transactions.state_machine import VERSION_1
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from anabranch.s3stream.errors import StorageError

FENCED_VERSION = 2


async def handle(serving: Serving, request: AddOffsetsToTxnRequest, exchange: Exchange) -> AddOffsetsToTxnResponse:
    """Answer when the coordinator's record is durable."""
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        await serving.internal_topics.ensure(OFFSETS_TOPIC)
        where = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, serving.groups.partition_count))
        producer = Producer(request.producer_id, request.producer_epoch)
        await serving.transactions.add(request.transactional_id, producer, [where], VERSION_1)
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=code_for_version(error.code, exchange.api_version, FENCED_VERSION))
    except StorageError:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return AddOffsetsToTxnResponse()


def guard(caller: Caller, request: AddOffsetsToTxnRequest) -> Verdict:
    """Check WRITE on the transactional id, and READ on the group."""
    if not caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        return Refused(AddOffsetsToTxnResponse(error_code=TRANSACTION_DENIED))
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(AddOffsetsToTxnResponse(error_code=GROUP_DENIED))
    return Passed(request)


API = declare(AddOffsetsToTxnRequest, handle, guard=guard, waits_for=transaction)
