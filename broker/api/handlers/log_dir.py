"""The one log directory that a node reports to clients."""

from anabranch.broker.cluster.serving import Serving


def log_dir(serving: Serving) -> str:
    """Return the absolute path of the node's data directory."""
    return str(serving.settings.node.data_dir.resolve())
