"""UnregisterBroker: remove a node from the catalog, as `anabranch node remove` does.

One that is alive, leads partitions, or whose log is not drained is refused.
"""

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from anabranch.s3stream.errors import NodeInUse, NotFound, StorageError


async def handle(node: Node, request: UnregisterBrokerRequest, _exchange: Exchange) -> UnregisterBrokerResponse:
    """Answer when it is removed."""
    code, message = ErrorCode.NONE, ""
    try:
        await node.operations.remove(request.broker_id)
    except NotFound:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        message = f"Broker ID {request.broker_id} is not currently registered"
    except NodeInUse as error:
        code, message = ErrorCode.INVALID_REQUEST, f"Broker ID {request.broker_id} cannot be unregistered: {error}"
    except StorageError as error:
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return UnregisterBrokerResponse(error_code=code, error_message=message)
