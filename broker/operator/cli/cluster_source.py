"""Options of commands about the whole cluster, and the two places that answer them.

A running node answers through its admin port, with what it observes of the others. For a stopped cluster the catalog
answers, with `--catalog-url`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from anabranch.broker.cluster.membership.failover import NO_LOG
from anabranch.broker.cluster.membership.lease import Claimant, wait_until_free
from anabranch.broker.cluster.membership.loss import give_up_logs, partitions_at_risk
from anabranch.broker.cluster.membership.overview import (
    ClusterFacts,
    as_json,
    describe_cluster,
    describe_loss,
    describe_nodes,
)
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.cli.admin_port import AdminOptions, AdminPort, admin_option
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import config_option, read_settings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster of which a node runs. All methods raise ClickException."""

    port: AdminPort

    def nodes(self) -> Any:
        """Return a row for each registered node."""
        return self.port.ask("GET", "/nodes")["nodes"]

    def status(self) -> Any:
        """Return the state of the whole cluster."""
        return self.port.ask("GET", "/cluster/status")

    def fail(self, node_id: int) -> Any:
        """Declare a node dead."""
        return self.port.ask("POST", f"/nodes/{node_id}/fail")

    def loss(self, node_id: int) -> Any:
        """Return what is lost when a node's log is given up."""
        return self.port.ask("GET", f"/nodes/{node_id}/loss")

    def give_up(self, plan: Mapping[str, Any]) -> Any:
        """Accept a loss, unless the node has another epoch now."""
        return self.port.ask("POST", f"/nodes/{plan['node']}/give-up", epoch=str(plan["epoch"]))

    def remove(self, node_id: int) -> Any:
        """Remove a node that has left or failed."""
        return self.port.ask("DELETE", f"/nodes/{node_id}")


@dataclass(frozen=True, slots=True)
class StoppedCluster:
    """The catalog of a cluster of which no node runs. Its answers have the form of those of a running one."""

    settings: Settings

    def nodes(self) -> Any:
        """Return a row for each registered node."""
        return as_json(describe_nodes(run(self._facts())))

    def status(self) -> Any:
        """Return the state of the whole cluster."""
        return as_json(describe_cluster(run(self._facts()), controller=None, observer=None))

    def fail(self, node_id: int) -> Any:
        """Refuse: only a node can recover the log of another."""
        raise click.UsageError(f"a running node is needed to fence node {node_id}: give its admin port with --admin")

    def loss(self, node_id: int) -> Any:
        """Return what is lost when a node's log is given up."""
        return run(self._loss(node_id, accept=False))

    def give_up(self, plan: Mapping[str, Any]) -> Any:
        """Accept a loss."""
        return run(self._loss(plan["node"], accept=True))

    def remove(self, node_id: int) -> Any:
        """Remove a node that has left or failed."""
        return run(self._remove(node_id))

    async def _open(self, stack: AsyncExitStack, *, read_only: bool) -> Catalog:
        catalog = Catalog(self.settings.catalog_url, read_only=read_only)
        stack.push_async_callback(catalog.close)
        if await catalog.is_blank():
            raise click.ClickException(f"there is nothing in the catalog {catalog.where}")
        await catalog.open(cluster=self.settings.node.cluster)
        return catalog

    async def _facts(self) -> ClusterFacts:
        async with AsyncExitStack() as stack:
            catalog = await self._open(stack, read_only=True)
            return ClusterFacts(
                nodes=await catalog.list_nodes(),
                logs=await catalog.list_all_wals(),
                topics=await catalog.list_topics(),
                last_commits=await catalog.last_commits(),
                now_ms=_now_ms(),
            )

    async def _loss(self, node_id: int, *, accept: bool) -> Any:
        async with AsyncExitStack() as stack:
            catalog = await self._open(stack, read_only=not accept)
            seen = await self._find_gone(catalog, node_id)
            logs = [log for log in await catalog.list_wals(node_id) if log.is_live]
            if not logs:
                raise click.ClickException(NO_LOG.format(node_id))
            at_risk = await partitions_at_risk(catalog, node_id)
            if accept:
                await give_up_logs(catalog, logs, at_risk, seen=seen, now_ms=_now_ms())
            return as_json(describe_loss(seen, logs[-1], at_risk))

    async def _remove(self, node_id: int) -> Any:
        async with AsyncExitStack() as stack:
            catalog = await self._open(stack, read_only=False)
            seen = await self._find_gone(catalog, node_id)
            heirs = [node.node_id for node in await catalog.list_nodes() if node.node_id != node_id]
            if not heirs:
                raise click.ClickException(f"node {node_id} is the only one: nobody could compact its objects")
            inherited = await catalog.remove_node(seen, heir=heirs[0], now_ms=_now_ms())
            return {"node": node_id, "inherited": inherited, "heir": heirs[0]}

    async def _find_gone(self, catalog: Catalog, node_id: int) -> NodeInfo:
        """Wait until no process holds the node; return its registration. Raises ClickException."""
        claimant = Claimant("", "", one_machine=False, lease_ms=self.settings.catalog.lease_ms)
        seen = await wait_until_free(catalog, node_id, claimant)
        if seen is None or seen.lease_until_ms < 0:
            raise click.ClickException(f"node {node_id} is not registered")
        return seen


Source = RunningCluster | StoppedCluster


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node, or the catalog; the command receives the `Source` first."""

    @config_option
    @admin_option
    @click.option(
        "--catalog-url",
        metavar="URL",
        help="Catalog of the cluster, in place of the settings or of an admin port (if no node runs).",
    )
    def wrapped(config_file: Path | None, admin: AdminOptions, catalog_url: str | None, **arguments: Any) -> None:
        if catalog_url is not None:
            if admin.address is not None:
                raise click.UsageError("--admin and --catalog-url exclude each other")
            command(StoppedCluster(read_settings(config_file, catalog_url=catalog_url)), **arguments)
            return
        command(RunningCluster(admin.find_needed(read_settings(config_file))), **arguments)

    return update_wrapper(wrapped, command)
