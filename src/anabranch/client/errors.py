"""Errors of the client. Each text is the one line to show, and has no secret in it."""


class ClientError(Exception):
    """A request that failed, or a node that cannot be reached. The text names the node and the reason."""


class NodeLost(ClientError):
    """A node that cannot be reached, does not answer, or has closed the connection: it may be restarting."""


class PropertyError(ClientError):
    """Client properties that cannot be used. The text names the property and where it comes from, not its value."""


class UnsupportedProperty(PropertyError):
    """Client properties that only other clients can use, such as Java's."""
