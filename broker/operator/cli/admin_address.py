"""Addresses of admin ports: as they are written, and as the nodes of a cluster announce them to Kafka's clients."""

from typing import NamedTuple

import click

from anabranch.addresses import host_port, is_loopback
from anabranch.broker.node.settings.known import ADMIN_LISTENER, ADMIN_PORT
from anabranch.broker.node.settings.listeners import ALL_ADDRESSES
from anabranch.broker.operator.cli.client import CommandClient
from anabranch.client.cluster import Cluster
from anabranch.client.configs import Resource, describe_configs
from anabranch.client.connection import parse_address
from anabranch.client.errors import ClientError, NodeLost


def parse_admin(text: str) -> tuple[str, int, bool]:
    """Parse `HOST:PORT` or `https://HOST:PORT`, the value of `--admin`; the last part is whether it has TLS."""
    scheme, separator, rest = text.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit() or (separator and scheme not in {"http", "https"}):
        raise click.BadParameter(f"expected HOST:PORT or https://HOST:PORT, found {text!r}", param_hint="--admin")
    return host.strip("[]"), int(port), scheme == "https"


class Announced(NamedTuple):
    """The admin port of a node, as Kafka's clients learn it."""

    address: str
    """As `--admin` names it."""
    cluster: str
    """Name of the node's cluster."""
    is_told: bool
    """False: the node does not tell, and is taken to have the default port, without TLS."""


def announced_port(client: CommandClient) -> Announced:
    """Return the admin port that a node announces: if possible of the node reached first, else of one that answers.

    A node may be of an older version, or its ACLs may forbid it to tell. Raises ClientError, ClickException.
    """
    lost: NodeLost | None = None
    with client.cluster() as cluster:
        name, nodes = cluster.name_and_addresses()
        reached, _ = parse_address(cluster.first.where)
        for node_id in sorted(nodes, key=lambda each: host_port(*nodes[each]) != cluster.first.where):
            host, _ = nodes[node_id]
            try:
                told = _told_listener(cluster, node_id)
            except NodeLost as error:
                lost = error
                continue
            listener = f"http://{host_port(host, ADMIN_PORT)}" if told is None else told
            if listener:
                is_here = is_loopback(host) or is_loopback(reached)
                return Announced(reachable_address(listener, host, is_here=is_here), name, told is not None)
    raise lost or click.ClickException(f"no node of {client.servers} has an admin port (admin.enabled)")


def _told_listener(cluster: Cluster, node_id: int) -> str | None:
    """Return what a node tells of its admin port: empty if it has none, None if it does not tell. Raises NodeLost."""
    try:
        configs = describe_configs(cluster, Resource("broker", str(node_id)))
    except NodeLost:
        raise
    except ClientError:
        return None
    return next((each.value for each in configs if each.name == ADMIN_LISTENER), None)


def reachable_address(listener: str, host: str, *, is_here: bool) -> str:
    """Return the address by which a node's admin port is reached, where Kafka's clients reach the node at `host`.

    `is_here`: it runs on this machine. Raises ClickException if it must, and does not.
    """
    bound, port, has_tls = parse_admin(listener)
    address = host_port(host if bound in ALL_ADDRESSES else bound, port)
    if is_loopback(bound) and not is_here:
        raise click.ClickException(
            f"the admin port of the node at {host} listens on {bound} only (admin.host): run this command there, with "
            f"--admin {address}"
        )
    return f"{'https' if has_tls else 'http'}://{address}"
