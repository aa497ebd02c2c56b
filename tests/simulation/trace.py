"""The trace of a run, and what is patched in the modules of a node while the run lasts."""

import hashlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import structlog

import anabranch.broker.app.tables as tables_module
import anabranch.broker.cluster.membership.node_log as node_log_module
import anabranch.broker.kafka.partitions.record_work
import anabranch.broker.kafka.topics.replicas as replicas_module
import anabranch.broker.kafka.topics.tails as tails_module
import anabranch.broker.node.net.server as server_module
import anabranch.s3stream.catalog.database
import anabranch.tables.upkeep.columns as columns_module
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.tables.upkeep import abandoned as abandoned_module
from anabranch.tables.upkeep import commit as commit_module
from anabranch.tables.upkeep import committer as committer_module
from anabranch.tables.upkeep import plan as plan_module
from tests.simulation.columns import SimColumns
from tests.simulation.loop import PROCESS, InlineExecutor, SimLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

SMALLER: Mapping[tuple[ModuleType, str], object] = {
    (plan_module, "JOIN_FILES_MIN"): 3,
    (plan_module, "FILES_MAX"): 6,
    (committer_module, "FILES_MAX"): 6,
    (committer_module, "SHARE_BYTES_MAX"): 16 << 10,
    (committer_module, "COMMIT_BYTES_MAX"): 64 << 10,
    (committer_module, "EXPIRY_PAUSE_MS"): 5_000,
    (commit_module, "SCRATCH_BYTES_MAX"): 16 << 10,
    (abandoned_module, "LOOK_MS"): 5_000,
    (replicas_module, "RETURNED_S"): 6.0,
}
"""Values of names while a run lasts: so little data, and so short a time, would not meet others."""
TAILS: Mapping[str, Sequence[float]] = {
    "ANSWER_BYTES_MAX": (3_000, 16_000, 64_000),
    "WINDOWS_BYTES_MAX": (16_000, 64_000, 1_000_000),
    "PAUSE_S": (0.005, 0.05, 0.3),
}
"""Values that the seed chooses from: some answers have a part of what there is, and readers fall behind windows."""

UNTRACED = {"seconds", "event", "level", "timestamp", "recovered_bytes_per_s", "native"}


class Trace:
    """Record of a run, in lines that a person can read."""

    def __init__(self, loop: SimLoop, folder: Path) -> None:
        self._loop = loop
        self._folder = str(folder)
        self._process = f"process {os.getpid()} on {socket.gethostname()}"
        self.lines: list[str] = []
        self._digest = hashlib.sha256()

    def add(self, who: str, event: str, fields: Mapping[str, object]) -> None:
        rest = " ".join(f"{name}={value}" for name, value in fields.items())
        line = f"{self._loop.time():10.4f}  {who:<10} {event}{'  ' if rest else ''}{rest}"
        line = line.replace(self._folder, "DATA").replace(self._process, "a process")
        self.lines.append(line)
        self._digest.update(line.encode())

    def digest(self) -> str:
        """Hash of all lines: two runs of a seed have the same."""
        return self._digest.hexdigest()[:16]

    def log(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        """A processor of structlog: the nodes' own log is part of the trace."""
        process = PROCESS.get()
        fields = {name: value for name, value in event.items() if name not in UNTRACED and name != "exc_info"}
        if level != "debug":
            self.add("" if process is None else process.name, f"{level}: {event['event']}", fields)
        raise structlog.DropEvent


def _number(connection: Connection) -> int:
    return connection.number


@contextmanager
def patched(world: "World") -> Iterator[None]:
    """Send the nodes' logs to the trace, and answer questions about sockets that do not exist."""
    vars(node_log_module)["wal_settings"] = lambda settings: replace(
        wal_settings(settings), window_bytes=world.window_bytes
    )
    found = vars(server_module)["find_closed_peers"]
    vars(server_module)["find_closed_peers"] = world.network.closed_peers
    Connection.__hash__ = _number  # type: ignore[assignment,method-assign]  # as of tasks
    threads = {
        module: module.ThreadPoolExecutor
        for module in (
            anabranch.s3stream.catalog.database,
            anabranch.broker.kafka.partitions.record_work,
            columns_module,
        )
    }
    for module in threads:
        module.ThreadPoolExecutor = InlineExecutor  # type: ignore[attr-defined]
    choose = world.random("tails").choice
    values = {
        **SMALLER,
        **{(tails_module, name): choose(choices) for name, choices in TAILS.items()},
        (tables_module, "ColumnProcess"): partial(SimColumns, world.registry),
    }
    replaced = {(module, name): vars(module)[name] for module, name in values}
    for (module, name), value in values.items():
        vars(module)[name] = value
    structlog.configure(
        processors=[world.trace.log],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
        vars(node_log_module)["wal_settings"] = wal_settings
        vars(server_module)["find_closed_peers"] = found
        for (module, name), value in replaced.items():
            vars(module)[name] = value
        Connection.__hash__ = object.__hash__  # type: ignore[method-assign]
        for module, executor in threads.items():
            module.ThreadPoolExecutor = executor  # type: ignore[attr-defined]
