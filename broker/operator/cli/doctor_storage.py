"""Checks of a node's storage, for `doctor`: the log's disk, the object stores, the catalog."""

import random
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.cli.doctor_machine import Finding
from anabranch.broker.operator.cli.measure import StoreProbe, measure, probe_file, write_repeatedly
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import WalError

FLUSHES: Final = 200
FLUSH_BYTES: Final = 4096
FLUSH_MS_SLOW: Final = 10.0
"""Median of a durable write above which every acknowledgement is slow."""
STORE_OBJECTS: Final = 10
STORE_BYTES: Final = 64 << 10
STORE_MS_SLOW: Final = 1_000.0
CATALOG_CALLS: Final = 20
CATALOG_MS_SLOW: Final = 50.0


async def check_disk(settings: Settings, name: str) -> AsyncIterator[Finding]:
    """Check the disk of the log, with writes into a file of this name beside it."""
    if settings.wal.kind == "object":
        return
    path = settings.wal_path.resolve()
    if path.is_block_device():
        yield Finding("log disk", "ok", f"{path}: a block device, which is not written to; see anabranch wal inspect")
        return
    folder = next(parent for parent in path.parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    needed = 0 if path.exists() else settings.wal.capacity_bytes
    if free < needed:
        yield Finding(
            "log space",
            "failed",
            f"{folder}: {size_text(free)} free, and the log takes {size_text(needed)}",
            "free space, set wal.path to another disk, or lower wal.capacity_bytes",
        )
        return
    yield Finding("log space", "ok", f"{folder}: {size_text(free)} free")
    try:
        async with probe_file(folder, wal_settings(settings), name) as device:
            description = device.description
            found = await write_repeatedly(device, FLUSH_BYTES, count=FLUSHES, in_flight=1)
    except (WalError, OSError) as error:
        yield Finding("log disk", "failed", str(error), "set wal.path to a disk that this user may write to")
        return
    if "O_DIRECT" not in description:
        yield Finding(
            "O_DIRECT", "warning", description, "set wal.path to a file system with O_DIRECT, such as ext4 or xfs"
        )
    else:
        yield Finding("O_DIRECT", "ok", description)
    median, slow = found.quantile(0.5), found.quantile(0.99)
    text = f"a durable write of 4 KiB takes {median:.2f} ms, p99 {slow:.2f} ms"
    if median > FLUSH_MS_SLOW:
        yield Finding("flush", "warning", text, "use a disk with less latency (local NVMe) for wal.path")
    else:
        yield Finding("flush", "ok", text)


async def check_stores(settings: Settings, run_id: str) -> AsyncIterator[Finding]:
    """Check each object store, with objects that are removed afterwards."""
    for name, store in make_stores(settings, random.Random()).items():  # noqa: S311 - spreads retries, hides nothing
        check = f"store {name}"
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(store.close)
                await store.open()
                yield await _check_store(check, store, run_id)
        except (StorageError, OSError) as error:
            yield Finding(check, "failed", str(error), "see the settings objects.* and stores.*, and the service's log")


async def _check_store(check: str, store: ObjectStore, run_id: str) -> Finding:
    probe = StoreProbe(store, run_id)
    try:
        puts = await measure(lambda number: probe.put(number, STORE_BYTES), count=STORE_OBJECTS, in_flight=1)
        gets = await measure(lambda number: probe.get(number, STORE_BYTES), count=STORE_OBJECTS, in_flight=1)
        is_conditional = await probe.refuses_other_writer(0)
    finally:
        left = await probe.remove()
    if not is_conditional:
        return Finding(
            check,
            "failed",
            "it replaces an object although the PUT says If-None-Match: *",
            "use a service with conditional writes: without them two nodes may overwrite each other's data",
        )
    if left is not None:
        return Finding(check, "failed", f"objects cannot be deleted: {left}", "allow s3:DeleteObject")
    text = f"conditional PUT works; 64 KiB: PUT {puts.quantile(0.5):.1f} ms, GET {gets.quantile(0.5):.1f} ms (median)"
    if puts.quantile(0.5) > STORE_MS_SLOW:
        return Finding(check, "warning", text, "use a store in the same region: uploads and cold reads wait for it")
    return Finding(check, "ok", text)


async def check_catalog(settings: Settings) -> AsyncIterator[Finding]:
    """Check that the catalog can be read, and how fast. It is not changed."""
    path = settings.node.data_dir / "catalog.db"
    if not settings.catalog.url and not path.exists():
        yield Finding(
            "catalog", "ok", f"none in {path} yet: the first start creates it (SQLite {sqlite3.sqlite_version})"
        )
        return
    try:
        async with AsyncExitStack() as stack:
            catalog = Catalog(settings.catalog_url, read_only=True)
            stack.push_async_callback(catalog.close)
            if await catalog.is_blank():
                yield Finding("catalog", "ok", f"{catalog.where}: reachable and empty")
                return
            await catalog.open(cluster=settings.node.cluster)
            found = await measure(lambda _: catalog.list_nodes(), count=CATALOG_CALLS, in_flight=1)
    except (StorageError, OSError) as error:
        yield Finding("catalog", "failed", str(error), "see the settings catalog.url and node.cluster")
        return
    text = f"{catalog.where}: a query takes {found.quantile(0.5):.1f} ms (median)"
    if found.quantile(0.5) > CATALOG_MS_SLOW:
        yield Finding(
            "catalog", "warning", text, "run PostgreSQL closer to the nodes: each commit and lease waits for it"
        )
    else:
        yield Finding("catalog", "ok", text)
