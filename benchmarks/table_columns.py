"""Rows of a table a CPU second: from the blocks of an object to a Parquet file, as the worker process makes them.

Records are in batches of 16 KiB, compressed with lz4, in blocks of 512 KiB. They are read, checked, decompressed,
decoded and written as Parquet with zstd. `raw` keeps values as bytes; `typed` reads JSON strictly by a schema. CPU is
all of the process, in one thread; figures are medians over the rounds. `JSON alone` is the decoding of values that are
in memory, by Arrow's parser and by Python's, with none or one of 1,000 values that is not JSON. Three kinds of records:
small ones of 174 B, the flights of the demonstration, and wide ones of 738 B.

    python -m benchmarks.table_columns [--quick] [--json FILE] [--profile FILE]
"""

import cProfile
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.object.format import IndexEntry, encode_block
from anabranch.tables import json_blocks
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.json_schema import json_schema_type
from anabranch.tables.parts import answer
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import RAW, Asked, Question, Share
from anabranch.tables.share import make_share
from benchmarks.support import Report, parser
from scripts.demo.flights import encode, read_flights

BATCH_BYTES = 16 << 10
BLOCK_BYTES = 512 << 10
FIRST_MS = 1_790_000_000_000
SMALL_BYTES = 174
WIDE_BYTES = 738
GOALS = {("small", "raw"): ">= 300000", ("small", "typed"): ">= 150000"}
KINDS = {int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"}, str: {"type": "string"}}


def small(dice: random.Random) -> Iterator[dict[str, Any]]:
    """Yield records of a shop."""
    for number in itertools.count():
        yield {
            "id": number,
            "user": f"u{dice.randrange(50_000):06}",
            "item": f"{dice.getrandbits(64):016x}",
            "price": dice.randrange(100_000) / 100,
            "count": dice.randrange(9),
            "ok": dice.random() < 0.9,
            "at": f"2026-11-{number % 28 + 1:02}T{number % 24:02}:{dice.randrange(60):02}:00.{number % 1000:03}Z",
            "note": "",
        }


def wide(dice: random.Random) -> Iterator[dict[str, Any]]:
    """Yield records with thirty fields."""
    for number in itertools.count():
        found: dict[str, Any] = {"id": number}
        for at in range(10):
            found[f"number_{at}"] = dice.randrange(1_000_000)
            found[f"measure_{at}"] = dice.randrange(10_000_000) / 1000
            found[f"word_{at}"] = f"w{dice.randrange(1000)}"
        yield found


def filled(document: dict[str, Any], size: int) -> bytes:
    """Return a record's JSON of a size, by a last field of text."""
    text = encode(document | {"note": ""})
    return encode(document | {"note": "n" * (size - len(text))})


def schema_of(document: dict[str, Any]) -> bytes:
    """Return the JSON Schema of records such as this one."""
    properties = {name: KINDS[type(value)] for name, value in document.items() if value is not None}
    for name in {"at", "time_hour"} & set(properties):
        properties[name] = {"type": "string", "format": "date-time"}
    return json.dumps({"type": "object", "properties": properties}).encode()


def write_blocks(file: Path, values: Sequence[bytes]) -> list[IndexEntry]:
    """Write values as the blocks of an object."""
    entries: list[IndexEntry] = []
    waiting: list[StreamBatch] = []
    offset = waiting_bytes = 0
    with file.open("wb") as out:

        def flush() -> None:
            block = encode_block(waiting, out.tell())
            entries.append(block.entry)
            out.write(b"".join(map(bytes, block.parts)))

        a_batch = max(1, BATCH_BYTES // len(values[0]))
        for at in range(0, len(values), a_batch):
            some = values[at : at + a_batch]
            records = [Record(b"k%05d" % (n % 9999), each, FIRST_MS + n) for n, each in enumerate(some, at)]
            batch = bytes(build_batch(records, base_offset=offset, compression=Compression.LZ4))
            waiting.append(StreamBatch(1, offset, offset + len(some), len(some), FIRST_MS, batch))
            waiting_bytes += len(batch)
            offset += len(some)
            if waiting_bytes >= BLOCK_BYTES:
                flush()
                waiting, waiting_bytes = [], 0
        if waiting:
            flush()
    return entries


def measure_json(report: Report, name: str, schema: bytes, values: Sequence[bytes], rounds: int) -> None:
    """Measure the decoding alone, in CPU seconds per million values."""
    kind = json_schema_type(schema.decode())
    some = values[:50_000]
    bad = [b"{" if at % 1_000 == 500 else each for at, each in enumerate(some)]
    for by, reads in (("Arrow", json_blocks.reads), ("Python", lambda _: False)):
        for rows, column in (("", pa.array(some, pa.binary())), (", one bad of 1,000", pa.array(bad, pa.binary()))):
            with patch.object(json_blocks, "reads", reads):
                seconds = []
                for _ in range(rounds):
                    begun = time.process_time()
                    JsonDecoder(kind, "UTC")(column)
                    seconds.append(time.process_time() - begun)
            report.add(f"{name}, JSON alone by {by}{rows}", median(seconds) / len(some) * 1e6, "CPU s/million")


def main() -> None:
    """Measure all kinds."""
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--profile", type=Path, metavar="FILE", help="write a profile of one more round of each")
    options = made.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    report = Report("Columns of tables: one thread")
    count, rounds = (100_000, 3) if options.quick else (400_000, 7)
    dice = random.Random(7)
    flights = [dict(each.document) for each in itertools.islice(read_flights(), count)]
    kinds: dict[str, tuple[dict[str, Any], list[bytes]]] = {}
    for name, documents, size in (("small", small(dice), SMALL_BYTES), ("wide", wide(dice), WIDE_BYTES)):
        some = list(itertools.islice(documents, count))
        kinds[name] = some[0], [filled(each, size) for each in some]
    whole = next(each for each in flights if None not in each.values())
    kinds["flights"] = whole, [encode(each) for each in flights]
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        for name, (document, values) in kinds.items():
            blocks = write_blocks(Path(folder, "blocks"), values)
            value_bytes = sum(map(len, values)) / len(values)
            for way, asked in (("raw", Asked("raw")), ("typed", Asked("json", schema_of(document)))):
                found = answer(Question(asked, Asked("raw")), {})
                target = str(Path(folder, "rows"))
                wanted = PartitionRange("t", 0, 0, len(values))
                share = Share(str(Path(folder, "blocks")), blocks, wanted, found.schema, found.value, RAW, target)
                done = make_share(share, {})  # warm
                seconds = []
                for _ in range(rounds):
                    begun = time.process_time()
                    make_share(share, {})
                    seconds.append(time.process_time() - begun)
                assert (done.rows, done.errors) == (len(values), 0), done
                rate = len(values) / median(seconds)
                report.add(f"{name}, {value_bytes:.0f} B, {way}", rate, "rows/CPU s", GOALS.get((name, way)))
                report.add(
                    f"{name}, {way}: Parquet over blocks", done.size_bytes / sum(b.size_bytes for b in blocks), ""
                )
                if options.profile is not None:
                    profile.runcall(make_share, share, {})
            measure_json(report, name, schema_of(document), values, rounds)
    if options.profile is not None:
        profile.dump_stats(options.profile)
    report.finish(options)


if __name__ == "__main__":
    main()
