"""Files of a node can be read by its own user only, whatever the umask, and a node that finds them open says so."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client


@pytest.fixture
def umask_of_nothing() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def serve_and_store(folder: Path, **wanted: object) -> None:
    """Run a node that has a record in an object at the end."""
    async with running_node(folder, **wanted) as node, raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"v")])
        await node.serving.catalog.back_up(folder / "backup", now_ms=0, overwrite=False, on_progress=lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("umask_of_nothing")
@pytest.mark.parametrize("together", [True, False])
async def test_files_are_private(tmp_path: Path, *, together: bool) -> None:
    elsewhere = {
        "catalog_url": f"sqlite:///{tmp_path}/other/catalog.db",
        "objects_path": tmp_path / "other" / "objects",
        "wal_path": tmp_path / "other" / "wal",
    }
    (tmp_path / "other").mkdir()
    with capture_logs() as logs:
        await serve_and_store(tmp_path, **({} if together else elsewhere))
    assert mode(tmp_path / "data") == 0o700
    files = files_in(tmp_path)
    assert {"backup", "LOCK", "catalog.db", "wal"} < {path.name for path in files}
    assert len(files) > 4, "no object was stored"
    assert {path.relative_to(tmp_path): mode(path) for path in files if mode(path) & 0o077} == {}
    assert not [line for line in logs if "advice" in line]


@pytest.mark.usefixtures("umask_of_nothing")
async def test_a_start_says_what_is_open(tmp_path: Path) -> None:
    elsewhere = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db?timeout=5"}
    (tmp_path / "data").mkdir()
    (tmp_path / "catalog.db").touch()
    with capture_logs() as logs:
        await serve_and_store(tmp_path, **elsewhere)
    found = {line["path"]: line["advice"] for line in logs if "advice" in line}
    assert found == {str(tmp_path / name): f"chmod o-rwx {tmp_path / name}" for name in ("data", "catalog.db")}
