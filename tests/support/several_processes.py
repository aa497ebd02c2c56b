"""`anabranch serve --processes N`: several nodes, each in a process of its own, with one that looks after them.

with SeveralProcesses(tmp_path, processes=2) as node:
    client = AIOKafkaProducer(bootstrap_servers=node.bootstrap)
    node.kill_node(2)
    node.wait_serving(2, times=2)
"""

import os
import signal
from pathlib import Path
from typing import Any

from tests.support.node import NodeProcess
from tests.support.node_processes import wait_for_brokers
from tests.support.waiting import wait_until


class SeveralProcesses(NodeProcess):
    """The process that starts the others. Its end is theirs, too: `kill9` and `terminate` wait for all."""

    serving_event = "all processes serve"

    def start(self) -> None:
        """Start, and wait until each node knows that all live."""
        before = len(self.events("serving"))
        super().start()
        # Each process writes its own lines, so that those of the nodes may come later.
        wait_until(
            lambda: len(self.events("serving")) >= before + len(self.node_ids), "all nodes have said where they are"
        )
        self.admin = self._served()[self.node_ids[0]]["admin"]
        for address in self.addresses().values():
            host, port = address.rsplit(":", 1)
            wait_for_brokers(host, int(port), len(self.node_ids))

    def _note_serving(self, record: dict[str, Any]) -> None:
        self.host, port = record["bootstrap"].rsplit(":", 1)
        self.port = self.settings["port"] = int(port)
        self.node_ids = [int(each) for each in record["nodes"].split(",")]

    def _served(self) -> dict[int, dict[str, Any]]:
        """Last line of each node that says that it serves."""
        return {record["node"]: record for record in self.events("serving")}

    def addresses(self) -> dict[int, str]:
        """Return `host:port` of each node for clients."""
        return {node_id: record["address"] for node_id, record in self._served().items() if node_id in self.node_ids}

    def pid_of(self, node_id: int) -> int | None:
        """Return the process of a node; None if none runs."""
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            is_node = len(words) > 2 and words[-3].isdigit()  # else it has ended, or is still a copy of its parent
            if is_node and self.node_ids[int(words[-3])] == node_id:
                return int(child)
        return None

    def kill_node(self, node_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process of a node."""
        pid = self.pid_of(node_id)
        assert pid is not None, f"node {node_id} does not run"
        os.kill(pid, number)

    def wait_serving(self, node_id: int, times: int) -> None:
        """Wait until a node has begun to serve that often."""
        wait_until(
            lambda: sum(each["node"] == node_id for each in self.events("serving")) == times,
            f"node {node_id} serves for the {times}. time",
        )
