"""InitProducerId: an id for an idempotent producer. Transactions are not served yet, and say so."""

from collections.abc import Coroutine
from typing import Any

from broker.net.connection import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.init_producer_id import KEY, InitProducerIdRequest, InitProducerIdResponse
from s3stream.errors import StorageError

__all__ = ["KEY", "handle"]


def handle(
    node: Node, request: InitProducerIdRequest, context: Exchange
) -> InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]:
    """Give a new id with epoch 0, as Kafka does for every producer without a transactional id."""
    del context
    if request.transactional_id is not None:
        code = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    return _new_id(node)


async def _new_id(node: Node) -> InitProducerIdResponse:
    try:
        producer_id = await node.producer_ids.next()
    except StorageError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
