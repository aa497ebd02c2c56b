"""FindCoordinator: the node that coordinates a group or a transactional id (KIP-699).

Versions:
    v0  first version
    v1  request adds key_type. response adds throttle_time_ms, error_message
    v2  throttling is applied after the response
    v3  flexible
    v4  request adds coordinator_keys; drops key. response adds coordinators; drops error_code, error_message, node_id,
        host, port. several keys in one request (KIP-699)
    v5  TRANSACTION_ABORTABLE may be returned (KIP-890)
    v6  share groups as a key type (KIP-932)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 10


@message(versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = wire.string("0-3")
    key_type: int = wire.int8("1+")
    coordinator_keys: Sequence[str] = wire.array(wire.Kind.STRING, "4+")


@message
class Coordinator:
    key: str = wire.string("4+")
    node_id: int = wire.int32("4+")
    host: str = wire.string("4+")
    port: int = wire.int32("4+")
    error_code: int = wire.int16("4+")
    error_message: str | None = wire.string("4+", nullable="4+", ignorable=True)


@message(versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0-3")
    error_message: str | None = wire.string("1-3", nullable="1-3", ignorable=True)
    node_id: int = wire.int32("0-3")
    host: str = wire.string("0-3")
    port: int = wire.int32("0-3")
    coordinators: Sequence[Coordinator] = wire.array(Coordinator, "4+")
