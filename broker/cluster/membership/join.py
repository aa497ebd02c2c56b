"""Joining the cluster at a start: the checks before anything is changed, and the registration of the node.

Catalog, object stores and log must belong together and to this node. Nothing is created or written before that is
known; a node's id is taken only from a process that has ended.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog

from anabranch.addresses import is_loopback
from anabranch.broker.cluster.membership.lease import Claimant, wait_until_free
from anabranch.broker.cluster.membership.log_identity import LogFacts, why_blank_catalog_refused, why_refused
from anabranch.broker.cluster.membership.own_recovery import wait_until_recovered
from anabranch.broker.cluster.membership.start_log import StartLog
from anabranch.broker.cluster.membership.store_checks import (
    check_stores_hold_objects,
    check_stores_known,
    check_stores_shared,
    find_object,
)
from anabranch.broker.node.settings.listeners import ALL_ADDRESSES
from anabranch.broker.node.settings.model import Settings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeHolder, NodeInfo, NodeListener
from anabranch.s3stream.errors import CatalogError, NodeFenced
from anabranch.s3stream.maintain.claim import claim_store
from anabranch.s3stream.maintain.manifest_store import check_catalog_is_newest, newest_manifest_key
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import WalRefused
from anabranch.wal.owner import Owner

NO_ADDRESS: Final = ("", 0)
"""Address of a node that takes no connections from others."""
RECOVERY_WAIT_S: Final = 30.0
"""Longest wait for another node that recovers this node's log."""
_log = structlog.get_logger("node")


async def open_catalog_and_stores(
    catalog: Catalog,
    node_log: StartLog,
    settings: Settings,
    stack: AsyncExitStack,
    *,
    new_catalog_id: Callable[[], bytes],
    make_stores: Callable[[], Mapping[str, ObjectStore]],
) -> Mapping[str, ObjectStore]:
    """Open the catalog and all object stores, and claim the stores; return them by name. `stack` closes the stores.

    Raises StorageError when they do not belong together. An empty catalog next to a log or objects is refused, and left
    as it is. Of two clusters that begin in one store at once, one is refused before it has written anything else there.
    """
    cluster = settings.node.cluster
    blank = await catalog.is_blank()
    if blank and (found := node_log.why_not_blank_catalog()):
        raise CatalogError(why_blank_catalog_refused(catalog.where, found))
    if not blank:
        await catalog.open(cluster=cluster, new_id=new_catalog_id())
    stores = make_stores()
    if not blank:
        check_stores_known(await catalog.count_committed(), stores)
    for store in stores.values():
        stack.push_async_callback(store.close)
        await store.open()
    if not blank:
        await wait_until_recovered(catalog, settings.node.node_id, limit_s=RECOVERY_WAIT_S)
    await node_log.attach(stores)
    default = stores[settings.objects.store]
    if blank:
        if found := node_log.why_not_blank_catalog():
            raise CatalogError(why_blank_catalog_refused(catalog.where, found))
        key = await find_object(stores, cluster) or await newest_manifest_key(default, cluster)
        # Another node of a new cluster may have been faster: it has registered before it wrote an object.
        if key is not None and await catalog.is_blank():
            raise CatalogError(
                why_blank_catalog_refused(catalog.where, f"there are objects of cluster {cluster!r} ({key})")
            )
        await catalog.open(cluster=cluster, new_id=new_catalog_id())
    else:
        await check_catalog_is_newest(catalog, default, cluster)
        await check_stores_hold_objects(catalog, stores, cluster)
    await check_stores_shared(catalog, stores, default=default, cluster=cluster, node_id=settings.node.node_id)
    for store in stores.values():
        await claim_store(store, cluster, catalog.identity())
    return stores


def internal_address(settings: Settings, bound: socket.socket) -> tuple[str, int]:
    """Return the host and port that other nodes connect to, for the bound internal port."""
    host = settings.internal_advertised_host
    return socket.gethostname() if host in ALL_ADDRESSES else host, int(bound.getsockname()[1])


def announced_listeners(settings: Settings, ports: Sequence[int]) -> Sequence[NodeListener]:
    """Return the addresses of each listener to announce to clients, for the ports that the listeners are bound to."""
    return [
        NodeListener(each.name, each.advertised_host, each.advertised_port or port)
        for each, port in zip(settings.listeners, ports, strict=True)
    ]


def log_owner(settings: Settings, catalog: Catalog, node_epoch: int) -> Owner:
    """Owner of the node's log in an epoch."""
    return Owner(settings.node.node_id, node_epoch, settings.node.cluster, catalog.identity())


def claimant_of(settings: Settings, lock_id: str) -> Claimant:
    """This process, which holds the lock of the data directory, as a claimant of the node's id."""
    return Claimant(lock_id, socket.gethostname(), settings.one_machine, settings.catalog.lease_ms)


