"""The scan over hand-made and hand-damaged rings: it never crashes and never returns a wrong record."""

from dataclasses import replace
from random import Random

import pytest

from anabranch.wal.block import WalBlock, aligned_buffer
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, LogGap, Shutdown, encode_skip_into, record_salt
from anabranch.wal.interface import WalCorrupt
from anabranch.wal.recovery import BlockSpan, Scan
from tests.wal.test_format import HEADER

RING_PAGES = 32
RING_BYTES = RING_PAGES * PAGE_BYTES


class Image:
    """A ring in memory, filled by blocks as the log would."""

    def __init__(self, *, start: int = 0, window_pages: int = 4) -> None:
        self.header = replace(
            HEADER,
            capacity_bytes=RING_POSITION + RING_BYTES,
            head_offset=start,
            durable_offset=start,
            window_bytes=window_pages * PAGE_BYTES,
            shutdown=Shutdown.RUNNING,
            gaps=(),
        )
        self.ring = bytearray(RING_BYTES)
        self.next = start
        self.records: list[tuple[int, bytes]] = []

    def block(self, bodies: list[bytes], *, durable: int = 0, at: int | None = None) -> WalBlock:
        block = WalBlock(self.next, aligned_buffer(RING_BYTES), RING_BYTES, record_salt(self.header.log_id), 0.0)
        for body in bodies:
            self.records.append((block.add([body], len(body)), body))
        block.seal(durable)
        self.put(block.offset, block.buffer[: block.length])
        self.next = block.end
        return block

    def put(self, offset: int, content: memoryview) -> None:
        at = 0
        for position, length in self.header.segments(offset, len(content)):
            start = position - RING_POSITION
            self.ring[start : start + length] = content[at : at + length]
            at += length

    def scan(self, chunk_bytes: int = RING_BYTES, header: Header | None = None) -> tuple[list[tuple[int, bytes]], Scan]:
        header = header or self.header
        scan = Scan(header, "image")
        found: list[tuple[int, bytes]] = []
        offset = header.head_offset
        known = b""
        while scan.end is None:
            more = b""
            for position, length in header.segments(offset, min(chunk_bytes, scan.limit - offset)):
                more += self.ring[position - RING_POSITION : position - RING_POSITION + length]
            base = offset - len(known)
            data = known + more
            offset += len(more)
            if scan.at > offset:
                known = b""
                continue
            found += [(record.offset, bytes(record.body)) for record in scan.feed(memoryview(data), base)]
            known = data[scan.at - base :] if scan.at < offset else b""
        return found, scan


@pytest.mark.parametrize("chunk_pages", [1, 2, 3, RING_PAGES])
@pytest.mark.parametrize("start", [0, 7 * RING_BYTES + 30 * PAGE_BYTES])
def test_a_chain_across_the_rings_end(start: int, chunk_pages: int) -> None:
    image = Image(start=start)
    first = image.block([b"a" * 10, b"b" * 9000, b""])
    second = image.block([b"c" * 4040])
    found, scan = image.scan(chunk_pages * PAGE_BYTES)
    assert found == image.records
    assert scan.end is not None
    assert scan.end.blocks == (
        BlockSpan(first.offset, first.last_offset, first.end),
        BlockSpan(second.offset, second.last_offset, second.end),
    )
    assert scan.end.end_offset == second.end
    assert scan.end.next_offset == second.end + image.header.window_bytes
    assert scan.end.needs_skip
    assert scan.end.records == 4


def test_trimmed_records_are_passed_over() -> None:
    image = Image()
    image.block([b"a", b"b", b"c"])
    found, scan = image.scan(header=replace(image.header, trim_offset=image.records[1][0]))
    assert found == image.records[2:]
    assert scan.end is not None
    assert scan.end.records == 3


def test_an_earlier_lap_is_not_taken_for_data() -> None:
    image = Image(start=0)
    while image.next < RING_BYTES:
        image.block([b"old" * 1000])
    old_end = image.next
    image.records.clear()
    image.header = replace(image.header, head_offset=old_end, durable_offset=old_end)
    image.block([b"new"])
    found, _ = image.scan()
    assert found == image.records


