"""Check of the way from this machine to the nodes that run, for `doctor`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

from anabranch.addresses import host_port
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.doctor_machine import Finding
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo
from anabranch.s3stream.errors import StorageError

CONNECT_S: Final = 5.0
ADVICE: Final = (
    "let this machine reach it: see cluster.internal_host, cluster.internal_port and cluster.internal_advertised_host "
    "of that node, and firewalls. Without it, transactions and moves of partitions wait"
)


async def check_links(settings: Settings) -> AsyncIterator[Finding]:
    """Connect to the internal port of each node that lives, as far as the catalog knows."""
    try:
        async with AsyncExitStack() as stack:
            catalog = Catalog(settings.catalog_url, read_only=True)
            stack.push_async_callback(catalog.close)
            nodes = [] if await catalog.is_blank() else await catalog.list_nodes()
    except (StorageError, OSError):
        return  # the catalog's own check says why
    now_ms = time.time_ns() // 1_000_000
    for node in nodes:
        if node.lease_until_ms > now_ms:
            yield await _check(node)


async def _check(node: NodeInfo) -> Finding:
    check, address = f"way to node {node.node_id}", host_port(node.internal_host, node.internal_port)
    if not node.internal_port:
        return Finding(
            check, "failed", "it takes no connections from other nodes", "it runs an earlier version: upgrade it"
        )
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(node.internal_host, node.internal_port)
    except TimeoutError:
        return Finding(check, "failed", f"{address} does not answer within {CONNECT_S:g} s", ADVICE)
    except OSError as error:
        return Finding(check, "failed", f"{address}: {error.strerror or error}", ADVICE)
    writer.close()
    return Finding(check, "ok", f"{address} can be reached")
