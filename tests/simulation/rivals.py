"""Two clusters of one name that begin in one store at the same moment, by an operator's mistake."""

import asyncio

from tests.simulation.history import Violation
from tests.simulation.node import SimNode
from tests.simulation.world import World

LOOK_S = 0.05
REFUSED = ("belongs to another cluster of the name", "there are objects of cluster", "holds a log")
"""Parts of the reasons why the slower one does not start: it finds the claim, or already what the faster one wrote."""


def _is_refused(node: SimNode) -> bool:
    return any(reason in each for each in node.refusals for reason in REFUSED)


async def begin_beside_rival(world: World) -> None:
    """Start the rival's node, and return when its store has one owner, which is the world's cluster.

    If the rival was faster, the operator stops it, and empties the store.
    """
    rival = world.rival
    task = asyncio.get_running_loop().create_task(rival.supervise())
    owner = ""
    while not owner:
        await asyncio.sleep(LOOK_S)
        serving = [node for node in world.nodes if node.node is not None]
        if serving and rival.node is not None:
            raise Violation("two clusters of one name serve from one store")
        if rival.node is not None and any(map(_is_refused, world.nodes)):
            owner = rival.host
        elif serving and _is_refused(rival):
            owner = serving[0].host
    world.note("two clusters began at once", store_is_of=owner)
    world.count("rival")
    await rival.stopped()
    task.cancel()
    await asyncio.wait([task])
    if owner == rival.host:
        world.store.objects.objects.clear()
