"""An object that was reported as written survives a power cut, with the directories that lead to it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from anabranch.s3stream.background import BackgroundIo
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.rules import PART_BYTES_MIN
from tests.support.power import PowerCut

PART = bytes(range(256)) * (PART_BYTES_MIN // 256)
KEY = "ab/c/1"


async def new_store(tmp_path: Path) -> LocalStore:
    store = LocalStore("local", tmp_path / "deep" / "objects")
    await store.open()
    return store


async def put(store: LocalStore) -> bytes:
    await store.put(KEY, [b"hello ", b"world"], writer_id="w")
    return b"hello world"


async def put_at_a_pace(store: LocalStore) -> bytes:
    await store.put(KEY, [PART], writer_id="w", pace=BackgroundIo(lambda: None))
    return PART


async def put_in_parts(store: LocalStore, order: tuple[int, ...] = (1, 2, 3)) -> bytes:
    upload = await store.start_multipart(KEY, writer_id="w")
    receipts = [await upload.put_part(number, [PART[number:], PART[:number]]) for number in order]
    await upload.complete(sorted(receipts))
    return b"".join(PART[number:] + PART[:number] for number in (1, 2, 3))


async def assemble(store: LocalStore) -> bytes:
    return await put_in_parts(store, (2, 1, 3))


async def copy(store: LocalStore) -> bytes:
    await store.put("source", [PART], writer_id="w")
    upload = await store.start_multipart(KEY, writer_id="w")
    receipts = [await upload.copy_part(1, "source", 0, len(PART)), await upload.put_part(2, [b"end"])]
    await upload.complete(receipts)
    return PART + b"end"


@pytest.mark.parametrize("write", [put, put_at_a_pace, put_in_parts, assemble, copy])
async def test_an_object_survives_and_is_never_visible_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[LocalStore], Awaitable[bytes]]
) -> None:
    durable: list[bool] = []
    link = Path.hardlink_to
    with PowerCut(tmp_path) as power:

        def publish(target: Path, temporary: Path) -> None:
            durable.append(power.is_durable(temporary))
            link(target, temporary)

        monkeypatch.setattr(Path, "hardlink_to", publish)
        store = await new_store(tmp_path)
        data = await write(store)
        survivor = power.survivors().get(f"deep/objects/{KEY}", b"missing")
        assert (survivor[: len(data)] == data, len(survivor) - len(data)) == (True, 128)
        await store.close()
    assert durable
    assert all(durable)
