"""Checks of what nodes hold in memory and keep in catalog and store, when all faults are over."""

import asyncio
import re
import sqlite3
from contextlib import closing
from typing import Any, cast

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import parse_table_key
from anabranch.s3stream.maintain.findings import Finding, FindingKind
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import ObjectState, parse_object_key
from anabranch.tables.verify import verify_tables
from anabranch.wal.log import DeltaWal
from tests.simulation.history import Violation
from tests.simulation.loop import Process
from tests.simulation.node import PREPARE_TTL_MS, STALL_MS, STORE, SimNode
from tests.simulation.plan import Plan
from tests.simulation.world import World

SETTLES_S = 60.0
"""Virtual time, besides the delays of deletions, after which every object that is not committed is deleted."""
UNSETTLED = (
    "SELECT 'object', object_id, deadline_ms FROM objects"
    f" WHERE state != {ObjectState.COMMITTED:d} AND deadline_ms < :end"
    " UNION ALL SELECT 'file of a table', file_id, deadline_ms FROM table_files"
    f" WHERE state != {ObjectState.COMMITTED:d} AND deadline_ms < :end"
    " UNION ALL SELECT 'snapshot', version, committed_ms FROM table_snapshots s WHERE committed_ms < :end"
    " AND EXISTS (SELECT * FROM table_snapshots n WHERE n.table_id = s.table_id AND n.version > s.version)"
)
"""Rows that leave the catalog before `end`. A clock that was wrong for a while may have set times days away."""
REST_CHECKS = 60
LEFT = re.compile(r"objects of a late upload may be left in the store.* objects=\[([\d, ]*)\]")
OVER = r"upload starts over with new objects  reason=object {} .*  killed  "
"""A writer of an object, by its id, that may have been killed before it removed it."""
TASKS_MAX = 40
"""More than a node without clients has: about 17."""
LOOK_S = 0.5
STALLED_S = 2 * STALL_MS / 1000
"""Time without an acknowledgement after which a log takes nothing more."""


async def watch_logs(world: World) -> None:
    """Check, while faults happen, that a log which acknowledges nothing takes nothing, or it would store it all later.

    The time for which a process is paused does not count.
    """
    stuck_s: dict[Process, float] = {}
    """Time for which each process's log has acknowledged nothing although something waits."""
    durable: dict[Process, int] = {}
    ends: dict[Process, dict[Stream, int]] = {}
    """Ends of the streams when the log was known to have stalled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for sim_node in world.nodes:
            node, process = sim_node.node, sim_node.process
            if node is None or process is None or process.paused:
                continue
            wal = cast("DeltaWal", node.wal)  # or one in objects, which has the same methods
            queued, before = wal._queued_bytes(), durable.get(process)
            durable[process] = wal._end_offset() - queued
            if not queued or durable[process] != before:
                stuck_s[process] = 0.0
                ends.pop(process, None)
                continue
            stuck_s[process] += LOOK_S
            if stuck_s[process] < STALLED_S:
                continue
            streams = [each.stream for topic in node.serving.topics for each in topic.partitions if each is not None]
            known = ends.setdefault(process, {each: each.next_offset for each in streams})
            world.count("log stuck")
            for stream in streams:
                if stream.next_offset > known.get(stream, stream.next_offset):
                    raise Violation(
                        f"{sim_node.host}: {stream.label} took records although the log had acknowledged nothing for "
                        f"{stuck_s[process]} s"
                    )


async def _check_left(world: World, sim_node: SimNode) -> None:
    """Check that a node without clients comes to rest: nothing is held for requests, and few tasks run."""
    node, process = await sim_node.serving(), sim_node.process
    world.network.reset(sim_node.host, 1.0)
    assert process is not None
    tasks: list[str] = []
    found = 0, 0, 0
    for _ in range(REST_CHECKS):
        await asyncio.sleep(1)
        tasks = [getattr(task.get_coro(), "__qualname__", "") for task in process.tasks if not task.done()]
        found = len(node.ports.clients.connections), node.ports.clients.bytes_held, max(0, len(tasks) - TASKS_MAX)
        if not any(found):
            return
    raise Violation(
        f"without clients {sim_node.host} has {found[0]} connections, {found[1]} bytes of requests, "
        f"{len(tasks)} tasks: " + ", ".join(sorted(tasks))
    )


async def _settled(world: World, plan: Plan) -> None:
    """Wait until nothing is left to be deleted, as it must be some time after the last request of a client."""
    longest_ms = PREPARE_TTL_MS + plan.delete_delay_ms
    end = {"end": world.now_ms() + longest_ms}
    await asyncio.sleep(SETTLES_S)
    left: list[tuple[Any, ...]] = []
    with closing(sqlite3.connect(world.folder / "catalog.db")) as connection:
        for _ in range(longest_ms // 1000):
            await asyncio.sleep(1)
            left = connection.execute(UNSETTLED, end).fetchall()
            if not left:
                return
    if "clock" not in plan.faults:
        raise Violation(f"not all that is not needed is deleted: {left[:5]}")


async def check_storage(world: World, plan: Plan) -> None:
    """Stop the nodes, and compare catalog and store."""
    for node in world.nodes:
        await node.serving()
    while world.store.late:
        await asyncio.sleep(10)
    if plan.settles:
        await _settled(world, plan)
    for node in world.nodes:
        await _check_left(world, node)
    for node in world.nodes:
        await node.stopped()
    if world.errors or world.store.early:
        raise Violation([*world.errors, *world.store.early][0])
    catalog = Catalog(f"sqlite:///{world.folder}/catalog.db")
    await catalog.open(cluster="anabranch")
    try:
        stores = {STORE: world.store.objects}
        report = await verify(catalog=catalog, stores=stores, cluster="anabranch", deep=True)
        await verify_tables(catalog=catalog, stores=stores, cluster="anabranch", report=report, folder=world.folder)
        world.count("rows of tables verified", report.table_rows)
    finally:
        await catalog.close()
    findings = [each for each in report.findings if not _is_excused(world, plan, each)]
    if findings:
        raise Violation(f"storage: {findings[0]}")


def _is_excused(world: World, plan: Plan, finding: Finding) -> bool:
    """Return whether an object landed after the catalog had forgotten it: by a wrong clock that may be at once.

    A rebuild leaves uploads in the store that it has no use for.
    Its writer removes it, unless the store fails then, which the writer's log says, or the writer is killed first. A
    file of a table stays (`s3stream/catalog/TABLES.md`).
    """
    if plan.goes_back and finding.kind is FindingKind.UNACCOUNTED:
        return True
    key = finding.where.removeprefix(f"{world.store.objects.name}:")
    if "clock" not in plan.faults or finding.kind is not FindingKind.UNACCOUNTED:
        return False
    parsed = parse_object_key(key)
    if parsed is None:
        return parse_table_key(key) is not None
    left = (LEFT.search(line) for line in world.trace.lines)
    return (
        key in world.store.landed_late
        or any(found is not None and str(parsed[1]) in found[1].split(", ") for found in left)
        or re.search(OVER.format(parsed[1]), "\n".join(world.trace.lines), re.DOTALL) is not None
    )
