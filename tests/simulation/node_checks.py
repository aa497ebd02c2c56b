"""Checks of what nodes hold in memory and keep in catalog and store, when all faults are over."""

import asyncio
import re

from s3stream.catalog.catalog import Catalog
from s3stream.maintain.verify import Finding, FindingKind, verify
from s3stream.model import parse_object_key
from tests.simulation.history import Violation
from tests.simulation.node import STORE, SimNode
from tests.simulation.plan import Plan
from tests.simulation.world import World

SETTLED_S = 560.0
"""Virtual time after which every object that is not committed is deleted."""
REST_CHECKS = 60
LEFT = re.compile(r"objects of a late upload may be left in the store.* objects=\[([\d, ]*)\]")
TASKS_MAX = 40
"""More than a node without clients has: about 17."""


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
        found = len(node.server.connections), node.server.bytes_held, max(0, len(tasks) - TASKS_MAX)
        if not any(found):
            return
    raise Violation(
        f"without clients {sim_node.host} has {found[0]} connections, {found[1]} bytes of requests, "
        f"{len(tasks)} tasks: " + ", ".join(sorted(tasks))
    )


async def check_storage(world: World, plan: Plan) -> None:
    """Stop the nodes, and compare catalog and store."""
    for node in world.nodes:
        await node.serving()
    while world.store.late:
        await asyncio.sleep(10)
    if plan.settles:
        await asyncio.sleep(SETTLED_S)
    for node in world.nodes:
        await _check_left(world, node)
    for node in world.nodes:
        await node.stopped()
    if world.errors or world.store.early:
        raise Violation([*world.errors, *world.store.early][0])
    catalog = Catalog(f"sqlite:///{world.folder}/catalog.db")
    await catalog.open(cluster="anabranch")
    try:
        report = await verify(catalog=catalog, stores={STORE: world.store.objects}, cluster="anabranch", deep=True)
    finally:
        await catalog.close()
    findings = [each for each in report.findings if not _is_excused(world, plan, each)]
    if findings:
        raise Violation(f"storage: {findings[0]}")


def _is_excused(world: World, plan: Plan, finding: Finding) -> bool:
    """Return whether an object landed after the catalog had forgotten it: by a wrong clock that may be at once.

    Its writer removes it, unless the store fails then, which the writer's log says.
    """
    key = finding.where.removeprefix(f"{world.store.objects.name}:")
    parsed = parse_object_key(key)
    if "clock" not in plan.faults or finding.kind is not FindingKind.UNACCOUNTED or parsed is None:
        return False
    left = (LEFT.search(line) for line in world.trace.lines)
    return key in world.store.landed_late or any(
        found is not None and str(parsed[1]) in found[1].split(", ") for found in left
    )
