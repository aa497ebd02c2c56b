"""Request frames: header and body through the real decoder, as the dispatcher calls it."""

from random import Random

from anabranch.protocol.codec import decode, encode
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.header import parse_request_header
from anabranch.protocol.registry import APIS
from tests.fuzz.messages import random_frame
from tests.fuzz.target import Target, check_message


def check(data: bytes) -> None:
    try:
        header = parse_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or not api.min_version <= header.api_version <= api.max_version:
            return
        message, end = decode(api.request, data, header.api_version, header.body_offset)
    except MalformedMessage as error:
        check_message(error)
        return
    assert header.body_offset <= end <= len(data)
    assert header.client_id is None or header.client_id.encode() in data
    again = encode(message, header.api_version)
    assert len(again) <= 3 * len(data) + 100, "what is decoded is no larger than its frame allows"
    found, end = decode(api.request, again, header.api_version)
    assert end == len(again)
    assert encode(found, header.api_version) == again, "decoding what was encoded gives the same message"


def fresh(random: Random) -> bytes:
    return random_frame(random)[4:]


def seeds() -> list[bytes]:
    random = Random(1)
    return [fresh(random) for _ in range(200)]


TARGET = Target(check, seeds, quick_inputs=4000, fresh=fresh, words=[b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80"])
