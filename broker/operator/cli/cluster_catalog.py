"""The catalog of a stopped cluster, as the source of commands about the whole cluster. See `cluster_source`."""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
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
from anabranch.broker.operator.cli.errors import run
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo


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
        raise click.UsageError(
            f"a running node is needed to fence node {node_id}: name one with --bootstrap-server or --admin"
        )

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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
