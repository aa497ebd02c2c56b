"""Compressed frames of every kind, right and wrong: what clients sent, what formats allow, and neither.

Each family varies one thing. The frames are made by hand from the specifications, so that no library's version changes
them. `VERDICTS` has what Apache Kafka's consumer and broker make of each: see `tests.interop.record_frame_verdicts`.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import pack, pack_into

import cramjam
import zstandard

from anabranch.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, write_crc
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.lz4_frame import xxh32
from anabranch.protocol.records import Record, build_batch

TIME_MS = 1_700_000_000_000
RECORDS = tuple(Record(b"k%d" % at, b"v%d" % at, TIME_MS) for at in range(3))
PLAIN = build_batch(RECORDS)
BODY = bytes(PLAIN[HEADER_BYTES:])
LARGE_RECORDS = (Record(b"k", b"".join(b"%09d," % (at * 7919) for at in range(20_000)), TIME_MS),)
LARGE_PLAIN = build_batch(LARGE_RECORDS)
LARGE_BODY = bytes(LARGE_PLAIN[HEADER_BYTES:])
Frames = Sequence[bytes]


def as_batch(codec: Compression, frame: bytes, *, like: bytearray = PLAIN) -> bytearray:
    """Return a batch like that one, with `frame` for its records."""
    batch = bytearray(like[:HEADER_BYTES]) + frame
    pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD_BYTES)
    batch[22] = codec
    write_crc(batch)
    return batch


def _cuts(frame: bytes) -> Frames:
    """The frame cut short after each of its bytes, and whole."""
    return [frame[:size] for size in range(len(frame) + 1)]


def _tails(frame: bytes) -> Frames:
    """The frame with bytes after it."""
    return [
        frame + tail[:size] for tail in (bytes(40), b"\xff" * 40, b"garbage " * 5) for size in (1, 4, 8, 18, 19, 40)
    ]


# LZ4 frames


LZ4_MAGIC = b"\x04\x22\x4d\x18"


def lz4(
    flags: int = 0x60,
    size_class: int = 0x40,
    *,
    blocks: Sequence[bytes] = (BODY[:15], BODY[15:30], BODY[30:]),
    packed: bool = False,
    content_size: int | None = None,
    head_sum: int = 0,
    block_sum: int = 0,
    end: bytes = bytes(4),
) -> bytes:
    """Return an LZ4 frame of stored or compressed blocks, with the fields that the flags announce."""
    head = bytes((flags, size_class))
    if flags & 8:
        head += pack("<q", len(b"".join(blocks)) if content_size is None else content_size)
    if flags & 1:
        head += pack("<I", 7)
    frame = LZ4_MAGIC + head + bytes(((xxh32(head) >> 8 & 0xFF) ^ head_sum,))
    for block in blocks:
        data = bytes(cramjam.lz4.compress_block(block, store_size=False)) if packed else block
        frame += pack("<I", len(data) | (0 if packed else 1 << 31)) + data
        if flags & 16:
            frame += pack("<I", xxh32(data) ^ block_sum)
    return frame + end + (b"sums" if flags & 4 else b"")


def _lz4_families() -> Iterator[tuple[str, Frames]]:
    yield "flags", [lz4(flags) for flags in range(256)]
    yield "size class", [lz4(size_class=size_class) for size_class in range(256)]
    yield (
        "header checksum wrong",
        [lz4(flags, head_sum=wrong) for flags in (0x60, 0x68, 0x70, 0x64) for wrong in (0, 1, 0x80)],
    )
    yield "content size wrong", [lz4(0x68, content_size=size) for size in (0, 1, 10_000, -1, len(BODY))]
    yield "block checksum", [lz4(0x70, block_sum=wrong) for wrong in (0, 1)]
    yield "compressed blocks", [lz4(packed=True), lz4(packed=True, blocks=[BODY]), lz4(blocks=[BODY])]
    yield "cut", _cuts(lz4(blocks=[BODY]))
    yield "cut, compressed", _cuts(lz4(blocks=[BODY], packed=True))
    yield "cut, checksum", _cuts(lz4(0x64, blocks=[BODY]))[-12:]
    yield "tail", _tails(lz4())
    yield "tail after a checksum", _tails(lz4(0x64))
    yield "no blocks", [lz4(blocks=[]), LZ4_MAGIC, b""]
    halves = lz4(blocks=[BODY[:20]]), lz4(blocks=[BODY[20:]])
    skipped = pack("<II", 0x184D2A50, 3) + b"abc"
    yield (
        "several frames",
        [
            b"".join(halves),
            lz4() + lz4(),
            lz4(blocks=[]) + lz4(),
            skipped + lz4(),
            lz4() + skipped,
            halves[0] + skipped + halves[1],
            b"\x02\x21\x4c\x18" + pack("<I", len(BODY)) + BODY,
        ],
    )
    bad = bytearray(lz4(blocks=[BODY], packed=True))
    bad[12] ^= 0xFF
    yield "garbage inside", [bytes(bad), lz4()[:7] + b"\xff" * 40, lz4()[:7] + pack("<I", 5) + b"\xf0abcd" + bytes(4)]


def _lz4_large() -> Iterator[tuple[str, Frames]]:
    def linked(*, independent: bool, checksum: bool = False) -> bytes:
        compressor = cramjam.lz4.Compressor(content_checksum=checksum, block_linked=not independent)
        compressor.compress(LARGE_BODY)
        return bytes(compressor.finish())

    pieces = [LARGE_BODY[at : at + 65536] for at in range(0, len(LARGE_BODY), 65536)]
    yield "large: linked", [linked(independent=False), linked(independent=False, checksum=True)]
    yield "large: independent", [linked(independent=True), linked(independent=True, checksum=True)]
    yield "large: size classes", [lz4(0x60, size, blocks=pieces, packed=True) for size in (0x40, 0x50, 0x60, 0x70)]
    yield (
        "large: block above its class",
        [
            lz4(0x60, size, blocks=[LARGE_BODY], packed=packed)
            for packed in (True, False)
            for size in (0x40, 0x50, 0x60, 0x70)
        ],
    )


# gzip members


def gzip(
    flags: int = 0, *, body: bytes = BODY, method: int = 8, head_sum: int = 0, sum_: int = 0, size: int = 0
) -> bytes:
    """Return a gzip member with the fields that the flags announce."""
    head = pack("<2sBBIBB", b"\x1f\x8b", method, flags, 0, 0, 255)
    if flags & 4:
        head += pack("<H", 5) + b"extra"
    if flags & 8:
        head += b"name\0"
    if flags & 16:
        head += b"comment\0"
    if flags & 2:
        head += pack("<H", (zlib.crc32(head) & 0xFFFF) ^ head_sum)
    deflated = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = deflated.compress(body) + deflated.flush()
    return head + packed + pack("<II", zlib.crc32(body) ^ sum_, len(body) + size)


def _gzip_families() -> Iterator[tuple[str, Frames]]:
    yield "flags", [gzip(flags) for flags in range(256)]
    yield "method", [gzip(method=method) for method in range(16)]
    yield "checksums wrong", [gzip(2, head_sum=1), gzip(0x1F, head_sum=1), gzip(sum_=1), gzip(size=1)]
    yield "cut", _cuts(gzip())
    yield "cut, all fields", _cuts(gzip(0x1F))
    yield "tail", _tails(gzip())
    halves = gzip(body=BODY[:20]), gzip(body=BODY[20:])
    yield (
        "several members",
        [
            b"".join(halves),
            gzip() + gzip(),
            gzip(body=b"") + gzip(),
            gzip() + gzip(body=b""),
            halves[0] + halves[1][:-1],
            halves[0] + halves[1][:20],
            halves[0] + halves[1] + b"tail",
            halves[0] + b"\0" * 8 + halves[1],
            b"".join(gzip(body=BODY[at : at + 1]) for at in range(len(BODY))),
        ],
    )
    yield "other formats", [b"", zlib.compress(BODY), gzip()[10:-8], BODY]
    yield "garbage inside", [gzip()[:10] + b"\xff" * 30, gzip()[:14] + b"\0" * 30]


# zstd frames


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def zstd(
    descriptor: int = 0x20,
    *,
    body: bytes = BODY,
    window: int = 0x38,
    dictionary: int = 7,
    content_size: int | None = None,
    block_type: int = 0,
    block_size: int | None = None,
    content_sum: bytes = b"",
) -> bytes:
    """Return a zstd frame of one raw block, with the fields that the descriptor announces."""
    head = bytes((descriptor,))
    is_single = descriptor & 0x20
    if not is_single:
        head += bytes((window,))
    head += dictionary.to_bytes(8, "little")[: (0, 1, 2, 4)[descriptor & 3]]
    size_bytes = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    size = len(body) if content_size is None else content_size
    head += ((size - 256 if size_bytes == 2 else size) % (1 << 64)).to_bytes(8, "little")[:size_bytes]
    block = (len(body) if block_size is None else block_size) << 3 | block_type << 1 | 1
    return ZSTD_MAGIC + head + block.to_bytes(4, "little")[:3] + body + content_sum


def skippable(size: int, *, kind: int = 0, announced: int | None = None) -> bytes:
    """Return a frame that readers of zstd and LZ4 skip."""
    return pack("<II", 0x184D2A50 + kind, size if announced is None else announced) + b"s" * size


def _zstd_families() -> Iterator[tuple[str, Frames]]:
    yield (
        "descriptor",
        [zstd(descriptor, content_size=300 if descriptor >> 6 == 1 else None) for descriptor in range(256)],
    )
    yield (
        "descriptor, dictionary 0",
        [zstd(descriptor, dictionary=0) for descriptor in (0x20, 0x21, 0x22, 0x23, 0x01, 0x02, 0x03)],
    )
    yield "window", [zstd(0, window=window) for window in range(256)]
    yield (
        "content size",
        [
            zstd(size_bits, content_size=size)
            for size_bits in (0x20, 0xA0, 0xE0)
            for size in (0, len(BODY) - 1, len(BODY), len(BODY) + 1)
        ]
        + [zstd(0xE0, content_size=size) for size in (1 << 20, 1 << 27, 1 << 28, 1 << 40, 1 << 63)],
    )
    yield (
        "block type",
        [zstd(block_type=kind) for kind in range(4)]
        + [zstd(block_size=size) for size in (0, 5, len(BODY) + 1, 1 << 17, (1 << 17) + 1, (1 << 21) - 1)],
    )
    yield (
        "checksum",
        [
            zstd(0x24, content_sum=zstandard.ZstdCompressor(write_checksum=True).compress(BODY)[-4:]),
            zstd(0x24, content_sum=b"\0\0\0\0"),
        ],
    )
    yield "cut", _cuts(zstd())
    yield "cut, compressed", _cuts(bytes(cramjam.zstd.compress(BODY)))
    yield "tail", _tails(zstd())
    halves = zstd(body=BODY[:20]), zstd(body=BODY[20:])
    yield (
        "several frames",
        [
            b"".join(halves),
            zstd() + zstd(),
            zstd(body=b"") + zstd(),
            zstd() + zstd(body=b""),
            halves[0] + skippable(9) + halves[1],
            zstd() + zstd()[:-1],
            zstd() + zstd()[:6],
            zstd(0) + zstd(0x23),
            halves[0] + zstd(0x23, body=BODY[20:]),
        ],
    )
    yield (
        "skippable",
        [
            *(skippable(size) + zstd() for size in (0, 1, 100, 5000)),
            *(skippable(3, kind=kind) + zstd() for kind in range(16)),
            skippable(3) * 100 + zstd(),
            zstd() + skippable(3),
            skippable(3),
            skippable(3)[:6],
            skippable(3)[:-1],
            skippable(3, announced=1000) + zstd(),
            skippable(3, announced=(1 << 32) - 1) + zstd(),
            skippable(3) + BODY,
            zstd() + skippable(3)[:-1],
        ],
    )
    yield (
        "other formats",
        [b"", BODY, zstd()[4:], *(bytes((version,)) + ZSTD_MAGIC[1:] + zstd()[4:] for version in range(0x22, 0x28))],
    )


# snappy blocks and their framings


def snappy(body: bytes = BODY, *, length: bytes | None = None) -> bytes:
    """Return a raw snappy block of one literal."""
    assert 0 < len(body) < 60
    return (bytes((len(body),)) if length is None else length) + bytes((len(body) - 1 << 2,)) + body


def xerial(*blocks: bytes, version: int = 1, compatible: int = 1, magic: bytes = b"\x82SNAPPY\x00") -> bytes:
    """Return a stream in the framing of the Java library xerial."""
    return magic + pack(">ii", version, compatible) + b"".join(pack(">i", len(block)) + block for block in blocks)


def framed(kind: int, body: bytes) -> bytes:
    """Return a chunk of snappy's own framing format."""
    return bytes((kind,)) + len(body).to_bytes(3, "little") + body


