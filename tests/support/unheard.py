"""A node that does not hear of changes by itself."""

import asyncio

from anabranch.broker.cluster.node import Node


class _Unheard(asyncio.Event):
    """An event that never happens, also for a loop that has just dealt with the one before and waits for this one."""

    def set(self) -> None:
        pass


async def stop_hearing(node: Node) -> None:
    """Return when the node applies no change any more by itself, only when a request makes it catch up."""
    membership = node.serving.membership
    membership._woken = _Unheard()  # noqa: SLF001 - there is no other way
    await membership.catch_up()
