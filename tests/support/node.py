"""A node for tests: in this process, or in a separate process that can be killed.

    async with running_node(tmp_path, topic_num_partitions=3) as node:
        client = AIOKafkaProducer(bootstrap_servers=node.bootstrap)

    async with running_nodes(tmp_path, 3) as (first, second, third):      # a cluster

    with NodeProcess(tmp_path) as node:      # `anabranch serve`
        node.kill9()
        node.start()                         # the same data directory
        node.wait_uploaded()
        node.status()["topics"]

Settings are given by their outside names (`wal_capacity_bytes`, `port`): flags with underscores instead of dashes. By
default the node listens on free ports.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership import loop
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.logging.stacks import END as END_OF_STACKS
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.names import NAMED_AREAS, all_settings
from anabranch.broker.node.settings.sources import load
from benchmarks.lab.processes import free_port
from tests.support.forked import ForkedProcess, command_process
from tests.support.waiting import until, wait_until

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 90
"""Longer than the settings allow a stop to take: past that, the node exits by force and logs where it hung."""
STACKS_TIMEOUT_S = 5
ADMIN_TIMEOUT_S = 300
TEST_DEFAULTS: dict[str, object] = {
    "port": 0,
    "admin_port": 0,
    "wal_capacity_bytes": 8 << 20,
    "wal_allow_volatile": True,  # the test's folder may be on any file system
    "group_initial_rebalance_delay_ms": 0,
    "drain_timeout_ms": 2_000,
    "topic_retention_ms": -1,  # records of tests have fixed timestamps
    "cluster_balancer": False,  # tests place partitions themselves
    # Creating, opening and recovering the 50 of the defaults takes longer than most tests do.
    "group_offsets_partitions": 4,
    "transaction_state_partitions": 4,
    "share_state_partitions": 4,
}


def settings_for(tmp_path: Path, **wanted: object) -> Settings:
    """Settings of a small node with its files under `tmp_path`."""
    keys = _keys()
    values = {"data_dir": tmp_path / "data", **TEST_DEFAULTS, **wanted}
    return load({keys[name]: value for name, value in values.items()}, {})


@cache
def _keys() -> dict[str, str]:
    return {setting.outside_name: setting.key for setting in all_settings()} | {
        each.key: each.key for each in NAMED_AREAS
    }


@asynccontextmanager
async def running_node(tmp_path: Path, **wanted: object) -> AsyncIterator[Node]:
    """Run a node in this loop; `bootstrap` is its address. It stops cleanly, or as in a crash if the block raises."""
    async with run_node(settings_for(tmp_path, **wanted)) as node:
        yield node


@asynccontextmanager
async def running_nodes(folder: Path, count: int, catalog_url: str = "", **wanted: object) -> AsyncIterator[list[Node]]:
    """Run nodes 1, 2, ... of one cluster in this loop. Each knows that all live. By default on SQLite.

    `rack` may be a tuple, with a rack for each node.
    """
    shared = {
        "catalog_url": catalog_url or f"sqlite:///{folder}/catalog.db",
        "objects_path": folder / "objects",
        **wanted,
    }
    racks = wanted.get("rack")
    own = [{"rack": rack} for rack in racks] if isinstance(racks, tuple) else [{}] * count
    async with AsyncExitStack() as stack:
        with _quick_acquaintance():
            nodes = [
                await stack.enter_async_context(
                    running_node(folder / str(node_id), node_id=node_id, **{**shared, **each})
                )
                for node_id, each in enumerate(own, 1)
            ]
            await until(
                lambda: all(len(node.serving.members.living()) == count for node in nodes), timeout_s=60, pause_s=0.01
            )
        yield nodes


@contextmanager
def _quick_acquaintance() -> Iterator[None]:
    """Let nodes that start find out soon which others live: each is waited for until it was seen to beat twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "POLL_ALONE_S", 0.02)
        patch.setattr(loop, "POLL_S", 0.02)
        patch.setattr(loop, "BEAT_S", 0.05)
        yield


def is_test_timeout(error: BaseException | None) -> bool:
    """True if the test was ended by a timeout; the stacks of its nodes may then explain why."""
    return isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout")