def _snappy_families() -> Iterator[tuple[str, Frames]]:
    halves = snappy(BODY[:20]), snappy(BODY[20:])
    size = len(BODY)
    yield (
        "raw",
        [
            snappy(),
            bytes(cramjam.snappy.compress_raw(BODY)),
            *(
                snappy(length=length)
                for length in (
                    b"\0",
                    bytes((size - 1,)),
                    bytes((size + 1,)),
                    b"\xff\x7f",
                    b"\xff\xff\xff\xff\x0f",
                    b"\xff" * 5,
                    b"\xff" * 12,
                    bytes((size | 0x80, 0)),
                    bytes((size | 0x80, 0x80, 0x80, 0x80, 0)),
                )
            ),
            bytes((size, 0xF0, size - 1)) + BODY,
            bytes((size, 0xF4, size - 1, 0)) + BODY,
            bytes((size, 0x01, 0x01)) + BODY,
            bytes((size, 0)) + BODY,
            b"".join(halves),
        ],
    )
    yield "raw, first bytes", [bytes((first,)) + snappy()[1:] for first in range(256)]
    yield "raw, first tag", [snappy()[:1] + bytes((tag,)) + BODY for tag in range(256)]
    yield "raw, cut", _cuts(snappy())
    yield "raw, tail", _tails(snappy())
    yield (
        "xerial",
        [
            xerial(snappy()),
            xerial(*halves),
            xerial(),
            xerial(b"", snappy()),
            xerial(snappy(), b""),
            xerial(snappy(b"x")[:0] + b"\0", snappy()),
        ],
    )
    yield (
        "xerial, versions",
        [
            xerial(snappy(), version=version, compatible=compatible)
            for version in (-1, 0, 1, 2, 1 << 24, 1 << 30)
            for compatible in (-1, 0, 1, 2, 1 << 24, 1 << 30)
        ],
    )
    yield (
        "xerial, magic",
        [
            xerial(snappy(), magic=b"\x82SNAPPY\x01"),
            xerial(snappy(), magic=b"\x82SNAPPZ\x00"),
            xerial(snappy(), magic=b"\x02SNAPPY\x00"),
        ],
    )
    yield "xerial, cut", _cuts(xerial(*halves))
    yield "xerial, tail", _tails(xerial(snappy()))
    yield (
        "xerial, several",
        [
            xerial(halves[0]) + xerial(halves[1]),
            xerial(snappy()) + xerial(snappy()),
            xerial(snappy()) + xerial(),
            xerial() + xerial(snappy()),
            xerial() * 100 + xerial(snappy()),
            xerial(halves[0]) + xerial(halves[1], version=0),
            xerial(halves[0]) + xerial(halves[1], version=2, compatible=2),
            xerial(halves[0]) + xerial(halves[1])[:10],
            xerial(halves[0]) + xerial()[:8],
        ],
    )
    yield (
        "xerial, lengths",
        [
            xerial() + pack(">i", length) + snappy()
            for length in (-1, 0, 1, len(snappy()) - 1, len(snappy()) + 1, 1 << 20, -(1 << 31))
        ],
    )
    yield (
        "framing format",
        [
            framed(0xFF, b"sNaPpY") + framed(1, bytes(4) + BODY),
            bytes(cramjam.snappy.compress(BODY)),
            framed(0xFF, b"sNaPpY"),
            bytes(cramjam.snappy.compress(BODY * 5)),
        ],
    )
    yield (
        "other formats",
        [
            b"",
            pack(">ii", size, len(snappy())) + snappy(),
            pack("<i", len(snappy())) + snappy(),
            pack(">i", len(snappy())) + snappy(),
            BODY,
        ],
    )


