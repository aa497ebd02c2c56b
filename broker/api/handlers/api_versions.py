"""ApiVersions: the APIs, versions and features that this node serves."""

import re

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.features import LOWEST, NEWEST
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import (
    KEY,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

__all__ = ["handle", "unsupported_version"]

SOFTWARE_SINCE = 3
FEATURES_FROM_ZERO_SINCE = 4
"""First version whose clients accept features with version 0. As in Kafka, older ones do not receive such features."""
_SUPPORTED = [
    SupportedFeatureKey(name=name, min_version=LOWEST[name], max_version=newest) for name, newest in NEWEST.items()
]
_SUPPORTED_ABOVE_ZERO = [feature for feature in _SUPPORTED if feature.min_version > 0]
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(serving: Serving, request: ApiVersionsRequest, exchange: Exchange) -> ApiVersionsResponse:
    """Answer with the table; a malformed software name or version gets INVALID_REQUEST (KIP-511)."""
    if exchange.api_version >= SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if exchange.api_version >= SOFTWARE_SINCE:
        exchange.connection.software_name = request.client_software_name
        exchange.connection.software_version = request.client_software_version
    return ApiVersionsResponse(
        api_keys=serving.advertised_apis,
        supported_features=_SUPPORTED if exchange.api_version >= FEATURES_FROM_ZERO_SINCE else _SUPPORTED_ABOVE_ZERO,
        finalized_features_epoch=serving.features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in serving.features.finalized().items()
        ],
    )


def unsupported_version(serving: Serving) -> ApiVersionsResponse:
    """Build the version 0 answer to an unknown version, from which the client chooses a common one."""
    own = tuple(api for api in serving.advertised_apis if api.api_key == KEY)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


API = declare(ApiVersionsRequest, handle, guard=open_to_all)
