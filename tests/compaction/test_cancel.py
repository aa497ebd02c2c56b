"""A run that is cancelled ends, whatever its store does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.model import ObjectKind
from anabranch.s3stream.object import writer
from anabranch.s3stream.store.rules import PART_BYTES_MIN
from tests.compaction.sets.test_run import SMALL
from tests.support.catalog_node import UploadingNode, uploading_node
from tests.support.memory_store import MemoryStore, let_through

SETTINGS = replace(SMALL, memory_bytes=256 << 20, part_bytes=PART_BYTES_MIN)


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        streams = await made.start(2)
        for _ in range(12):
            batches = [made.batch(stream, 1024 * 1024) for stream in streams]
            await made.upload((ObjectKind.SSO, batches))
        yield made


@pytest.mark.parametrize("away", ["refuses", "is silent"])
async def test_a_cancelled_run_ends_although_the_store_is_away(
    some: UploadingNode, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    monkeypatch.setattr(writer, "ABORT_TIMEOUT_S", 0.05)
    assert isinstance(some.store, MemoryStore)
    sending = asyncio.Event()

    async def hook(call: str, _key: str) -> None:
        if call == "part":
            sending.set()
            await asyncio.Event().wait()
        if call == "abort":
            if away == "refuses":
                raise StoreError("the store is away")
            await asyncio.Event().wait()

    before = await some.contents()
    some.store.hook = hook
    run = asyncio.create_task(some.service(SETTINGS).run_once())
    await sending.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    some.store.hook = let_through
    assert await some.contents() == before