def test_an_earlier_format_is_not_taken_for_data() -> None:
    image = Image()
    image.block([b"of a log formatted before"])
    found, _ = image.scan(header=replace(image.header, log_id=8))
    assert found == []


def test_what_lies_behind_a_hole_is_counted_and_dropped() -> None:
    image = Image()
    image.block([b"kept"])
    lost = image.block([b"lost" * 2000])
    image.block([b"behind", b"too"])
    image.put(lost.offset, memoryview(bytes(lost.length)))
    found, scan = image.scan()
    assert found == image.records[:1]
    assert scan.end is not None
    assert (scan.end.dropped_records, scan.end.dropped_bytes) == (2, 9)
    assert scan.end.reason == "no record: zeros"
    assert scan.end.next_offset == lost.offset + image.header.window_bytes


def test_a_torn_record_names_both_checksums() -> None:
    image = Image()
    torn = image.block([b"whole", b"t" * 5000])
    image.put(PAGE_BYTES, memoryview(bytes(PAGE_BYTES)))
    found, scan = image.scan()
    assert found == image.records[:1]
    assert scan.end is not None
    assert scan.end.reason.startswith("record of 5000 bytes with body CRC 0x")
    assert scan.end.blocks == (BlockSpan(0, 0, torn.last_offset),)


@pytest.mark.parametrize("where", ["padding", "header", "window", "graceful"])
def test_damage_to_durable_bytes_is_an_error(where: str) -> None:
    image = Image(window_pages=2)
    damaged = image.block([b"x" * 100])
    header = image.header
    if where == "padding":
        image.block([b"y"], durable=damaged.end)
    elif where == "header":
        header = replace(header, durable_offset=damaged.end)
    elif where == "window":
        image.block([b"y"])
        image.block([b"z"])
        image.block([b"!"])
    else:
        header = replace(header, durable_offset=damaged.end, shutdown=Shutdown.GRACEFUL)
    image.ring[50] ^= 1
    with pytest.raises(WalCorrupt, match=r"image: damaged at offset 0: found .*body CRC .*expected .* durable"):
        image.scan(header=header)


def test_a_skip_leads_over_a_gap() -> None:
    image = Image()
    block = image.block([b"before"])
    image.records.pop()
    image.records.append((0, b"before"))
    gap_end = block.end + 6 * PAGE_BYTES
    page = aligned_buffer(PAGE_BYTES)
    encode_skip_into(page, block.end, block.end, gap_end, record_salt(image.header.log_id))
    image.put(block.end, page)
    image.next = gap_end
    image.block([b"after"])
    found, scan = image.scan(PAGE_BYTES)
    assert found == image.records
    assert scan.end is not None
    assert [span.start for span in scan.end.blocks] == [0, gap_end]


def test_a_skip_from_elsewhere_is_not_followed() -> None:
    image = Image()
    block = image.block([b"before"])
    page = aligned_buffer(PAGE_BYTES)
    encode_skip_into(page, block.end, block.end - 1, block.end + PAGE_BYTES, record_salt(image.header.log_id))
    image.put(block.end, page)
    found, scan = image.scan()
    assert found == image.records
    assert scan.end is not None
    assert scan.end.end_offset == block.end


def test_a_full_ring_ends_at_the_head() -> None:
    image = Image(start=3 * PAGE_BYTES)
    for _ in range(RING_PAGES):
        image.block([b"page" * 1000])
    found, scan = image.scan(5 * PAGE_BYTES)
    assert found == image.records
    assert scan.end is not None
    assert scan.end.next_offset == image.header.head_offset + RING_BYTES
    assert not scan.end.needs_skip


def test_an_empty_log_that_was_stopped_cleanly() -> None:
    image = Image(start=8 * PAGE_BYTES)
    header = replace(image.header, shutdown=Shutdown.GRACEFUL)
    found, scan = image.scan(header=header)
    assert found == []
    assert scan.end is not None
    assert scan.end.next_offset == 8 * PAGE_BYTES


