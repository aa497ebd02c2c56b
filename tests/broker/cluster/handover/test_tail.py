"""Encoding of tails, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.cluster.handover.tail import PIECE_BYTES, InvalidTail, decode_tail, encode_tail, pieces
from anabranch.s3stream.model import StreamBatch

STREAM = 7


def batches_of(payloads: list[bytes], start: int = 100) -> list[StreamBatch]:
    return [
        StreamBatch(STREAM, start + 10 * at, start + 10 * at + 10, 3, at, payload)
        for at, payload in enumerate(payloads)
    ]


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_a_tail_is_decoded_as_it_was(payloads: list[bytes]) -> None:
    made = batches_of(payloads)
    found = decode_tail(memoryview(encode_tail(made, 3)), STREAM, 100, 100 + 10 * len(made))
    assert [(*each[:5], bytes(each.payload)) for each in found] == [tuple(each) for each in made]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_pieces_are_small_and_in_order(size: int) -> None:
    tail = bytes(range(256)) * (size // 256 + 1)
    cut = list(pieces(tail[:size]))
    assert cut[0][0] == 0
    assert all(len(piece) <= PIECE_BYTES for _, piece in cut)
    assert b"".join(piece for _, piece in cut) == tail[:size]
    assert [position for position, _ in cut] == [at * PIECE_BYTES for at in range(len(cut))]


@given(st.data())
def test_a_damaged_tail_is_refused_or_has_other_payloads(data: st.DataObject) -> None:
    made = batches_of([b"a" * 20, b"b" * 20])
    tail = bytearray(encode_tail(made, 3))
    at = data.draw(st.integers(0, len(tail) - 1))
    tail[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(tail)))
    try:
        found = decode_tail(memoryview(tail)[:cut], STREAM, 100, 120)
    except InvalidTail:
        return
    assert cut == len(tail)
    assert [(each.base_offset, each.end_offset) for each in found] == [(100, 110), (110, 120)]


@pytest.mark.parametrize(("stream_id", "start", "end"), [(8, 100, 120), (STREAM, 90, 120), (STREAM, 100, 130)])
def test_a_tail_of_other_offsets_is_refused(stream_id: int, start: int, end: int) -> None:
    tail = memoryview(encode_tail(batches_of([b"a", b"b"]), 3))
    with pytest.raises(InvalidTail):
        decode_tail(tail, stream_id, start, end)
