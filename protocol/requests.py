"""Frames of requests, as clients send them. `protocol.header` reads their headers."""

from struct import Struct
from typing import Final

from anabranch.protocol.api import api_of
from anabranch.protocol.codec import encode_frame
from anabranch.protocol.wire import Buffer

FIXED_HEADER: Final = Struct(">hhih")
"""Fixed part of a request's header: key and version of the API, correlation id, length of the client id."""


def request_frame(version: int, correlation_id: int, client_id: bytes, request: object) -> list[Buffer]:
    """Return a whole request, size prefix and header included, as buffers for one vectored send."""
    api = api_of(type(request))
    header = FIXED_HEADER.pack(api.key, version, correlation_id, len(client_id)) + client_id
    if api.is_flexible(version):
        header += b"\0"
    return encode_frame(request, version, header)
