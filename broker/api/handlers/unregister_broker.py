"""UnregisterBroker: remove a node from the catalog, as `anabranch node remove` does.

One that is alive, leads partitions, or whose log is not drained is refused.
"""

from collections.abc import Iterable

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from anabranch.s3stream.errors import NodeInUse, NotFound, StorageError


async def handle(serving: Serving, request: UnregisterBrokerRequest, _exchange: Exchange) -> UnregisterBrokerResponse:
    """Answer when it is removed."""
    code, message = ErrorCode.NONE, ""
    try:
        await serving.operations.remove(request.broker_id)
    except NotFound:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
        message = f"Broker ID {request.broker_id} is not currently registered"
    except NodeInUse as error:
        code, message = ErrorCode.INVALID_REQUEST, f"Broker ID {request.broker_id} cannot be unregistered: {error}"
    except StorageError as error:
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return UnregisterBrokerResponse(error_code=code, error_message=message)


def refusal(_request: UnregisterBrokerRequest, _version: int) -> UnregisterBrokerResponse:
    """Return the answer to a client that is not authorized."""
    return UnregisterBrokerResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)


def _changes(request: UnregisterBrokerRequest, response: UnregisterBrokerResponse) -> Iterable[Change]:
    return (Change("BROKER", str(request.broker_id), response.error_code),)


API = declare(UnregisterBrokerRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal), changes=_changes)
