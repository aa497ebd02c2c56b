"""EndTxn: commit or abort. Answered when the decision is durable; the markers are written afterwards."""

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import TRANSACTION_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import transaction
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.errors import code_for_version
from anabranch.broker.kafka.transactions.state_machine import VERSION_1, VERSION_2
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from anabranch.s3stream.errors import StorageError

FENCED_VERSION = 2
V2_VERSION = 5
"""First version in which each transaction has a separate epoch, and the answer contains the next one."""


async def handle(serving: Serving, request: EndTxnRequest, exchange: Exchange) -> EndTxnResponse:
    """Commit or abort the transaction."""
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    version = VERSION_2 if exchange.api_version >= V2_VERSION else VERSION_1
    try:
        producer = await serving.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            version=version,
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=code_for_version(error.code, exchange.api_version, FENCED_VERSION))
    except StorageError:
        return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def guard(caller: Caller, request: EndTxnRequest) -> Verdict:
    """Check WRITE on the transactional id."""
    if caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        return Passed(request)
    return Refused(EndTxnResponse(error_code=TRANSACTION_DENIED))


API = declare(EndTxnRequest, handle, guard=guard, waits_for=transaction)
