"""Health of the node, for people, load balancers and Kubernetes.

    GET /health         200 while the node serves and can write, 503 otherwise; it needs a token like all other paths
    GET /health/live    200 as long as the event loop answers: restart the process if it does not
    GET /health/ready   200 while the node serves clients, can write, and is reached by another node if there are some;
                        503 otherwise

The last two are probes. They need no token, and tell the reason only to those who may read.
"""

from anabranch.broker.cluster.node import Node


def unhealthy_reason(node: Node) -> str:
    """Return why the node cannot serve or write; empty if it can."""
    storage = node.serving.storage
    if node.stopping:
        return "the node is stopping"
    if storage.error is not None:
        return str(storage.error)
    if not storage.writable:
        return "; ".join(map(str, storage.obstacles())) or "the node cannot write"
    return ""


def unready_reason(node: Node) -> str:
    """Return why clients should not be sent to this node; empty if it serves them."""
    if len(node.ports.clients.ports) < len(node.serving.settings.listeners):
        return "the node is starting"
    if reason := unhealthy_reason(node):
        return reason
    isolated = node.serving.reach.why_isolated()
    return f"no other node reaches this one at {node.internal_address}: {isolated}" if isolated else ""
