"""`anabranch topic list`: topics with their partitions, sizes and growth, all of it by Kafka's protocol."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.client import CommandClient, client_options, id_text
from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.sizes import partition_sizes
from anabranch.output import emit, make_table, output_option
from anabranch.protocol.messages.metadata import MetadataResponseTopic


@click.command(name="list")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@click.option(
    "--size",
    "with_size",
    is_flag=True,
    help="Show offsets from start to end, which are no fewer than records, and stored bytes.",
)
@click.option(
    "--rates",
    "rates_s",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Show what is written a second, measured for so long.",
)
@output_option
@client_options
def list_(
    patterns: Sequence[str],
    *,
    internal: bool,
    with_size: bool,
    rates_s: float | None,
    client: CommandClient,
    output: str,
) -> None:
    """List topics with their partitions: all, or those whose names match a PATTERN, such as 'orders-*'."""
    with client.cluster() as cluster:
        topics = [
            each
            for each in sorted(cluster.describe_topics().topics, key=lambda each: each.name or "")
            if (internal or not each.is_internal)
            and (not patterns or any(fnmatchcase(each.name or "", pattern) for pattern in patterns))
        ]
        measured = _Measured(cluster, topics)
        sizes = measured.sizes() if with_size else {}
        rates = measured.rates(rates_s) if rates_s is not None else {}
    rows: list[dict[str, Any]] = [
        {
            "topic": item.name,
            "id": id_text(item.topic_id),
            "partitions": len(item.partitions),
            "leaders": sorted({partition.leader_id for partition in item.partitions}),
            **sizes.get(item.name or "", {}),
            **rates.get(item.name or "", {}),
        }
        for item in topics
    ]

    def show(console: Console) -> None:
        numbers = [*(("offsets", "size") if with_size else ()), *(("records/s", "growth/s") if rates_s else ())]
        table = make_table("topic", "id", "partitions", "leaders", *numbers, right=("partitions", *numbers))
        for row in rows:
            leaders = ", ".join(map(str, row["leaders"]))
            shown = [f"{row['records']:,}", size_text(row["size_bytes"])] if with_size else []
            if rates_s:
                shown += [f"{row['records_per_s']:,.1f}", _growth_text(row["bytes_per_s"])]
            table.add_row(row["topic"], row["id"], str(row["partitions"]), leaders, *shown)
        console.print(table)

    emit(output, rows, show)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Topics whose size and growth are measured."""

    cluster: Cluster
    topics: Sequence[MetadataResponseTopic]

    def sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Return records and bytes of each topic."""
        firsts, ends = self._sums(EARLIEST), self._sums(LATEST)
        sizes = self._bytes()
        return {name: {"records": ends[name] - firsts[name], "size_bytes": sizes[name]} for name in sizes}

    def rates(self, seconds: float) -> Mapping[str, Mapping[str, float]]:
        """Return records and bytes that are added to each topic a second. Bytes that retention removes count, too."""
        ends, sizes, begun_s = self._sums(LATEST), self._bytes(), time.perf_counter()
        time.sleep(seconds)
        new_ends, new_sizes, elapsed_s = self._sums(LATEST), self._bytes(), time.perf_counter() - begun_s
        return {
            name: {
                "records_per_s": round((new_ends[name] - ends[name]) / elapsed_s, 3),
                "bytes_per_s": round((new_sizes[name] - sizes[name]) / elapsed_s, 3),
            }
            for name in sizes
        }

    def _sums(self, point: int) -> Mapping[str, int]:
        return self._by_topic(self.cluster.list_offsets(self.topics, point))

    def _bytes(self) -> Mapping[str, int]:
        return self._by_topic(partition_sizes(self.cluster, self.topics))

    def _by_topic(self, values: Mapping[Place, int]) -> Mapping[str, int]:
        sums = {each.name or "": 0 for each in self.topics}
        for (name, _), value in values.items():
            sums[name] += value
        return sums


def _growth_text(bytes_per_s: float) -> str:
    return f"-{size_text(-bytes_per_s)}" if bytes_per_s < 0 else size_text(bytes_per_s)
