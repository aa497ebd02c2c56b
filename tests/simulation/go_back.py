"""A database that goes back: an earlier copy takes the catalog's place while the nodes run, and it is rebuilt then.

What is right: every node whose uploads are forgotten ends, no start succeeds, and nobody takes such a node over, until
somebody has rebuilt the catalog. Then all that was acknowledged is there, and no offset has been given twice.
"""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from random import Random

from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.cluster.membership.rebuild import CatalogRebuild, ClockAndIds
from anabranch.s3stream.catalog.rows import UPLOADS
from anabranch.s3stream.object.marks import MarkPlace
from tests.simulation.faults import move
from tests.simulation.history import Violation
from tests.simulation.loop import PROCESS, Process
from tests.simulation.node import STORE, SimNode
from tests.simulation.world import World

SOON_S = 20.0
"""Longest time between the last fault and the copy."""
LOSES_S = 60.0
"""Longest wait for uploads that the copy does not have."""
NOTICED_S = 120.0
"""Time within which every node has ended, and was refused."""
WENT_BACK = ("gone back to an earlier state", "older than the object store")
KEEP_MS = 24 * 3_600_000


async def go_back(world: World) -> None:
    """Put the catalog back to an earlier state, see that no node goes on with it, and rebuild it."""
    random = world.random("go back")
    moving = asyncio.get_running_loop().create_task(_keep_moving(world))
    try:
        is_lost = await _lose(world, random)
    finally:
        moving.cancel()
        await asyncio.wait([moving])
    if not is_lost:
        return
    for node in world.nodes:
        node.kill(restart=False)
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        (world.folder / name).unlink(missing_ok=True)
    await _rebuild(world, world.nodes[0])
    world.note("the catalog is rebuilt")
    for node in world.nodes:
        node.start()


async def _keep_moving(world: World) -> None:
    """Move partitions up to the last moment: no manifest names the newest owners then."""
    random = world.random("moves before it goes back")
    while len(world.nodes) > 1:
        await asyncio.sleep(random.uniform(0.1, 1.0))
        await move(world, random)


async def _lose(world: World, random: Random) -> bool:
    """Put the catalog back, and see that no node goes on; returns False if nothing was uploaded that could be lost."""
    await asyncio.sleep(random.uniform(0, SOON_S))
    path = world.folder / "catalog.db"
    with closing(sqlite3.connect(":memory:")) as copy:
        with closing(sqlite3.connect(path)) as live:
            live.backup(copy)
        before = _uploads(path)
        for _ in range(int(LOSES_S)):
            await asyncio.sleep(random.uniform(0.5, 1.5))
            if await _marked(world, before):
                break
        else:
            return False
        await asyncio.sleep(random.uniform(0, 5))
        world.note("the catalog goes back")
        world.count("catalog went back")
        marked = await _marked(world, before)
        with closing(sqlite3.connect(path)) as live:
            copy.backup(live)
    for node in world.nodes:
        if node.node_id in marked:
            await _refused(node)
    return True


def _uploads(path: Path) -> Mapping[int, int]:
    """Return the numbers of uploads that the catalog has committed, by node id."""
    with closing(sqlite3.connect(path)) as connection:
        found = dict(connection.execute("SELECT name, next FROM counters").fetchall())
    return {int(name.removeprefix(UPLOADS)): number for name, number in found.items() if name.startswith(UPLOADS)}


async def _marked(world: World, before: Mapping[int, int]) -> set[int]:
    """Return the nodes with uploads since `before` that have left their marks: no log may have the records."""
    with closing(sqlite3.connect(world.folder / "catalog.db")) as connection:
        ((catalog_id,),) = connection.execute("SELECT catalog_id FROM cluster").fetchall()
    place = MarkPlace(world.store.objects, world.nodes[0].settings.node.cluster, bytes.fromhex(catalog_id))
    uploads = (await place.read()).uploads
    return {node_id for node_id, number in uploads.items() if number > before.get(node_id, 0)}


async def _refused(node: SimNode) -> None:
    """Wait until the node has ended, and a start of it was refused for this reason."""
    for _ in range(int(NOTICED_S * 10)):
        if node.node is None and node.refusals and any(why in node.refusals[-1] for why in WENT_BACK):
            return
        await asyncio.sleep(0.1)
    raise Violation(f"{node.host} goes on with a catalog that has gone back (refusals {node.refusals[-1:]})")


async def _rebuild(world: World, node: SimNode) -> None:
    """Do what `anabranch catalog rebuild` does on a node's machine."""
    process = Process(f"{node.host}#rebuild", node.host)
    context = copy_context()
    context.run(PROCESS.set, process)
    await world.loop.create_task(_fill(world, node), context=context)
    world.loop.kill(process)


async def _fill(world: World, node: SimNode) -> None:
    settings, random = node.settings, world.random("rebuild")
    entropy = ClockAndIds(world.now_ms, lambda: random.randbytes(16), random)
    stores = {STORE: world.store.objects}
    async with NodeLog.opened(settings, any_content=True, files=node.logs) as log:
        work = CatalogRebuild(settings, stores, log, entropy, None)
        plan = await work.make_plan(None, lambda _done, _total: None)
        if plan.has_loss:
            raise Violation(f"a rebuild would lose records: {plan.gaps}, {plan.damaged}, {plan.replaced}")
        await work.execute(accept_loss=False, keep_ms=KEEP_MS, on_progress=lambda _report: None)
