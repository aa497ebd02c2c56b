"""Settings of the nodes that one `serve` runs, each in a process of its own (`node.processes`).

Node number i, counted from 0, has the id `node.node_id + i`. Its ports are i after those of the settings, except for
the listeners: all nodes have those of the settings, for bootstrap, and its own are 1 + i after them. The first node has
its files where a single one has them, so that a folder can be started with any number. The others have their own, in
`data_dir/node-ID`. Catalog and objects are shared.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Final

from anabranch.broker.node.settings.area import AUTO_COUNT, MIB, PORT_MAX
from anabranch.broker.node.settings.checks import UsedAddress, check_addresses, used_addresses
from anabranch.broker.node.settings.client_areas import ListenerSettings
from anabranch.broker.node.settings.control_groups import group_folders, read_text
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.memory import available_memory
from anabranch.broker.node.settings.model import PROCESSES_MAX, Settings

MEMORY_BYTES_MIN: Final = 512 * MIB
"""Memory of each process that `auto` counts with."""
_PORTS: Final = re.compile(r":(\d+)\s*(?=,|$)")
"""Ports in a list of listeners."""


def process_count(settings: Settings, root: Path = Path("/")) -> int:
    """Return the number of processes. `auto` is one for each core that this process may use, if there is memory."""
    if settings.node.processes != AUTO_COUNT:
        return settings.node.processes
    memory_bytes, _ = available_memory(root)
    return max(1, min(available_cores(root), memory_bytes // MEMORY_BYTES_MIN, PROCESSES_MAX))


def available_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: those that it may run on, or the quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in group_folders(root, "cpu"):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if not period:  # version 1
            quota, period = (read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal():
            cores = min(cores, ceil(int(quota) / int(period)))
    return max(1, cores)


def settings_of_each(settings: Settings, count: int) -> Sequence[Settings]:
    """Return the settings of all nodes of one start. Raises SettingsError."""
    nodes = [_settings_of(settings, index, count) for index in range(count)]
    check_addresses([*_bootstrap_addresses(settings), *(each for node in nodes for each in _addresses(node))])
    return nodes


def _settings_of(settings: Settings, index: int, count: int) -> Settings:
    node_id, cluster, wal = settings.node.node_id + index, settings.cluster, settings.wal
    own = settings.with_node_id(node_id) if index else settings
    return replace(
        own,
        node=replace(own.node, processes=count),
        listener=_own_listeners(settings.listener, 1 + index),
        cluster=replace(
            cluster, internal_port=None if cluster.internal_port is None else _moved(cluster.internal_port, index)
        ),
        wal=replace(wal, path=_own_log(wal.path, node_id)) if index and wal.path is not None else wal,
        admin=replace(settings.admin, port=_moved(settings.admin.port, index)),
    )


def _own_listeners(area: ListenerSettings, by: int) -> ListenerSettings:
    def moved(text: str) -> str:
        return _PORTS.sub(lambda found: f":{_moved(int(found[1]), by)}", text)

    return replace(
        area,
        port=_moved(area.port, by),
        advertised_port=_moved(area.advertised_port, by),
        listeners=moved(area.listeners),
        advertised_listeners=moved(area.advertised_listeners),
    )


def _moved(port: int, by: int) -> int:
    """Return the port that is `by` after one; 0, any free port, stays. Raises SettingsError."""
    if port + by > PORT_MAX:
        raise SettingsError(f"setting node.processes: port {port + by}, {by} after {port}, does not exist")
    return port and port + by


def _own_log(path: Path, node_id: int) -> Path:
    """Return the path of the log of a node that is not the first. Raises SettingsError."""
    own = path.with_name(f"{path.name}-{node_id}")
    if _is_device(path) and not _is_device(own):
        raise SettingsError(
            f"setting wal.path: {path} is a block device, which holds the log of one process: name a file, or give "
            f"node {node_id} a device or partition of its own by a link {own}"
        )
    return own


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISBLK(path.stat().st_mode)
    except OSError:
        return False


def _bootstrap_addresses(settings: Settings) -> Sequence[UsedAddress]:
    return used_addresses(settings)[: len(settings.listeners)]


def _addresses(node: Settings) -> Iterator[UsedAddress]:
    for each in used_addresses(node):
        yield UsedAddress(f"{each.name} of node {node.node.node_id}", each.host, each.port)
