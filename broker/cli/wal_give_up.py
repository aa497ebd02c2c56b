"""`anabranch wal give-up`: accept the loss of a stopped node's log, and of the records that were only in it.

A node does not start while, according to the catalog, a log other than the one it finds may hold acknowledged records.
If that log is gone for good, this command shows which records may be lost, and marks the log as given up.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.table import Table

from broker.cli.errors import run
from broker.cli.options import config_option, data_dir_option, read_settings
from broker.cli.output import make_console
from broker.membership.join import claimant_of
from broker.membership.lease import wait_until_free
from broker.membership.log_identity import utc
from broker.membership.loss import PartitionAtRisk, give_up_logs, partitions_at_risk
from broker.membership.node_log import NodeLog
from broker.settings.data_dir import DataDirLock
from broker.settings.model import Settings
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import NodeInfo, WalInfo
from wal.format import wal_id_of


@click.command(name="give-up", short_help="Accept the loss of a stopped node's log.")
@config_option
@data_dir_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def give_up(config_file: Path | None, data_dir: Path | None, yes: bool) -> None:  # noqa: FBT001 - click passes by name
    """Accept the loss of a stopped node's log, and of the acknowledged records that were only in it.

    Afterwards the node starts on a new log, and its partitions continue from the end of the records in objects, so
    consumers may receive new records at offsets they have already read. The log that was given up is never used again.
    """
    settings = read_settings(config_file, data_dir)
    run(_give_up(settings, ask=not yes))


async def _give_up(settings: Settings, *, ask: bool) -> None:
    from broker.membership.environment import wall_ms  # imported late: it imports much

    async with AsyncExitStack() as stack:
        lock = DataDirLock(settings.node.data_dir)
        stack.callback(lock.release)
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
        _show(lost, seen, at_risk)
        if ask:
            click.confirm("Accept the loss?", abort=True)
        await give_up_logs(catalog, lost, at_risk, seen=seen, now_ms=wall_ms())
        for wal in lost:
            click.echo(f"given up: the log {wal.wal_id}. The node may start on a new one")


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


def _show(lost: Sequence[WalInfo], seen: NodeInfo, at_risk: Sequence[PartitionAtRisk]) -> None:
    for wal in lost:
        host = f" on {seen.holder.host_name}" if seen.holder.host_name else ""
        click.echo(
            f"log {wal.wal_id} of node {wal.node_id}, at {wal.location}{host}, last opened on {utc(wal.seen_ms)}"
        )
    click.echo(f"Acknowledged records of {len(at_risk):,} partitions that were only in it will be lost for good:")
    table = Table("partition", "may lose records from offset", box=None, header_style="bold")
    for each in at_risk:
        table.add_row(each.partition, str(each.end_offset))
    make_console().print(table)