def _snappy_large() -> Iterator[tuple[str, Frames]]:
    pieces = [
        bytes(cramjam.snappy.compress_raw(LARGE_BODY[at : at + 32768])) for at in range(0, len(LARGE_BODY), 32768)
    ]
    yield (
        "large",
        [bytes(cramjam.snappy.compress_raw(LARGE_BODY)), xerial(*pieces), bytes(cramjam.snappy.compress(LARGE_BODY))],
    )


def _gzip_large() -> Iterator[tuple[str, Frames]]:
    yield "large", [gzip(body=LARGE_BODY), gzip(body=LARGE_BODY[:9999]) + gzip(body=LARGE_BODY[9999:])]


def _zstd_large() -> Iterator[tuple[str, Frames]]:
    whole, first, second = (
        bytes(cramjam.zstd.compress(body)) for body in (LARGE_BODY, LARGE_BODY[:9999], LARGE_BODY[9999:])
    )
    yield "large", [whole, first + second]


@dataclass(frozen=True, slots=True)
class Family:
    """Frames that differ in one thing."""

    name: str
    codec: Compression
    like: bytearray
    """Uncompressed batch with the same records."""
    frames: Frames

    def batches(self) -> Iterator[bytearray]:
        """Yield a batch with each of the frames."""
        return (as_batch(self.codec, frame, like=self.like) for frame in self.frames)


