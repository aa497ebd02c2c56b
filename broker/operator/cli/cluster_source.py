"""Options of commands about the whole cluster, and the two places that answer them.

A running node answers through its admin port, with what it observes of the others. For a stopped cluster the catalog
answers, with `--catalog-url` (`cluster_catalog`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from anabranch.broker.operator.cli.admin_port import AdminPort, NodeOptions, node_options
from anabranch.broker.operator.cli.options import catalog_option, read_settings

if TYPE_CHECKING:
    from anabranch.broker.operator.cli.cluster_catalog import StoppedCluster


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


Source: TypeAlias = "RunningCluster | StoppedCluster"


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node, or the catalog; the command receives the `Source` first."""

    @node_options
    @catalog_option
    def wrapped(options: NodeOptions, catalog_url: str | None, **arguments: Any) -> None:
        if catalog_url is None:
            command(RunningCluster(options.find()), **arguments)
            return
        if options.admin.address is not None or options.client.is_given:
            raise click.UsageError("--catalog-url is for a cluster of which no node runs: give no node beside it")
        # Imported late: it loads the catalog, which a running node does not need.
        from anabranch.broker.operator.cli.cluster_catalog import StoppedCluster

        command(StoppedCluster(read_settings(options.config_file, catalog_url=catalog_url)), **arguments)

    return update_wrapper(wrapped, command)
