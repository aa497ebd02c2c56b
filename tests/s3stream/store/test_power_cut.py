"""An object that was reported as written survives a power cut, with the directories that lead to it."""

from pathlib import Path

import pytest

from s3stream.background import BackgroundIo
from s3stream.store.local import LocalStore
from s3stream.store.rules import PART_BYTES_MIN
from tests.support.power import PowerCut

PART = bytes(range(256)) * (PART_BYTES_MIN // 256)
KEY = "ab/c/1"


async def new_store(tmp_path: Path) -> LocalStore:
    store = LocalStore("local", tmp_path / "deep" / "objects")
    await store.open()
    return store


def survivor(power: PowerCut) -> bytes:
    return power.survivors().get(f"deep/objects/{KEY}", b"missing")


async def test_a_put_survives(tmp_path: Path) -> None:
    with PowerCut(tmp_path) as power:
        store = await new_store(tmp_path)
        await store.put(KEY, [b"hello ", b"world"], writer_id="w")
        assert survivor(power).startswith(b"hello world")
        await store.close()


async def test_a_paced_put_survives(tmp_path: Path) -> None:
    with PowerCut(tmp_path) as power:
        store = await new_store(tmp_path)
        await store.put(KEY, [PART], writer_id="w", pace=BackgroundIo())
        assert survivor(power).startswith(PART)
        await store.close()


@pytest.mark.parametrize("order", [(1, 2, 3), (2, 1, 3)], ids=["in place", "assembled"])
async def test_a_multipart_object_survives(tmp_path: Path, order: tuple[int, ...]) -> None:
    with PowerCut(tmp_path) as power:
        store = await new_store(tmp_path)
        upload = await store.start_multipart(KEY, writer_id="w")
        receipts = [await upload.put_part(number, [PART[number:], PART[:number]]) for number in order]
        await upload.complete(sorted(receipts))
        assert survivor(power).startswith(b"".join(PART[number:] + PART[:number] for number in (1, 2, 3)))
        await store.close()


async def test_a_copied_part_survives(tmp_path: Path) -> None:
    with PowerCut(tmp_path) as power:
        store = await new_store(tmp_path)
        await store.put("source", [PART], writer_id="w")
        upload = await store.start_multipart(KEY, writer_id="w")
        receipts = [await upload.copy_part(1, "source", 0, len(PART)), await upload.put_part(2, [b"end"])]
        await upload.complete(receipts)
        assert survivor(power).startswith(PART + b"end")
        await store.close()
