"""Requests as bytes, built once and sent many times, and answers."""

from struct import Struct
from typing import Any, Final

from anabranch.protocol.codec import decode_exact, encode_frame
from anabranch.protocol.header import response_header
from anabranch.protocol.registry import APIS

CLIENT_ID: Final = b"benchmark"
_API_OF: Final = {api.request: api for api in APIS.values()}
_HEADER: Final = Struct(">hhih")


def request_frame(request: object, version: int | None = None) -> bytes:
    """Return a request's frame, size included, by default in the newest version."""
    api = _API_OF[type(request)]
    version = api.max_version if version is None else version
    head = _HEADER.pack(api.key, version, 1, len(CLIENT_ID)) + CLIENT_ID
    if api.is_flexible(version):
        head += b"\0"
    return b"".join(encode_frame(request, version, head))


def decode_response(request_type: type, body: bytes, version: int | None = None) -> Any:
    """Return the answer in a frame without its size."""
    api = _API_OF[request_type]
    version = api.max_version if version is None else version
    return decode_exact(api.response, body, version, len(response_header(api.key, version, 1)))
