"""Lines that tell a person at a terminal where a node is: `anabranch dev` and `anabranch serve` print them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from anabranch.extras import install_command, is_installed

if TYPE_CHECKING:
    from anabranch.broker.cluster.node import Node


def welcome(node: "Node", data: str, end: str) -> Iterator[str]:
    """Yield the lines for a node that serves: its addresses, the place of its data, and what its end does."""
    ports = node.ports
    off = "off" if is_installed("console") else f"off ({install_command('console')})"
    yield f"Kafka      {node.bootstrap}"
    yield f"admin port {f'http://{ports.admin_address}' if ports.admin_address else off}"
    yield f"console    {ports.console_url or off}"
    yield f"data       in {data}"
    yield end
