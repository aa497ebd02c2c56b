"""Files of tables between the store and this machine, in pieces that take turns with the node's other work."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from crc32c import crc32c

from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import TableFile
from anabranch.s3stream.errors import CorruptObject, StorageError
from anabranch.s3stream.store.interface import ObjectStore, PartReceipt

PART_BYTES: Final = 8 << 20
PUT_BYTES_MAX: Final = 16 << 20
"""Largest file that is sent in one call. It is in memory then, like a part."""


class TableFiles:
    """Reads and writes files of tables."""

    def __init__(self, tables: TableCatalog, stores: Mapping[str, ObjectStore], pace: Pace | None) -> None:
        self._tables = tables
        self._stores = stores
        self._pace = pace

    def store(self, name: str) -> ObjectStore:
        """Return the store of a table. Raises StorageError if it is not configured."""
        store = self._stores.get(name)
        if store is None:
            raise StorageError(f"the table is in the store {name!r}, which is not configured on this node")
        return store

    def uri(self, file: TableFile) -> str:
        """Return the address of a file."""
        return self.store(file.store).uri(file.file_key)

    async def send(self, path: Path, file: TableFile) -> None:
        """Write a prepared file to its store. It is durable when this returns. Raises StorageError, OSError."""
        store = self.store(file.store)
        if await asyncio.to_thread(lambda: path.stat().st_size) <= PUT_BYTES_MAX:
            data = await asyncio.to_thread(path.read_bytes)
            await store.put(file.file_key, [data], writer_id=file.writer_id, pace=self._pace)
            return
        upload = await store.start_multipart(file.file_key, writer_id=file.writer_id)
        try:
            await self._tables.note_multipart(file.file_id, upload.upload_id)
            receipts: list[PartReceipt] = []
            with path.open("rb") as source:
                while data := await asyncio.to_thread(source.read, PART_BYTES):
                    receipts.append(await upload.put_part(len(receipts) + 1, [data], pace=self._pace))
            await upload.complete(receipts)
        except StorageError:
            with suppress(StorageError):  # the collector knows the upload
                await upload.abort()
            raise

    async def delete(self, file: TableFile) -> None:
        """Delete what `send` has written under the file's key, if it did. Raises StorageError."""
        store = self.store(file.store)
        if await store.writer_id(file.file_key) == file.writer_id:
            for error in (await store.delete([file.file_key])).values():
                raise error

    async def fetch(self, file: TableFile, path: Path) -> None:
        """Copy a committed file to `path`, which appears when it is complete.

        Raises CorruptObject if it is not the file that was committed, StorageError, OSError.
        """
        store = self.store(file.store)
        part = path.with_name(f"{path.name}.part")
        found = 0
        try:
            with part.open("wb") as target:
                for start in range(0, file.size_bytes, PART_BYTES):
                    data = await store.get(file.file_key, start, min(start + PART_BYTES, file.size_bytes))
                    found = crc32c(data, found)
                    await asyncio.to_thread(target.write, data)
            if found != file.crc32c:
                where = f"{store.name}:{file.file_key}"
                raise CorruptObject(
                    f"file {where}: CRC32C: expected {file.crc32c:#010x}, found {found:#010x}",
                    expected=f"CRC32C {file.crc32c:#010x}",
                    found=f"{found:#010x}",
                )
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)  # nobody would: the next file has another name
