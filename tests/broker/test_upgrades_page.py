"""The page about upgrades names the versions that this code has."""

import re
from pathlib import Path

import anabranch.s3stream.append.wal_record
import anabranch.s3stream.catalog.backup
import anabranch.s3stream.maintain.manifest
import anabranch.s3stream.object.format
import anabranch.wal.format
import anabranch.wal.object.format
from anabranch.broker.kafka.partitions.snapshot import SNAPSHOT_VERSION
from anabranch.s3stream.catalog.schema import MIGRATIONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "upgrades.md"
TABLES = ROOT / "tables" / "FORMAT.md"


def test_the_page_names_the_versions_of_all_formats() -> None:
    table = PAGE.read_text().partition("## Formats of this version")[2].partition("##")[0]
    assert dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|", table, re.MULTILINE)) == {
        "schema of the catalog": str(MIGRATIONS[-1][0]),
        "backup of the catalog": str(anabranch.s3stream.catalog.backup.VERSION),
        "manifest": str(anabranch.s3stream.maintain.manifest.VERSION),
        "object": str(anabranch.s3stream.object.format.FORMAT_VERSION),
        "files of tables": re.findall(r"This is version (\d+)\.", TABLES.read_text())[0],
        "log on a device": str(anabranch.wal.format.VERSION),
        "log in objects": str(anabranch.wal.object.format.VERSION),
        "record in the log": str(anabranch.s3stream.append.wal_record.RECORD_VERSION),
        "state of a partition": str(SNAPSHOT_VERSION),
    }
