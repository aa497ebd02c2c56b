"""ApiVersions: the APIs, versions and features a node has (KIP-35, KIP-511, KIP-584, KIP-1242).

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  flexible. request adds client_software_name, client_software_version. response adds supported_features (tagged),
        finalized_features_epoch (tagged), finalized_features (tagged), zk_migration_ready (tagged). the response header
        stays v0
    v4  features may have version 0 as their minimum
    v5  request adds cluster_id, node_id. REBOOTSTRAP_REQUIRED: the client has reached another broker (KIP-1242)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 18


@message(versions="0-5", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = wire.string("3+", ignorable=True)
    client_software_version: str = wire.string("3+", ignorable=True)
    cluster_id: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    node_id: int = wire.int32("5+", default=-1, ignorable=True)


@message
class ApiVersion:
    api_key: int = wire.int16("0+")
    min_version: int = wire.int16("0+")
    max_version: int = wire.int16("0+")


@message
class SupportedFeatureKey:
    name: str = wire.string("3+")
    min_version: int = wire.int16("3+")
    max_version: int = wire.int16("3+")


@message
class FinalizedFeatureKey:
    name: str = wire.string("3+")
    max_version_level: int = wire.int16("3+")
    min_version_level: int = wire.int16("3+")


@message(versions="0-5", flexible="3+")
class ApiVersionsResponse:
    error_code: int = wire.int16("0+")
    api_keys: Sequence[ApiVersion] = wire.array(ApiVersion, "0+")
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    supported_features: Sequence[SupportedFeatureKey] = wire.array(SupportedFeatureKey, "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = wire.int64("3+", tag=1, default=-1, ignorable=True)
    finalized_features: Sequence[FinalizedFeatureKey] = wire.array(FinalizedFeatureKey, "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = wire.boolean("3+", tag=3, ignorable=True)
