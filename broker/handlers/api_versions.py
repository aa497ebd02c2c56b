"""ApiVersions: which APIs, versions and features this node serves."""

import re

from broker.net.connection import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.api_versions import KEY, ApiVersionsRequest, ApiVersionsResponse

__all__ = ["KEY", "handle", "unsupported_version"]

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(node: Node, request: ApiVersionsRequest, context: Exchange) -> ApiVersionsResponse:
    """Answer with the table; a malformed software name or version gets INVALID_REQUEST (KIP-511)."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=node.advertised_apis)


def unsupported_version(node: Node) -> ApiVersionsResponse:
    """The version 0 answer to a version nobody here knows: from it the client picks one that it shares with us."""
    own = tuple(api for api in node.advertised_apis if api.api_key == KEY)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
