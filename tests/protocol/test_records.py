"""Batches and records: against another implementation in every codec, and against damage."""

import contextlib
import struct
import zlib
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.batch import (
    HEADER_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    check_client_batch,
    check_crc,
    iterate_batches,
    parse_batch,
    patch,
    stamp_append_time,
    write_crc,
)
from anabranch.protocol.compression import Compression, compress, decompress
from anabranch.protocol.errors import (
    CorruptBatch,
    DecompressedTooLarge,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    UnsupportedMagic,
)
from anabranch.protocol.record_shape import has_plain_frame, records_fit
from anabranch.protocol.records import (
    ControlType,
    Record,
    build_batch,
    build_marker,
    control_type,
    decode_records,
    first_records,
    recompress,
)
from anabranch.protocol.varint import varlong

CODECS = list(Compression)
BYTES = st.one_of(st.none(), st.binary(max_size=20), st.just(bytes(300)))
RECORDS = st.lists(
    st.builds(
        Record,
        key=BYTES,
        value=BYTES,
        timestamp_ms=st.integers(0, 2**42),
        headers=st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)
SOME = [Record(b"k%d" % i, b"v" * i if i % 3 else None, 1000 - i, (("h", b"x"), ("n", None))) for i in range(50)]


def contents(records: list[Any]) -> list[tuple[Any, ...]]:
    """Records of either implementation as comparable tuples."""
    return [
        (
            r.offset,
            r.timestamp_ms if isinstance(r, Record) else r.timestamp,
            r.key,
            r.value,
            [tuple(h) for h in r.headers],
        )
        for r in records
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_another_implementation_reads_our_batches(codec: Compression) -> None:
    @settings(max_examples=25)
    @given(RECORDS, st.integers(0, 2**62))
    def check(records: list[Record], base_offset: int) -> None:
        batch = build_batch(records, base_offset=base_offset, compression=codec, producer_id=5, producer_epoch=1)
        theirs = DefaultRecordBatch(bytes(batch))
        assert theirs.validate_crc()
        assert contents(list(theirs)) == contents(decode_records(batch))
        assert [r.value for r in decode_records(batch)] == [r.value for r in records]
        header = parse_batch(batch)
        assert header.next_offset == theirs.next_offset == base_offset + len(records)
        assert (header.producer_id, header.max_timestamp) == (theirs.producer_id, theirs.max_timestamp)

    check()


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_another_implementations_batches(codec: Compression) -> None:
    @settings(max_examples=25)
    @given(RECORDS)
    def check(records: list[Record]) -> None:
        builder = DefaultRecordBatchBuilder(2, codec, 1, 7, 3, 11, 1 << 20)
        for i, r in enumerate(records):
            builder.append(i, r.timestamp_ms, r.key, r.value, list(r.headers))
        batch = bytes(builder.build())
        header = parse_batch(batch)
        check_crc(batch, header)
        check_client_batch(header)
        assert contents(decode_records(batch)) == contents(list(DefaultRecordBatch(batch)))
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.last_sequence == 11 + len(records) - 1

    check()


@pytest.mark.parametrize("codec", CODECS)
def test_large_batches_survive_every_codec(codec: Compression) -> None:
    records = [Record(None, struct.pack(">q", i * 7919) * 40, 5) for i in range(2000)]
    batch = build_batch(records, compression=codec)
    check_crc(batch, parse_batch(batch))
    assert [r.value for r in decode_records(batch)] == [r.value for r in records]
    assert [r.value for r in DefaultRecordBatch(bytes(batch))] == [r.value for r in records]


def test_lz4_blocks_are_independent_for_java() -> None:
    folded = compress(Compression.LZ4, bytes(200_000))
    assert folded[:4] == bytes.fromhex("04224d18")
    assert folded[4] & 0x20, "the flag for independent blocks"


def test_snappy_comes_raw_and_framed() -> None:
    data = b"some bytes that repeat, some bytes that repeat" * 3000
    framed, raw = compress(Compression.SNAPPY, data), bytes(cramjam.snappy.compress_raw(data))
    assert framed.startswith(b"\x82SNAPPY\0")
    assert decompress(Compression.SNAPPY, framed) == data
    assert decompress(Compression.SNAPPY, memoryview(raw)) == data


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_is_bounded(codec: Compression) -> None:
    bomb = compress(codec, bytes(10_000_000))
    assert len(decompress(codec, bomb)) == 10_000_000
    for bytes_max in (0, 1, 100_000, 9_999_999):
        with pytest.raises(DecompressedTooLarge) as refused:
            decompress(codec, bomb, bytes_max=bytes_max)
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(DecompressedTooLarge):
        decode_records(build_batch([Record(None, bytes(1_000_000))], compression=codec), decompressed_bytes_max=10_000)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize(
    "data", [b"", b"x", b"garbage that is no frame of any kind", b"\x82SNAPPY\0" + bytes(8) + b"\xff" * 9]
)
def test_garbage_does_not_decompress(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(InvalidRecord):
        assert len(decompress(codec, data)) == 0, "nothing may come of nothing"


@pytest.mark.parametrize("tail", ["00000000", "00000005 61", "ffffffff", "00000001 61"])
def test_damaged_snappy_framing_is_corrupt(tail: str) -> None:
    with pytest.raises(InvalidRecord):
        decompress(Compression.SNAPPY, compress(Compression.SNAPPY, b"abc") + bytes.fromhex(tail))


def test_unknown_codecs_are_refused() -> None:
    batch = build_batch(SOME, attributes=5)
    with pytest.raises(KafkaError) as caught:
        decode_records(batch)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_corrupt(codec: Compression) -> None:
    batch = bytes(build_batch(SOME[:5], compression=codec))
    for cut in range(len(batch)):
        with pytest.raises(CorruptBatch):
            parse_batch(batch[:cut])
        with pytest.raises(CorruptBatch):
            decode_records(batch[:cut])


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_byte_is_noticed(codec: Compression) -> None:
    batch = build_batch(SOME[:5], compression=codec)
    for i in range(len(batch)):
        damaged = bytearray(batch)
        damaged[i] ^= 0x41
        try:
            header = parse_batch(damaged)
            check_crc(damaged, header)
        except (CorruptBatch, UnsupportedMagic):
            continue
        assert i < 8 or 12 <= i < 16, "only base offset and leader epoch lie outside of the checksum"


@settings(max_examples=300)
@given(st.sampled_from(CODECS), st.binary(max_size=80), st.integers(0, 2**31 - 1), st.integers(0, 2**15 - 1))
def test_damaged_records_raise_named_errors(codec: Compression, body: bytes, count: int, attributes: int) -> None:
    batch = build_batch(SOME[:1])
    payload = compress(codec, body)
    made = batch[:HEADER_BYTES] + payload
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, attributes & ~7 | codec)
    struct.pack_into(">i", made, 57, count % 8)
    write_crc(made)
    try:
        records = decode_records(made)
    except (CorruptBatch, InvalidRecord):
        return
    assert len(records) == count % 8


@pytest.mark.parametrize(
    "record",
    [
        "0e 00 00 00 01 01 00 00",  # longer than its fields
        "0a 00 00 00 01 01 00",  # shorter than its fields
        "0c 00 00 00 01 01 02",  # a header that is not there
        "0c 00 00 00 01 01 01",  # a negative count of headers
        "10 00 00 00 01 01 02 01 01",  # a header without a key
        "0c 00 00 00 03 01 00",  # a key of -2 bytes
        "0c 00 00 00 7e 01 00",  # a key beyond the end
        "01 00 00 00 01 01 00",  # a negative length
        "0c 00 ffffffffffffffffff7f 00 01 01 00",  # more than 64 bits
    ],
)
def test_malformed_records_are_invalid(record: str) -> None:
    batch = build_batch([Record(None, None, 5)])
    assert batch[HEADER_BYTES:] == bytes.fromhex("0c 00 00 00 01 01 00")
    made = batch[:HEADER_BYTES] + bytes.fromhex(record)
    struct.pack_into(">i", made, 8, len(made) - 12)
    with pytest.raises(InvalidRecord):
        decode_records(made)


def test_record_count_must_be_exact() -> None:
    batch = build_batch(SOME[:5])
    for count in (-1, 4, 6, 2**31 - 1):
        struct.pack_into(">i", batch, 57, count)
        with pytest.raises(InvalidRecord):
            decode_records(batch)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_old_formats_are_recognised_and_refused(magic: Any, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    builder.append(0, timestamp=5, key=None, value=b"v" * 100)
    batch = bytes(builder.build())
    with pytest.raises(UnsupportedMagic, match=f"magic {magic}") as caught:
        parse_batch(batch)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(UnsupportedMagic):
        parse_batch(batch[:40])
    with pytest.raises(UnsupportedMagic):
        list(iterate_batches(batch))


def test_batches_of_an_unknown_format_are_corrupt() -> None:
    batch = build_batch(SOME)
    batch[16] = 3
    with pytest.raises(CorruptBatch, match="magic 3"):
        parse_batch(batch)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_lengths_no_batch_can_have_are_corrupt(length: int) -> None:
    batch = build_batch(SOME)
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptBatch, match=f"length {length}"):
        parse_batch(batch)


def test_patching_leaves_the_checksum_valid() -> None:
    batch = build_batch(SOME)
    frame = bytearray(b"before") + batch
    patch(memoryview(frame), 2**40, 17, 6)
    header = parse_batch(frame, 6)
    check_crc(frame, header, 6)
    assert (header.base_offset, header.partition_leader_epoch, header.last_offset) == (2**40, 17, 2**40 + 49)
    assert decode_records(frame[6:])[3].offset == 2**40 + 3
    assert frame[:6] == b"before"


def test_append_time_replaces_every_timestamp() -> None:
    batch = build_batch(SOME, compression=Compression.ZSTD)
    stamp_append_time(batch, 777_777)
    header = parse_batch(batch)
    check_crc(batch, header)
    assert header.is_log_append_time
    assert header.attributes & TIMESTAMP_TYPE_MASK
    assert {r.timestamp_ms for r in decode_records(batch)} == {777_777}
    assert {r.timestamp for r in DefaultRecordBatch(bytes(batch))} == {777_777}


@pytest.mark.parametrize("target", CODECS)
def test_recompression_changes_the_codec_alone(target: Compression) -> None:
    batch = build_batch(
        SOME, base_offset=9, compression=Compression.GZIP, producer_id=4, attributes=TRANSACTIONAL_MASK, base_sequence=3
    )
    before = parse_batch(batch)
    records = decompress(before.compression, memoryview(batch)[HEADER_BYTES:])
    made = recompress(batch, before, records, target)
    after = parse_batch(made)
    check_crc(made, after)
    assert after.compression is target
    assert after.is_transactional
    assert decode_records(made) == decode_records(batch)
    same = {"length": 0, "crc": 0, "attributes": 0}
    assert after._replace(**same) == before._replace(**same)
    assert after.size_bytes == len(made)


def test_compression_levels_reach_the_codec() -> None:
    data = b"".join(varlong(i * i * 7919) for i in range(20_000))
    assert zlib.decompress(compress(Compression.GZIP, data, level=1), 31) == data
    assert len(compress(Compression.GZIP, data, level=9)) < len(compress(Compression.GZIP, data, level=1))
    assert len(compress(Compression.ZSTD, data, level=19)) < len(compress(Compression.ZSTD, data, level=1))


def test_fields_of_several_batches_are_split() -> None:
    one, two = build_batch(SOME[:2], base_offset=0), build_batch(SOME[2:5], base_offset=2, compression=Compression.LZ4)
    view = memoryview(bytes(one + two))
    pairs = list(iterate_batches(view))
    assert [bytes(part) for _, part in pairs] == [one, two]
    assert [header.base_offset for header, _ in pairs] == [0, 2]
    assert all(part.obj is view.obj for _, part in pairs)
    assert list(iterate_batches(b"")) == []
    first = next(iterate_batches(view[:-1]))
    assert first[0].record_count == 2
    with pytest.raises(CorruptBatch, match=f"byte {len(one)}"):
        list(iterate_batches(view[:-1]))


def test_what_clients_may_not_send() -> None:
    header = parse_batch(build_batch(SOME))
    check_client_batch(header)
    for changed, words in (
        ({"last_offset_delta": -1}, "invalid offset range"),
        ({"record_count": 0}, "Invalid reported count"),
        ({"record_count": 49}, "Inconsistent batch offset range"),
        ({"producer_id": 3}, "Invalid sequence number"),
        ({"attributes": 0x20}, "control records"),
    ):
        with pytest.raises(InvalidRecord, match=words):
            check_client_batch(header._replace(**changed))


def test_sequences_wrap() -> None:
    header = parse_batch(build_batch(SOME, producer_id=1, producer_epoch=0, base_sequence=2**31 - 10))
    assert header.last_sequence == 39
    assert parse_batch(build_batch(SOME)).last_sequence == -1


def test_gaps_between_offsets_are_kept() -> None:
    records = [Record(b"a", b"1", 5, offset=10), Record(b"b", b"2", 5, offset=13), Record(b"c", b"3", 5)]
    batch = build_batch(records, base_offset=10)
    assert [r.offset for r in decode_records(batch)] == [10, 13, 14]
    assert parse_batch(batch).last_offset == 14


def test_markers_end_transactions() -> None:
    batch = build_marker(ControlType.COMMIT, producer_id=9, producer_epoch=2, coordinator_epoch=4, timestamp_ms=5)
    header = parse_batch(batch)
    check_crc(batch, header)
    assert header.is_control
    assert header.is_transactional
    [record] = decode_records(batch)
    assert record.key == bytes.fromhex("0000 0001")
    assert record.value == bytes.fromhex("0000 00000004")
    assert control_type(record.key) == ControlType.COMMIT
    assert DefaultRecordBatch(bytes(batch)).is_control_batch
    for key in (None, b"", b"\xff\xff\0\0"):
        with pytest.raises(InvalidRecord):
            control_type(key)


FITS: dict[str, tuple[bytes, int, bool]] = {
    "one record": (b"\x0c" + b"\0" * 6, 1, True),
    "one record, shorter than the batch": (b"\x0c" + b"\0" * 7, 1, False),
    "one record, longer than the batch": (b"\x0e" + b"\0" * 6, 1, False),
    "two records": (b"\x0c" + b"\0" * 13, 2, True),
    "no room for the second": (b"\x0c" + b"\0" * 12, 2, False),
    "no records": (b"", 1, False),
    "a negative length": (b"\x0b" + b"\0" * 6, 1, False),
    "a length of two bytes": (b"\x80\x01" + b"\0" * 64, 1, True),
    "a length of three bytes": (b"\x80\x80\x01" + b"\0" * 8192, 1, True),
    "a length without end": (b"\xff" * 20, 1, False),
}


@pytest.mark.parametrize(("payload", "count", "fits"), FITS.values(), ids=FITS)
def test_what_can_be_told_of_records_in_a_moment(payload: bytes, count: int, fits: bool) -> None:
    assert records_fit(memoryview(b"before" + payload), 6, len(payload), count) is fits


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.sampled_from(Compression))
def test_records_that_are_there_fit(values: list[bytes], compression: Compression) -> None:
    records = [Record(None, value, at) for at, value in enumerate(values)]
    view = memoryview(build_batch(records, compression=compression))
    if compression:
        assert has_plain_frame(view, HEADER_BYTES, compression, len(records)), "what clients send is not decompressed"
    else:
        assert records_fit(view, HEADER_BYTES, len(view) - HEADER_BYTES, len(records))


@pytest.mark.parametrize("codec", CODECS)
def test_the_first_records_of_a_batch(codec: Compression) -> None:
    batch = build_batch(SOME, compression=codec)
    assert first_records(batch, 3, bytes_max=4096) == decode_records(batch)[:3]
    assert first_records(batch, 100, bytes_max=4096) == decode_records(batch)
    assert first_records(batch, 0, bytes_max=4096) == []


def test_the_first_records_end_where_the_bytes_do() -> None:
    plain = build_batch(SOME)
    cut = first_records(plain, 100, bytes_max=100)
    assert 0 < len(cut) < len(SOME)
    assert cut == decode_records(plain)[: len(cut)]
    with pytest.raises(DecompressedTooLarge):
        first_records(build_batch(SOME, compression=Compression.ZSTD), 1, bytes_max=100)
    damaged = bytearray(plain)
    damaged[HEADER_BYTES] = 0xFF  # an endless length
    assert first_records(damaged[: HEADER_BYTES + 12] + plain[HEADER_BYTES + 12 :], 2, bytes_max=4096) == []