class NodeProcess:
    """`anabranch serve` as a process. The port stays the same over restarts, so that clients find it again."""

    alive: Final["set[NodeProcess]"] = set()
    """Running nodes, to be printed when a test hangs."""

    serving_event = "serving"
    """Line of the log with which clients can connect."""

    def __init__(self, tmp_path: Path, **wanted: object) -> None:
        self.settings: dict[str, object] = {
            "data_dir": tmp_path / "data",
            **TEST_DEFAULTS,
            "port": free_port(),
            **wanted,
        }
        self._process: ForkedProcess | subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._said = threading.Event()
        """Set when the node serves or has ended."""
        self._serves = False
        self.lines: list[str] = []
        """Lines of its standard error, over all restarts."""
        self.new_interpreter = False
        """Need of the next start of one, to inherit something of this thread; see `tests.support.forked`."""
        self.environment: dict[str, str] = {}
        """Further variables of its next start."""
        self.host = "127.0.0.1"
        self.port = 0
        self.admin = ""

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def data_dir(self) -> Path:
        """Its data directory."""
        return Path(str(self.settings["data_dir"]))

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if its process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> bool:
        """True if its process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            if error is not None:
                sys.stdout.write(self.explain())
            self.kill9()

    def start(self) -> None:
        """Start and wait until it serves. Raises RuntimeError with its output if it does not."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start without waiting."""
        assert self._process is None, "running"
        flags = {setting.outside_name: setting.flag for setting in all_settings()} | {"config": "--config"}
        command = ["serve", "--log-format", "json"]
        for name, value in self.settings.items():
            command += [flags[name], str(value)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        environment |= self.environment
        self._said.clear()
        self._serves = False
        self._process = command_process(command, environment, new_interpreter=self.new_interpreter)
        self.alive.add(self)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when clients can connect."""
        assert self._process is not None, "not started"
        if not self._said.wait(timeout_s) or not self._serves:
            code = self._process.poll()
            explanation = self.explain()
            self.kill9()
            raise RuntimeError(f"the node does not serve (exit code {code}): {explanation}")

    def refusal(self) -> str:
        """Start it and return the one line with which it refuses to start. Fails the test if it serves."""
        before = len(self.lines)
        self.spawn()
        self._said.wait(START_TIMEOUT_S)
        if self._serves:
            self.kill9()
            pytest.fail("the node serves")
        code = self.wait()
        said = [line for line in self.lines[before:] if not line.startswith("{")]
        assert code == 1, self.lines
        assert len(said) == 1, self.lines
        return said[0]

    def kill9(self) -> None:
        """Kill it as a power cut would."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGKILL)
        self._ended()

    def terminate(self) -> int:
        """Stop it cleanly; returns its exit code."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        return self._ended()

    def wait(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        return self._ended()

    def stacks(self) -> str:
        """Stacks of its threads and tasks; of its threads only, when its loop is stuck."""
        assert self._process is not None, "not started"
        before = len(self.lines)
        self._process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + STACKS_TIMEOUT_S
        while END_OF_STACKS not in self.lines[before:] and time.monotonic() < until:
            time.sleep(0.05)
        dumped = self.lines[before:]
        if END_OF_STACKS in dumped:
            dumped = dumped[: dumped.index(END_OF_STACKS) + 1]
        return "\n".join(dumped)

    def explain(self) -> str:
        """Its last lines of output, and its stacks."""
        said = "\n".join(self.lines[-20:])
        stacks = self.stacks() if self.running else "gone"
        return f"the node at port {self.port} wrote\n{said}\nand its stacks are\n{stacks}"

    def events(self, event: str) -> list[dict[str, Any]]:
        """Log lines with that event."""
        found, quoted = [], json.dumps(event)
        for line in list(self.lines):
            if line.startswith("{") and quoted in line:
                record = json.loads(line)
                if record.get("event") == event:
                    found.append(record)
        return found

    def ask(self, path: str, method: str = "GET") -> bytes:
        """Send a request to the admin port and return the response body."""
        request = urllib.request.Request(f"http://{self.admin}{path}", method=method)
        with urllib.request.urlopen(request, timeout=ADMIN_TIMEOUT_S) as answer:
            body: bytes = answer.read()
        return body

    def status(self) -> dict[str, Any]:
        """The node's status, from its admin port."""
        found: dict[str, Any] = json.loads(self.ask("/api/v1/status"))
        return found

    def compact(self) -> dict[str, Any]:
        """Compact now; returns the summary."""
        summary: dict[str, Any] = json.loads(self.ask("/api/v1/compaction", "POST"))
        return summary

    def is_uploaded(self) -> bool:
        """True if all that was acknowledged is in committed objects."""
        parts = [part for topic in self.status()["topics"].values() for part in topic["partitions"]]
        return all(part["committed_offset"] == part["high_watermark"] for part in parts)

    def wait_uploaded(self) -> None:
        """Wait until all that was acknowledged is in committed objects."""
        wait_until(self.is_uploaded, "everything acknowledged is in objects")

    def _ended(self) -> int:
        assert self._process is not None, "not started"
        assert self._reader is not None, "not started"
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            explanation = self.explain()
            self.kill9()
            raise RuntimeError(f"the node does not end: {explanation}") from None
        self._reader.join(STOP_TIMEOUT_S)
        self._process = None
        self.alive.discard(self)
        return code

    def _note_serving(self, record: dict[str, Any]) -> None:
        self.host, port = record["address"].rsplit(":", 1)
        self.port = self.settings["port"] = int(port)
        self.admin = record["admin"]

    def _read(self, process: ForkedProcess | subprocess.Popen[str]) -> None:
        assert process.stderr is not None, "standard error is not a pipe"
        with process.stderr as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                if f'"event": "{self.serving_event}"' in line:
                    self._note_serving(json.loads(line))
                    self._serves = True
                    self._said.set()
        self._said.set()
