"""Batches of a partition as a share, and its rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.protocol.batch import parse_batch
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.object.format import IndexEntry, encode_block
from anabranch.tables.parts import answer
from anabranch.tables.ranges import AbortedTransaction, PartitionRange
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Asked, Finding, Question, Registry, Share, ShareReport
from anabranch.tables.share import make_share

STREAM = 7
RAW = Asked("raw")
CLOSED = "http://127.0.0.1:9/"
"""A registry that does not answer."""


def write_blocks(file: Path, batches: Sequence[bytes], *, batches_a_block: int = 3) -> list[IndexEntry]:
    """Write batches as the blocks of an object."""
    entries: list[IndexEntry] = []
    with file.open("wb") as out:
        out.write(b"before")  # blocks need not begin with the file
        for at in range(0, len(batches), batches_a_block):
            some = [stream_batch(each) for each in batches[at : at + batches_a_block]]
            block = encode_block(some, out.tell())
            entries.append(block.entry)
            for part in block.parts:
                out.write(part)
    return entries


def stream_batch(batch: bytes) -> StreamBatch:
    """Return a batch as a stream has it."""
    head = parse_batch(batch)
    end = head.base_offset + head.last_offset_delta + 1
    return StreamBatch(STREAM, head.base_offset, end, head.record_count, head.max_timestamp, batch)


def question(value: Asked, key: Asked = RAW) -> Finding:
    """Return what a new table's shares are made with."""
    return answer(Question(value, key), registries_of(value, key))


def registries_of(*asked: Any) -> dict[Registry, SchemaRegistry]:
    """Return clients of the registries."""
    return {each.registry: SchemaRegistry(each.registry.url) for each in asked if each.registry is not None}


def share_of(
    folder: Path,
    batches: Sequence[bytes],
    finding: Finding,
    *,
    end_offset: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    start_offset: int = 0,
) -> Share:
    """Return a share of all batches, or of those up to an offset."""
    blocks = write_blocks(folder / "blocks", batches)
    end = blocks[-1].end_offset if blocks and end_offset is None else end_offset or 0
    wanted = PartitionRange("t", 3, start_offset, end, tuple(aborted))
    return Share(
        str(folder / "blocks"),
        [each for each in blocks if each.start_offset < end],
        wanted,
        finding.schema,
        finding.value,
        finding.key,
        str(folder / "rows.parquet"),
    )


def made(share: Share) -> tuple[ShareReport, list[dict[str, Any]]]:
    """Make a share, and return its report and rows."""
    report = make_share(share, registries_of(share.value, share.key))
    rows = read_rows(share)
    assert report.rows == len(rows)
    assert report.errors == sum(row["_kafka"]["error"] is not None for row in rows)
    return report, rows


def read_rows(share: Share) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    table = pq.read_table(share.target)
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def file_schema(share: Share) -> pa.Schema:
    """Return the schema of a file, with the ids of its fields."""
    return pq.read_schema(share.target)
