"""The world of one run: loop, network, object store, catalog, and nodes that can be broken at any moment."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.balancing import Balancing
from tests.simulation.catalog import CatalogFaults
from tests.simulation.columns import SimRegistry
from tests.simulation.loop import SimLoop, Stuck
from tests.simulation.network import Network
from tests.simulation.node import PREPARE_TTL_MS, STORE, SimNode
from tests.simulation.store import StoreDisk, StoreFaults
from tests.simulation.trace import Trace, patched

START_MS = 1_760_000_000_000
"""Wall clock at the beginning of a run."""


class World:
    """Everything outside of the clients. All of it follows from the seed."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        delete_delay_ms: int = 20_000,
        first_offset: int = 0,
        window_bytes: int = 4 << 20,
        strict: bool = False,
        object_log: bool = False,
        moves: bool = False,
        processes: bool = False,
        nodes: int = 1,
    ) -> None:
        """Create it; `delete_delay_ms` also bounds how late a PUT lands, new partitions begin at `first_offset`.

        `window_bytes` is the first bound of each log's window, `strict` its fencing. With `object_log` the logs
        are in the object store. The nodes have the ids 1, 2, ...
        """
        self.seed = seed
        self.delete_delay_ms = delete_delay_ms
        self.first_offset = first_offset
        self.window_bytes = window_bytes
        self.strict = strict
        self.object_log = object_log
        self.moves = moves
        """True if partitions move by orders of people or of the balancer."""
        self.processes = processes
        """True if the nodes are processes of one machine, started by a parent."""
        self.folder = folder
        self.loop = SimLoop(self.random("threads"))
        self.network = Network(self.loop, self.random("network"))
        self.store = StoreDisk(self.loop, self.random("store"), STORE)
        self.store.late_s_max = 0.7 * min(delete_delay_ms, PREPARE_TTL_MS / 2) / 1000
        self.catalog_faults = CatalogFaults()
        self.registry = SimRegistry()
        self.balancing = Balancing(self)
        self.nodes = [SimNode(self, node_id) for node_id in range(1, nodes + 1)]
        self.rival = SimNode(self, 1, "rival", "rival.db")
        """A node of another cluster of the same name, which uses the same store."""
        self.trace = Trace(self.loop, folder)
        self.faults_over = asyncio.Event()
        """Set when nothing is broken any more: from now on everything must succeed within a time."""
        self.errors: list[str] = []
        """Exceptions that nobody caught."""
        self.counts: dict[str, int] = {}
        """Faults and other events, for the report."""

    def random(self, name: str) -> Random:
        """A stream of choices that does not depend on the other ones."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return Random(int.from_bytes(digest[:8], "big"))

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    @property
    def now_s(self) -> float:
        return self.loop.time()

    def now_ms(self) -> int:
        """The true wall clock."""
        return START_MS + int(self.loop.time() * 1000)

    def node(self, node_id: int) -> SimNode:
        """Return a node by its id."""
        return self.nodes[node_id - 1]

    def siblings_of(self, node: SimNode) -> frozenset[int]:
        """Return the ids of the other nodes."""
        return frozenset(each.node_id for each in self.nodes if each is not node)

    def parent_notes(self, ended: SimNode) -> None:
        """Let the parent tell the other processes that one was killed."""
        for node in self.nodes:
            if node is not ended:
                node.call(lambda other: other.upkeep.failover.note_ended(ended.node_id))

    def note(self, event: str, **fields: object) -> None:
        """Add a line to the trace."""
        self.trace.add("", event, fields)

    def heal(self, *, faults_over: bool = True) -> None:
        """End all faults; without `faults_over` others follow."""
        self.note("all faults end")
        self.store.faults = StoreFaults()
        self.catalog_faults.refused = self.catalog_faults.lost = 0.0
        self.catalog_faults.repeated = self.catalog_faults.late = self.catalog_faults.table_unknown = 0.0
        self.catalog_faults.away = False
        self.registry.is_away = False
        for node in self.nodes:
            node.logs.faults.write_error = node.logs.faults.read_error = 0.0
            node.logs.hang(hangs=False)
            node.end_others()
            node.resume()
        self.network.heal()
        if faults_over:
            self.faults_over.set()

    def run(self, main: Callable[[], Any]) -> None:
        """Run the coroutine function `main` until it ends, then drop everything else. Raises what it raises."""
        self.loop.set_exception_handler(self._unexpected)
        with patched(self):
            task = self.loop.create_task(main())
            task.add_done_callback(lambda _: self.loop.stop())
            try:
                self.loop.run_forever()
            except Stuck:
                self.note("nothing is left to run")
                raise
            task.result()
            assert not self.errors, self.errors[0]

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context['message']}: {error!r}"
        self.note("unexpected", error=text)
        self.errors.append(text)
