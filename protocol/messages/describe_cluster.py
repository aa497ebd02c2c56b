"""DescribeCluster: the nodes of the cluster (KIP-700, KIP-919, KIP-1073).

Versions:
    v0  first version. flexible
    v1  request adds endpoint_type. response adds endpoint_type
    v2  request adds include_fenced_brokers. response adds brokers.is_fenced
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 60


@message(versions="0-2", flexible="0+")
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = wire.boolean("0+")
    endpoint_type: int = wire.int8("1+", default=1)
    include_fenced_brokers: bool = wire.boolean("2+")


@message
class DescribeClusterBroker:
    broker_id: int = wire.int32("0+")
    host: str = wire.string("0+")
    port: int = wire.int32("0+")
    rack: str | None = wire.string("0+", nullable="0+", default=None)
    is_fenced: bool = wire.boolean("2+")


@message(versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    endpoint_type: int = wire.int8("1+", default=1)
    cluster_id: str = wire.string("0+")
    controller_id: int = wire.int32("0+", default=-1)
    brokers: Sequence[DescribeClusterBroker] = wire.array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = wire.int32("0+", default=-(2**31))
