"""The wait of a returning node whose log another node is recovering.

A start takes the recovery over by its registration: later commits of the recoverer are refused. On a device that both
have open, the recoverer may still write the header, after which the returned node no longer trusts its log. So a start
lets a living recoverer finish. It does not depend on that for correctness, and waits for a limited time.
"""

import asyncio
from typing import Final

import structlog

from anabranch.broker.node.peers.liveness import DEAD_AFTER_S
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, WalState

POLL_S: Final = 0.1

_log = structlog.get_logger("node")


async def wait_until_recovered(catalog: Catalog, node_id: int, *, limit_s: float) -> None:
    """Return when no living node recovers the log of this node, or after `limit_s`. Raises StorageError."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    seen: NodeInfo | None = None
    seen_s, logged = loop.time(), False
    while loop.time() < end:
        log = next((each for each in await catalog.list_wals(node_id) if each.state is WalState.FENCED), None)
        if log is None:
            return
        recoverer = await catalog.get_node(log.recoverer)
        if recoverer is None or recoverer.epoch != log.recoverer_epoch or recoverer.lease_until_ms <= 0:
            return
        if recoverer != seen:
            seen, seen_s = recoverer, loop.time()
        elif loop.time() - seen_s >= DEAD_AFTER_S:
            return
        if not logged:
            _log.info("waiting for the log: another node is recovering it", recoverer=log.recoverer)
            logged = True
        await asyncio.sleep(POLL_S)
