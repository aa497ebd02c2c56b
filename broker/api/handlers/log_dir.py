"""The one log directory that a node reports to clients."""

from anabranch.broker.cluster.node import Node


def log_dir(node: Node) -> str:
    """Return the absolute path of the node's data directory."""
    return str(node.settings.node.data_dir.resolve())
