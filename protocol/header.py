"""Request and response headers at a node, coded by hand because every request passes through here.

A request header is api key, api version, correlation id and a nullable client id (never compact), and in flexible
versions tagged fields (KIP-482). A response header is the correlation id and, in flexible versions, tagged fields;
the one of ApiVersions never has them, since a client that sent a version too new must still read it (KIP-511).
"""

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from anabranch.protocol.codec import encode_frame
from anabranch.protocol.decoder import skip_tags
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages import api_versions
from anabranch.protocol.registry import APIS
from anabranch.protocol.requests import FIXED_HEADER
from anabranch.protocol.wire import VERSION_MAX, Buffer

_RESPONSE: Final = Struct(">i")
_RESPONSE_FLEXIBLE: Final = Struct(">ix")

_FLEXIBLE_SINCE: Final = {
    key: VERSION_MAX + 1 if api.flexible_since is None else api.flexible_since for key, api in APIS.items()
}


class RequestHeader(NamedTuple):
    """Header of a request. The body of the message begins at `body_offset` of the buffer."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def parse_request_header(buffer: Buffer, offset: int = 0) -> RequestHeader:
    """Parse a request header, of any API key and version.

    For an API or version that is not served, the body's offset may be wrong; the caller checks both before it decodes.
    Raises MalformedMessage.
    """
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    try:
        api_key, api_version, correlation_id, length = FIXED_HEADER.unpack_from(view, offset)
        position = offset + 10
        client_id = None
        if length >= 0:
            end = position + length
            if end > len(view):
                raise MalformedMessage(f"request header: client id of {length} bytes, found {len(view) - position}")
            client_id = view[position:end].tobytes().decode()
            position = end
        elif length != -1:
            raise MalformedMessage(f"request header: client id of {length} bytes")
        if api_version >= _FLEXIBLE_SINCE.get(api_key, VERSION_MAX + 1):
            position = position + 1 if view[position] == 0 else skip_tags(view, position, len(view))
    except (struct_error, IndexError) as error:
        raise MalformedMessage(f"request header: truncated ({len(view) - offset} bytes)") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage("request header: the client id is not UTF-8") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return the header of the response to a request of this key and version."""
    if api_version >= _FLEXIBLE_SINCE.get(api_key, VERSION_MAX + 1) and api_key != api_versions.KEY:
        return _RESPONSE_FLEXIBLE.pack(correlation_id)
    return _RESPONSE.pack(correlation_id)


def response_frame(api_key: int, api_version: int, correlation_id: int, response: object) -> list[Buffer]:
    """Return a whole response, size prefix and header included, as buffers for one vectored send."""
    return encode_frame(response, api_version, response_header(api_key, api_version, correlation_id))
