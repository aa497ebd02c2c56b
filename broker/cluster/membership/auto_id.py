"""The id of a node whose settings name none (`node.node_id = auto`): its earlier one, a free one, or the next new one.

An id is only chosen here. The start that follows takes it, and makes sure that no other process has it: when it is
refused because one does, another id is chosen.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Final

from anabranch.broker.cluster.membership.environment import Environment, LogFiles
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo
from anabranch.wal.format import wal_id_of
from anabranch.wal.interface import WalError, WalRefused
from anabranch.wal.owner import read_header

FIRST_ID: Final = 1


async def choose_node(settings: Settings, environment: Environment, taken: Collection[int]) -> Settings:
    """Return the settings of a node with an id that is not among `taken`. Raises StorageError, WalRefused.

    Its files are in a folder of its id, so that several nodes may have one data directory.
    """
    catalog = environment.make_catalog(settings.catalog_url)
    nodes: Sequence[NodeInfo] = ()
    logs: Sequence[WalInfo] = ()
    try:
        if not await catalog.is_blank():
            await catalog.open(cluster=settings.node.cluster)
            nodes, logs = await catalog.list_nodes(), await catalog.list_all_wals()
    finally:
        await catalog.close()
    here = settings.node_folders()
    live = {log.node_id for log in logs if log.is_live}
    fixed = await _log_in(environment.logs, settings, may_be_live=bool(live.difference(here)))
    if any(log.wal_id == fixed and log.is_live for log in logs):
        raise WalRefused(
            f"{settings.wal_path}: this log of a node with an id of its own may hold records that are in no object: "
            "stop that node cleanly first, or give node.node_id its number instead of auto"
        )
    folders = {
        node_id: await _log_in(environment.logs, settings.with_node_id(node_id), may_be_live=node_id in live)
        for node_id in here
    }
    return settings.with_node_id(choose_id(nodes, logs, folders, taken))


def choose_id(
    nodes: Sequence[NodeInfo], logs: Sequence[WalInfo], folders: Mapping[int, str], taken: Collection[int]
) -> int:
    """Return the id for a node that starts.

    `nodes` are all registered ones, `logs` theirs, `folders` the ids of the logs in this data directory by node, empty
    where there is none. The order: a node whose log is here, and may hold records; a node that was here, and has left;
    the lowest one that has left, with nothing in its logs that is in no object; the lowest id that nobody has.
    """
    live = {log.wal_id for log in logs if log.is_live}
    needed = {log.node_id for log in logs if log.is_live}
    left = {node.node_id for node in nodes if node.lease_until_ms <= 0} - needed
    registered = {node.node_id for node in nodes}
    for candidates in (
        [node_id for node_id, wal_id in folders.items() if wal_id in live],
        folders.keys() & left,
        left,
    ):
        if free := set(candidates).difference(taken):
            return min(free)
    return next(node_id for node_id in count(FIRST_ID) if node_id not in registered and node_id not in taken)


async def _log_in(files: LogFiles, settings: Settings, *, may_be_live: bool) -> str:
    """Return the id of the log in a node's folder; empty if there is none.

    Raises WalRefused for one that cannot be read, if it may be live: hold records that are in no object.
    """
    path = settings.wal_path
    if not await asyncio.to_thread(files.exists, path):
        return ""
    try:
        device = await asyncio.to_thread(files.open, path, wal_settings(settings), create=False, exclusive=False)
        try:
            header = await read_header(device)
        finally:
            await device.close()
    except WalError as error:
        if may_be_live:
            raise WalRefused(
                f"{error}. It may hold records that are in no object, so node.node_id = auto chooses no other log: "
                f"repair it (anabranch wal repair), give it up (anabranch wal give-up), or move {path.parent} away"
            ) from error
        return ""
    return "" if header is None else wal_id_of(header.log_id)