def damage(ring: bytearray, random: Random) -> None:
    """Flip, blank, copy, or move bytes around, as broken disks and careless hands do."""
    for _ in range(random.choice([1, 1, 2, 10])):
        at = random.randrange(len(ring))
        match random.randrange(5):
            case 0:
                ring[at] ^= 1 << random.randrange(8)
            case 1:
                at -= at % 512
                ring[at : at + 512] = bytes(512)
            case 2:
                source, target = random.randrange(RING_PAGES) * PAGE_BYTES, random.randrange(RING_PAGES) * PAGE_BYTES
                ring[target : target + PAGE_BYTES] = ring[source : source + PAGE_BYTES]
            case 3:
                length = min(random.randrange(200), len(ring) - at)
                ring[at : at + length] = random.randbytes(length)
            case _:
                at -= at % 4
                ring[at : at + 4] = random.choice([b"\xff\xff\xff\xff", b"ABWR", b"ABWP", b"ABWS", bytes(4)])


def test_damaged_images_give_a_prefix_or_an_error() -> None:
    corrupt = prefix = 0
    for seed in range(1500):
        random = Random(seed)
        image = Image(start=random.randrange(100) * PAGE_BYTES, window_pages=random.choice([1, 4, 16]))
        durable = image.next
        while image.next < image.header.head_offset + RING_BYTES - 12 * PAGE_BYTES:
            block = image.block(
                [random.randbytes(random.choice([0, 10, 300, 5000])) for _ in range(random.randrange(1, 4))],
                durable=durable,
            )
            if random.random() < 0.7:
                durable = block.end
        damage(image.ring, random)
        try:
            found, _ = image.scan(random.choice([1, 3, RING_PAGES]) * PAGE_BYTES)
        except WalCorrupt:
            corrupt += 1
            continue
        assert found == image.records[: len(found)], f"seed {seed}"
        prefix += 1
    assert corrupt > 100
    assert prefix > 100


@pytest.mark.parametrize("chunk_pages", [1, RING_PAGES])
def test_a_gap_of_the_header_is_passed_over_whatever_lies_in_it(chunk_pages: int) -> None:
    image = Image()
    image.block([b"before"])
    void = image.block([b"of a former owner"])
    image.records.pop()
    image.next = void.offset + 6 * PAGE_BYTES
    image.block([b"after"])
    header = replace(image.header, gaps=(LogGap(void.offset, void.offset + 6 * PAGE_BYTES),))
    found, scan = image.scan(chunk_pages * PAGE_BYTES, header)
    assert found == image.records
    assert scan.end is not None
    assert [span.start for span in scan.end.blocks] == [0, void.offset + 6 * PAGE_BYTES]


def test_a_gap_may_begin_and_end_inside_pages() -> None:
    image = Image()
    image.block([b"a" * 6000, b"b" * 6000, b"c" * 6000, b"d" * 100])
    (first, _), (second, _), (third, _), (fourth, _) = image.records
    end = image.block([b"next"]).end
    for start, stop, kept, starts in (
        (first, second, [1, 2, 3, 4], [PAGE_BYTES, image.records[4][0]]),
        (second, third, [0, 2, 3, 4], [0, third - third % PAGE_BYTES, image.records[4][0]]),
        (third, fourth, [0, 1, 3, 4], [0, fourth - fourth % PAGE_BYTES, image.records[4][0]]),
        (fourth, fourth + 124, [0, 1, 2, 4], [0, image.records[4][0]]),
    ):
        header = replace(image.header, gaps=(LogGap(start, stop),))
        found, scan = image.scan(header=header)
        assert found == [image.records[number] for number in kept]
        assert scan.end is not None
        assert [span.start for span in scan.end.blocks] == starts
        assert scan.end.end_offset == end
        for span in scan.end.blocks[1:]:  # the head may later be at each of them
            gaps = tuple(LogGap(max(gap.start, span.start), gap.end) for gap in header.gaps if gap.end > span.start)
            later, _ = image.scan(header=replace(header, head_offset=span.start, durable_offset=end, gaps=gaps))
            assert later == [record for record in found if record[0] >= span.start]


def test_records_of_a_later_lap_show_that_a_header_was_lost() -> None:
    image = Image(start=0)
    while image.next < 2 * RING_BYTES:
        image.block([b"page" * 1000])
    with pytest.raises(WalCorrupt, match=r"older than the log.* head is at offset 4096, and in the place of"):
        image.scan(header=replace(image.header, head_offset=PAGE_BYTES, durable_offset=PAGE_BYTES))
