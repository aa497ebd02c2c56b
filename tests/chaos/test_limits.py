"""A node with real clients that runs into its limit of descriptors or of memory."""

import resource
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.clients import QUIET
from tests.chaos.rig import SETTINGS, clients_on
from tests.support.node import NodeProcess
from tests.support.soak import LONG
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


@LONG
def test_a_node_without_free_descriptors_goes_on_with_the_clients_it_has(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, **SETTINGS) as node, clients_on(node) as chaos:
        before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            wait_until(lambda: any("Too many open files" in line for line in node.lines), "it says what it lacks")
            chaos.wait_for_acks(100)
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": node.bootstrap, **QUIET}).list_topics(timeout=2)
        finally:
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
        AdminClient({"bootstrap.servers": node.bootstrap, **QUIET}).list_topics(timeout=30)
        chaos.end()


@LONG
def test_a_node_without_memory_serves_again_or_ends_and_loses_nothing(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, **SETTINGS, stop_upload_timeout_ms=1_000) as node, clients_on(node) as chaos:
        before = resource.prlimit(node.pid, resource.RLIMIT_AS)
        resource.prlimit(node.pid, resource.RLIMIT_AS, (1, before[1]))
        wait_until(lambda: not node.running or lacks_memory(node), "it says what it lacks, or ends")
        if node.running:
            resource.prlimit(node.pid, resource.RLIMIT_AS, before)
        acked = chaos.recorder.acked
        wait_until(lambda: not node.running or chaos.recorder.acked > acked + 100, "it serves again, or ends")
        if not node.running:
            assert node.wait() != 0
            node.start()
        chaos.end()


def lacks_memory(node: NodeProcess) -> bool:
    """Return True if it has said so."""
    return any("MemoryError" in line or "Cannot allocate memory" in line for line in list(node.lines))
