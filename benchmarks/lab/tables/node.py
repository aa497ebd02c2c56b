"""A node with tables as a process, and a look at its tables that costs it nothing: into its catalog's file."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import TableTotals
from anabranch.s3stream.errors import NotFound
from benchmarks.lab.processes import Anabranch, cpu_s_of, free_port

TIMEOUT_S = 120.0
TOPIC_RESOURCE = 2
SET = 0
WORKER = "anabranch.tables.worker"
FLAGS = ("--storage-upload-age-ms=500", "--compaction-enabled=false")
"""Topics are in objects soon, and nothing but tables works in the background."""


@dataclass(frozen=True)
class Cpu:
    """CPU seconds of a node, and of its process that makes columns."""

    node_s: float
    worker_s: float

    @property
    def all_s(self) -> float:
        """Both."""
        return self.node_s + self.worker_s

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.node_s - other.node_s, self.worker_s - other.worker_s)


class TableNode(Anabranch):
    """A node whose topics may be tables, with the admin port."""

    def __init__(self, home: Path, flags: Sequence[str] = FLAGS) -> None:
        self.admin_port = free_port()
        super().__init__(home, ["--admin-enabled=true", f"--admin-port={self.admin_port}", *flags])
        self.pointer = TablePointer(f"sqlite:///{home / 'data' / 'catalog.db'}")

    def stop(self) -> float:
        """Stop it cleanly, and close its catalog."""
        self.pointer.close()
        return super().stop()

    def cpu(self) -> Cpu:
        """Return the CPU seconds so far. Those of a worker that has ended are the node's children's: none may end."""
        workers = self.workers()
        return Cpu(self.cpu_s(), sum(map(cpu_s_of, workers)))

    def workers(self) -> Sequence[int]:
        """Return the ids of the processes that make columns."""
        found = []
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        for each in [pid for path in children for pid in path.read_text().split()]:
            with suppress(OSError):
                if WORKER in Path(f"/proc/{each}/cmdline").read_text():
                    found.append(int(each))
        return found

    def set_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Change configs of a topic."""
        changes = [AlterableConfig(name=name, config_operation=SET, value=value) for name, value in configs.items()]
        resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=changes)
        with self.connect() as connection:
            answer = connection.call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert not answer.responses[0].error_code, answer

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end of each partition that has records."""
        count = self.pointer.partitions(topic)
        asked = [ListOffsetsPartition(partition_index=idx, timestamp=-1) for idx in range(count)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        with self.connect() as connection:
            found = connection.call(request).topics[0].partitions
        return {each.partition_index: each.offset for each in found if each.offset}

    def store_calls(self) -> dict[str, float]:
        """Return the calls to the store so far by kind, and the bytes that were written under `bytes`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        calls = {each.labels["kind"]: each.value for each in samples if each.name == "anabranch_store_calls_total"}
        written = sum(each.value for each in samples if each.name == "anabranch_store_written_bytes_total")
        return calls | {"bytes": written}

    def load_table(self, topic: str) -> dict[str, Any]:
        """Load a table as an engine does, from the REST catalog. Returns its metadata."""
        url = f"http://127.0.0.1:{self.admin_port}/iceberg/v1/namespaces/default/tables/{topic}"
        with urllib.request.urlopen(url) as answer:
            found: dict[str, Any] = json.load(answer)["metadata"]
        return found


class TablePointer:
    """Reads the catalog of a node, which it opens when it is first asked. Used in one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner: asyncio.Runner | None = None
        self._catalog: Catalog | None = None

    def _ask(self) -> tuple[asyncio.Runner, Catalog]:
        if self._runner is None or self._catalog is None:
            self._runner, self._catalog = asyncio.Runner(), Catalog(self._url, read_only=True)
            self._runner.run(self._catalog.open(cluster="anabranch"))
        return self._runner, self._catalog

    def close(self) -> None:
        """Close the catalog."""
        if self._runner is not None and self._catalog is not None:
            self._runner.run(self._catalog.close())
            self._runner.close()
        self._runner = None

    def _streams(self, topic: str) -> dict[int, int]:
        runner, catalog = self._ask()
        (found,) = [each for each in runner.run(catalog.list_topics()) if each.name == topic]
        return {each.index: each.stream_id for each in found.partitions}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return len(self._streams(topic))

    def committed(self, topic: str) -> dict[int, int]:
        """Return the end of what is in objects, by partition that has records."""
        streams = self._streams(topic)
        runner, catalog = self._ask()
        infos = runner.run(catalog.get_streams(list(streams.values())))
        return {idx: infos[stream].end_offset for idx, stream in streams.items() if infos[stream].end_offset}

    def range_bytes(self, topic: str) -> int:
        """Return the size of a topic's blocks in objects."""
        streams = self._streams(topic)
        runner, catalog = self._ask()
        size = 0
        for idx, end in self.committed(topic).items():
            found = runner.run(catalog.find_ranges(streams[idx], 0, end, limit=10_000))
            assert found[-1].range.end_offset == end
            size += sum(each.range.size_bytes for each in found)
        return size

    def version(self, table: str) -> int:
        """Return the number of a table's commits; 0 if there is no table yet."""
        runner, catalog = self._ask()
        try:
            return runner.run(catalog.tables.find(table)).info.version
        except NotFound:
            return 0

    def table_ends(self, table: str) -> dict[int, int]:
        """Return the end of each partition in a table; empty if there is no table yet."""
        runner, catalog = self._ask()
        try:
            found = runner.run(catalog.tables.find(table))
        except NotFound:
            return {}
        bounds = runner.run(catalog.tables.read(found.info.table_id)).bounds
        return {idx: each.end_offset for idx, each in bounds.items() if each.end_offset}

    def totals(self, table: str) -> TableTotals:
        """Return files, rows and bytes of a table."""
        runner, catalog = self._ask()
        table_id = runner.run(catalog.tables.find(table)).info.table_id
        return runner.run(catalog.tables.count_data()).get(table_id, TableTotals())
