"""InitProducerId: an id and epoch for an idempotent producer, or the next epoch of a transactional id."""

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import CLUSTER_DENIED, TRANSACTION_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import transaction
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import CLUSTER_NAME, AclOperation, AclResourceType
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.errors import code_for_version
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.s3stream.errors import StorageError

FENCED_VERSION = 4


async def handle(serving: Serving, request: InitProducerIdRequest, exchange: Exchange) -> InitProducerIdResponse:
    """As in Kafka, a producer without a transactional id gets a new id with epoch 0 each time."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return _failed(ErrorCode.INVALID_REQUEST)
    try:
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=await serving.producer_ids.next(), producer_epoch=0)
        expected = Producer(request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
        producer = await serving.transactions.init(request.transactional_id, request.transaction_timeout_ms, expected)
    except KafkaError as error:
        return _failed(code_for_version(error.code, exchange.api_version, FENCED_VERSION))
    except StorageError:
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)


def guard(caller: Caller, request: InitProducerIdRequest) -> Verdict:
    """Check WRITE on the transactional id; without one IDEMPOTENT_WRITE on the cluster, or WRITE on some topic."""
    if request.transactional_id is not None:
        code = None if caller.may_transaction(AclOperation.WRITE, request.transactional_id) else TRANSACTION_DENIED
    elif caller.may_cluster(AclOperation.IDEMPOTENT_WRITE, audited=False) or caller.may_write_some_topic():
        code = None
    else:
        caller.denied(AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, CLUSTER_NAME)
        code = CLUSTER_DENIED
    return Passed(request) if code is None else Refused(InitProducerIdResponse(error_code=code, producer_epoch=-1))


API = declare(InitProducerIdRequest, handle, guard=guard, waits_for=transaction, relayed=True)
