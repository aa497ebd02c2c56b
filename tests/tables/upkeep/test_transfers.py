"""Files of tables on their way from the store."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import TableFile
from anabranch.s3stream.errors import CorruptObject, StoreError
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.tables.upkeep import transfers
from anabranch.tables.upkeep.transfers import TableFiles


class Store:
    """A store that is away after so many reads."""

    name = "local"

    def __init__(self, reads: int) -> None:
        self.reads = reads

    async def get(self, key: str, start: int, end: int) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise StoreError(f"{key}: the store is away")
        return bytes(end - start)


class File:
    """A committed file of three parts, with another checksum than its bytes have."""

    store, file_key, size_bytes, crc32c = "local", "table/1", 12, 1


@pytest.mark.parametrize(("reads", "error"), [(0, StoreError), (2, StoreError), (3, CorruptObject)])
async def test_a_file_that_is_not_read_in_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(transfers, "PART_BYTES", 4)
    files = TableFiles(cast("TableCatalog", None), {"local": cast("ObjectStore", Store(reads))}, None)
    file: Any = File()
    with pytest.raises(error):
        await files.fetch(cast("TableFile", file), tmp_path / "file")
    assert not await asyncio.to_thread(os.listdir, tmp_path)