def why_unreachable(
    others: Sequence[NodeInfo], host_name: str, listeners: Sequence[NodeListener], internal: tuple[str, int]
) -> str:
    """Return why nodes of several machines could not connect to each other, with what to change; empty if they may.

    `others` are registered nodes that live, and `host_name` is the machine of the node that starts.
    """
    for other in others:
        if other.holder.host_name in {"", host_name}:
            continue
        announced = [each.host for each in listeners]
        if (host := _local_host(announced, internal[0])) is not None:
            return (
                f"node {other.node_id} runs on another machine, {other.holder.host_name}, and would look for this node "
                f"there, at {host}: set --host to 0.0.0.0, or to an address of this machine, and --advertised-host to "
                "the name or address by which the others reach it"
            )
        announced = [each.host for each in other.listeners] or [other.host]
        if (host := _local_host(announced, other.internal_host)) is not None:
            return (
                f"node {other.node_id} on {other.holder.host_name} tells all to look for it at {host}, where each "
                "machine finds itself: start it anew with --host and --advertised-host"
            )
    return ""


def _local_host(announced: Sequence[str], internal: str) -> str | None:
    """Return the address by which a machine reaches itself only, if a node announces no other to clients or nodes."""
    if is_loopback(internal):
        return internal
    return announced[0] if all(map(is_loopback, announced)) else None


async def join(
    catalog: Catalog,
    stores: Mapping[str, ObjectStore],
    node_log: StartLog,
    settings: Settings,
    lock_id: str,
    *,
    listeners: Sequence[NodeListener],
    internal: tuple[str, int],
    now_ms: Callable[[], int],
) -> NodeInfo:
    """Register the node with the addresses that clients and other nodes connect to, once no other process has its id.

    A node that starts just after its death may be taken over by another one at any point of this: it begins again then.
    Raises NodeInUse or NodeFenced when another process has the id, and WalError when the node must not continue with
    the log that was found.
    """
    node_id, claimant = settings.node.node_id, claimant_of(settings, lock_id)
    if not settings.one_machine:
        # Clocks of two machines are compared, which does no harm: this finds a slip of settings early, or not.
        nodes = [each for each in await catalog.list_nodes() if each.lease_until_ms > now_ms()]
        others = [each for each in nodes if each.node_id != node_id]
        if reason := why_unreachable(others, claimant.host_name, listeners, internal):
            raise CatalogError(reason)
    while True:
        try:
            known = await catalog.get_node(node_id)
            await node_log.check_claim(log_owner(settings, catalog, (0 if known is None else known.epoch) + 1), catalog)
            seen = await wait_until_free(catalog, node_id, claimant)
            await _check_identity(node_log, catalog, node_id, seen)
            return await register(
                catalog,
                node_id,
                claimant,
                seen,
                listeners=listeners,
                lease_ms=settings.catalog.lease_ms,
                now_ms=now_ms(),
                rack=settings.listener.rack,
                internal=internal,
            )
        except NodeFenced:
            found = await catalog.get_node(node_id)
            if found is None or found.lease_until_ms > 0:
                raise
        _log.info("this node was taken over while it was starting", recovered_in_epoch=found.epoch)
        await wait_until_recovered(catalog, node_id, limit_s=RECOVERY_WAIT_S)
        await node_log.attach(stores)


async def _check_identity(node_log: StartLog, catalog: Catalog, node_id: int, seen: NodeInfo | None) -> None:
    """Raise WalRefused when the node must not use the log that was found. `seen` is its row in the catalog."""
    reason = why_refused(
        LogFacts(
            path=node_log.location,
            found=node_log.found,
            problem=node_log.problem,
            wals=await catalog.list_wals(node_id),
            open_streams=await catalog.count_open_streams(node_id),
            host_name="" if seen is None else seen.holder.host_name,
        )
    )
    if reason is not None:
        raise WalRefused(reason)


async def register(
    catalog: Catalog,
    node_id: int,
    claimant: Claimant,
    seen: NodeInfo | None,
    *,
    listeners: Sequence[NodeListener],
    lease_ms: int,
    now_ms: int,
    rack: str = "",
    internal: tuple[str, int] = NO_ADDRESS,
) -> NodeInfo:
    """Register this process as the node, in the epoch after `seen`, which fences the process that had the id before.

    Raises NodeFenced when another process registered it meanwhile.
    """
    return await catalog.register_node(
        node_id,
        listeners[0].host,
        listeners[0].port,
        now_ms=now_ms,
        lease_ms=lease_ms,
        holder=NodeHolder(claimant.host_name, os.getpid(), claimant.lock_id),
        after_epoch=0 if seen is None else seen.epoch,
        rack=rack,
        internal=internal,
        listeners=listeners,
    )
