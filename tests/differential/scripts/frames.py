"""Malformed frames."""

import struct

from anabranch.protocol.codec import encode
from anabranch.protocol.messages.metadata import MetadataRequest
from tests.differential.script import Script
from tests.support.raw_client import request_frame


def malformed(script: Script) -> None:
    body = encode(MetadataRequest(topics=()), 9)
    good = request_frame(3, 9, body)
    script.raw("well formed", good)
    script.raw("size negative", struct.pack(">i", -1))
    script.raw("size zero", struct.pack(">i", 0))
    script.raw("size above the limit", struct.pack(">i", 104_857_601))
    script.raw("header cut short", struct.pack(">ihh", 4, 3, 9))
    script.raw("http", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    script.raw("unknown key", request_frame(4242, 0, b""))
    script.raw("negative key", request_frame(-1, 0, b""))
    for key in (4, 5, 6, 7):
        script.raw("a removed key", request_frame(key, 0, b""))
    script.raw("version too new", request_frame(3, 99, body))
    script.raw("version negative", request_frame(3, -1, body))
    script.raw("produce v2", request_frame(0, 2, bytes(20)))
    script.raw("fetch v3", request_frame(1, 3, bytes(20)))
    script.raw("client id past the end", struct.pack(">ihhih", 10, 3, 1, 7, 500))
    script.raw("client id of length -2", struct.pack(">ihhih", 10, 3, 1, 7, -2))
    script.raw("no client id", struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0))
    script.raw("body cut short", request_frame(3, 9, body[:-1]))
    script.raw("body missing", request_frame(3, 9, b""))
    script.raw("bytes after the body", request_frame(3, 9, body + b"more"))
    script.raw("array of two billion", request_frame(3, 1, struct.pack(">i", 2**31 - 1)))
    script.raw("array of a negative size", request_frame(3, 1, struct.pack(">i", -5)))
    script.raw("a name that is null", request_frame(3, 1, struct.pack(">ih", 1, -1)))
    script.raw("a name that is not UTF-8", request_frame(3, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe"))
    script.raw("a tag nobody knows", request_frame(3, 9, body[:-1] + b"\x01\x63\x01x"))
    script.raw("a tag in the header", request_frame(3, 9, b"").replace(b"raw\0", b"raw\x01\x63\x01x") + b"")
    script.raw("a boolean of 2", request_frame(3, 9, b"\x01\x02\x00\x00\x00"))


SCRIPTS = (malformed,)
