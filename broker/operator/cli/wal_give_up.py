"""`anabranch wal give-up`: accept the loss of a stopped node's log, and of the records that were only in it.

A node does not start while, according to the catalog, a log other than the one it finds may hold acknowledged records.
If that log is lost permanently, this command shows which records may be lost, and marks the log as given up.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from anabranch.broker.cluster.membership.join import claimant_of
from anabranch.broker.cluster.membership.lease import wait_until_free
from anabranch.broker.cluster.membership.log_identity import utc
from anabranch.broker.cluster.membership.loss import PartitionAtRisk, give_up_logs, partitions_at_risk
from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.questions import confirm
from anabranch.output import count_text, emit, make_table, output_option, show_plan
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo
from anabranch.wal.format import wal_id_of


@click.command(cls=SettingsCommand, name="give-up", short_help="Accept the loss of a stopped node's log.")
@config_option
@data_dir_option
@yes_option
@output_option
def give_up(config_file: Path | None, data_dir: Path | None, *, yes: bool, output: str) -> None:
    """Accept the loss of a stopped node's log, and of the acknowledged records that were only in it.

    Afterwards the node starts on a new log, and its partitions continue from the end of the records in objects,
    so consumers may receive new records at offsets they have already read.
    """
    settings = read_settings(config_file, data_dir)
    run(_give_up(settings, output, ask=not yes))


async def _give_up(settings: Settings, output: str, *, ask: bool) -> None:
    from anabranch.broker.cluster.membership.environment import wall_ms  # imported late: it imports much

    async with AsyncExitStack() as stack:
        lock = DataDirLock(settings.node.data_dir)
        stack.callback(lock.release_unused)
        catalog = Catalog(settings.catalog_url)
        stack.push_async_callback(catalog.close)
        if await catalog.is_blank():
            raise click.ClickException(f"there is nothing in the catalog {catalog.where}: check catalog.url")
        await catalog.open(cluster=settings.node.cluster)
        node_log = await stack.enter_async_context(NodeLog.opened(settings, any_content=True))
        lost = await _lost_logs(catalog, node_log, settings.node.node_id)
        seen = await wait_until_free(catalog, settings.node.node_id, claimant_of(settings, lock.lock_id))
        assert seen is not None, "a node with a log was registered"
        at_risk = await partitions_at_risk(catalog, settings.node.node_id)
        show_plan(output, partial(_show, lost, seen, at_risk), asks=ask)
        if ask:
            confirm("Accept the loss?")
        await give_up_logs(catalog, lost, at_risk, seen=seen, now_ms=wall_ms())
    data = {
        "node": settings.node.node_id,
        "logs": [{"id": wal.wal_id, "location": wal.location, "last_opened_ms": wal.seen_ms} for wal in lost],
        "partitions": [{"partition": each.partition, "from_offset": each.end_offset} for each in at_risk],
    }
    given_up = [f"given up: the log {wal.wal_id}. The node may start on a new one" for wal in lost]
    emit(output, data, "\n".join(given_up))


async def _lost_logs(catalog: Catalog, node_log: NodeLog, node_id: int) -> Sequence[WalInfo]:
    lost = [wal for wal in await catalog.list_wals(node_id) if wal.is_live]
    if not lost:
        raise click.ClickException(f"node {node_id} has no log that may hold records outside of objects")
    found = node_log.header
    if found is not None and wal_id_of(found.log_id) in {wal.wal_id for wal in lost}:
        raise click.ClickException(
            f"{node_log.path}: the log exists: start the node. If it is damaged: `anabranch wal repair`"
        )
    return lost


def _show(lost: Sequence[WalInfo], seen: NodeInfo, at_risk: Sequence[PartitionAtRisk], console: Console) -> None:
    for wal in lost:
        host = f" on {seen.holder.host_name}" if seen.holder.host_name else ""
        text = f"log {wal.wal_id} of node {wal.node_id}, at {wal.location}{host}, last opened on {utc(wal.seen_ms)}"
        console.print(text, markup=False, soft_wrap=True)
    partitions = count_text(len(at_risk), "partition")
    console.print(f"Acknowledged records of {partitions} that were only in it will be lost for good:", soft_wrap=True)
    table = make_table("partition", "may lose records from offset")
    for each in at_risk:
        table.add_row(each.partition, str(each.end_offset))
    console.print(table)
