"""Size of a table's metadata.json, and time to write it, by the number of partitions.

    python -m benchmarks.table_metadata

It has the snapshots of a day of commits each minute, with the ends of all partitions at nine digits, as a table has
them that stands still: each commit writes one more and lets one expire.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from anabranch.tables.iceberg import write_snapshot
from anabranch.tables.schema import encode_schema, evolve
from anabranch.tables.snapshots import OFFSETS, SnapshotRequest, Target

PARTITIONS: Final = (1, 100, 1_000, 3_500)
SNAPSHOTS: Final = 1_440
MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 1_780_000_000_000
FIRST_ID: Final = 1 << 62
LAST_ID: Final = FIRST_ID + SNAPSHOTS - 1
SCHEMA: Final = encode_schema(
    evolve(None, pa.struct([pa.field(f"c{at}", pa.string()) for at in range(10)]), None).schema
)


def commit(folder: Path, metadata: Path | None, version: int, summary: dict[str, str], kept: Sequence[int]) -> Path:
    """Write a version of a table without data, and return the path of its metadata."""
    target = folder / f"{version}.metadata.json"
    location = "s3://bucket/table/cluster/0123456789ab"
    write_snapshot(
        SnapshotRequest(
            table_id="0" * 32,
            location=location,
            schemas=[SCHEMA],
            properties={},
            version=version,
            now_ms=BEGIN_MS + version * MINUTE_MS,
            metadata=None if metadata is None else str(metadata),
            metadata_uri=None if metadata is None else f"{location}/metadata/{version - 1:016x}.metadata.json",
            snapshot_id=FIRST_ID + version,
            manifest_list=None if metadata is None else str(folder / "list"),
            manifests={},
            added=[],
            removed=[],
            summary=summary,
            kept=kept,
            metadata_target=str(target),
            manifest_target=Target(str(folder / "manifest"), f"{location}/metadata/1.avro"),
            manifest_list_target=Target(str(folder / "list"), f"{location}/metadata/{version:016x}.avro"),
        )
    )
    return target


def standing_still(metadata: Path) -> None:
    """Let a version of one snapshot have those of a day."""
    content: dict[str, Any] = json.loads(metadata.read_bytes())
    (snapshot,) = content["snapshots"]
    content["snapshots"] = [
        {**snapshot, "snapshot-id": FIRST_ID + at, "sequence-number": at, "timestamp-ms": BEGIN_MS + at * MINUTE_MS}
        for at in range(SNAPSHOTS)
    ]
    content["snapshot-log"] = [
        {"snapshot-id": FIRST_ID + at, "timestamp-ms": BEGIN_MS + at * MINUTE_MS} for at in range(SNAPSHOTS)
    ]
    content |= {"current-snapshot-id": LAST_ID, "last-sequence-number": SNAPSHOTS - 1}
    content["refs"]["main"]["snapshot-id"] = LAST_ID
    metadata.write_text(json.dumps(content))


def main() -> None:
    """Print a line for each number of partitions."""
    print(f"{'partitions':>10} {'bytes':>12} {'a snapshot':>10} {'ms':>8}")
    for partitions in PARTITIONS:
        ends = {str(idx): 100_000_000 + idx for idx in range(partitions)}
        summary = {OFFSETS: json.dumps(ends, separators=(",", ":"))}
        with TemporaryDirectory() as name:
            folder = Path(name)
            metadata = commit(folder, None, 1, summary, [])
            standing_still(metadata)
            began_s = 0.0
            for version in (SNAPSHOTS, SNAPSHOTS + 1):  # the second one reads what the first has written
                kept = [FIRST_ID + version - at for at in range(1, SNAPSHOTS)]
                began_s = time.perf_counter()
                metadata = commit(folder, metadata, version, summary, kept)
            size = metadata.stat().st_size
            taken_ms = (time.perf_counter() - began_s) * 1000
        print(f"{partitions:>10,} {size:>12,} {size / SNAPSHOTS:>10,.0f} {taken_ms:>8,.0f}")


if __name__ == "__main__":
    main()
