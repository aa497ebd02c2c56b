"""ApiVersions: the APIs, versions and features that this node serves."""

import re
from collections.abc import Sequence
from functools import cache

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.net.traffic import rack_in
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import (
    KEY,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

__all__ = ["answer", "handle", "unsupported_version"]

SOFTWARE_SINCE = 3
"""First version with the client's software. A node that serves it names its versions in a refusal, too (KIP-511)."""
FEATURES_FROM_ZERO_SINCE = 4
"""First version whose clients accept features with version 0. As in Kafka, older ones do not receive such features."""
_NO_EPOCH = -1
_NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(serving: Serving, request: ApiVersionsRequest, exchange: Exchange) -> ApiVersionsResponse:
    """Answer with the table, or with REBOOTSTRAP_REQUIRED to a client that looks for another node (KIP-1242)."""
    response = answer(serving, request, exchange)
    expected = (serving.settings.node.cluster, serving.node_id)
    if response.error_code or request.cluster_id is None or (request.cluster_id, request.node_id) == expected:
        return response
    return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)


def answer(serving: Serving, request: ApiVersionsRequest, exchange: Exchange) -> ApiVersionsResponse:
    """Answer with the table, whatever node the client looks for.

    A malformed software name or version gets INVALID_REQUEST (KIP-511), and so does a cluster without a node.
    """
    if exchange.api_version >= SOFTWARE_SINCE and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if exchange.api_version >= SOFTWARE_SINCE:
        exchange.connection.software_name = request.client_software_name
        exchange.connection.software_version = request.client_software_version
    if rack := rack_in(exchange.client_id):
        exchange.connection.enter_rack(rack)
    supported = serving.features.supported
    return ApiVersionsResponse(
        api_keys=serving.advertised_apis,
        supported_features=_supported(
            tuple(supported.items()), with_zero=exchange.api_version >= FEATURES_FROM_ZERO_SINCE
        ),
        finalized_features_epoch=serving.features.epoch if supported else _NO_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in serving.features.finalized().items()
        ],
    )


@cache
def _supported(levels: tuple[tuple[str, tuple[int, int]], ...], *, with_zero: bool) -> Sequence[SupportedFeatureKey]:
    """Return features by their lowest and highest levels, with or without those whose lowest is 0."""
    return [
        SupportedFeatureKey(name=name, min_version=lowest, max_version=newest)
        for name, (lowest, newest) in levels
        if lowest > 0 or with_zero
    ]


def unsupported_version(serving: Serving) -> ApiVersionsResponse:
    """Build the version 0 answer to an unknown version, from which the client chooses a common one.

    Before KIP-511 it named no versions.
    """
    own = [api for api in serving.advertised_apis if api.api_key == KEY and api.max_version >= SOFTWARE_SINCE]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


API = declare(ApiVersionsRequest, handle, guard=open_to_all)