Generator = Callable[[], Iterator[tuple[str, Frames]]]
_GENERATORS: Sequence[tuple[Compression, Generator, bytearray]] = (
    (Compression.LZ4, _lz4_families, PLAIN),
    (Compression.LZ4, _lz4_large, LARGE_PLAIN),
    (Compression.GZIP, _gzip_families, PLAIN),
    (Compression.GZIP, _gzip_large, LARGE_PLAIN),
    (Compression.ZSTD, _zstd_families, PLAIN),
    (Compression.ZSTD, _zstd_large, LARGE_PLAIN),
    (Compression.SNAPPY, _snappy_families, PLAIN),
    (Compression.SNAPPY, _snappy_large, LARGE_PLAIN),
)
FAMILIES: Mapping[str, Family] = {
    f"{codec.name.lower()}: {name}": Family(f"{codec.name.lower()}: {name}", codec, like, frames)
    for codec, generator, like in _GENERATORS
    for name, frames in generator()
}
READ, REFUSED = ".", "x"
REFUSALS = {ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}
VERDICTS_FILE = Path(__file__).with_name("frame_verdicts.json")
VERDICTS: Mapping[str, str] = json.loads(VERDICTS_FILE.read_text())
"""By family: a character for each frame."""

REFUSED_HERE = {("zstd: several frames", 6), ("zstd: skippable", 28)} | {
    ("gzip: flags", flags) for flags in range(0x20, 0x100)
}
"""Frames that only Apache Kafka reads: behind all records the cut beginning of another frame; gzip's reserved flags,
which readers have to refuse (RFC 1952)."""
