"""The client that sends a request, and the authorizer's decisions about it."""

from collections.abc import Iterable

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclOperation, AclResourceType
from anabranch.broker.node.logging.audit import EVENTS_MAX
from anabranch.broker.node.net.exchange import ClientConnection, Exchange
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.protocol.registry import APIS
from anabranch.protocol.wire import ZERO_UUID


class Caller:
    """The client of one request. Denials are logged unless `audited` is False: then a check only filters an answer."""

    __slots__ = (
        "_api_key",
        "_authorizer",
        "_connection",
        "_denials",
        "_host",
        "_powerless",
        "principal",
        "serving",
        "version",
    )

    def __init__(self, serving: Serving, exchange: Exchange, authorizer: Authorizer) -> None:
        self.serving = serving
        self.version = exchange.api_version
        self._api_key = exchange.api_key
        self._authorizer = authorizer
        self.principal = exchange.connection.principal
        """Principal of the client, in Kafka's notation."""
        self._connection = exchange.connection
        self._host = exchange.connection.host
        self._denials = 0
        self._powerless: tuple[AclResourceType, int] | None = None
        """Type of resource on which the client may do nothing by the ACLs of this version: a request may name many."""

    @property
    def may_ask_for_tokens(self) -> bool:
        """True if the client may send requests about delegation tokens."""
        return may_ask_for_tokens(self._connection)

    def may(self, operation: AclOperation, resource_type: AclResourceType, name: str, *, audited: bool = True) -> bool:
        """Return whether the client may do an operation to a resource."""
        authorizer = self._authorizer
        if self._powerless == (resource_type, authorizer.version):
            allowed = False
        else:
            allowed = authorizer.authorize(self.principal, self._host, operation, resource_type, name)
            if not allowed and authorizer.may_nothing(self.principal, resource_type):
                self._powerless = resource_type, authorizer.version
        if audited and not allowed:
            self.denied(operation, resource_type, name)
        return allowed

    def denied(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> None:
        """Log that an action was denied."""
        self._denials += 1
        if self._denials > EVENTS_MAX:
            self.serving.audit.leave_out("denied")
            return
        self.serving.audit.record(
            "denied",
            principal=self.principal,
            host=self._host,
            api=APIS[self._api_key].name,
            operation=operation.name,
            resource_type=resource_type.name,
            resource=name,
        )

    def may_cluster(self, operation: AclOperation, *, audited: bool = True) -> bool:
        """Return whether the client may do an operation to the cluster."""
        return self.may(operation, AclResourceType.CLUSTER, CLUSTER_NAME, audited=audited)

    def may_topic(self, operation: AclOperation, name: str, *, audited: bool = True) -> bool:
        """Return whether the client may do an operation to a topic."""
        return self.may(operation, AclResourceType.TOPIC, name, audited=audited)

    def may_group(self, operation: AclOperation, group_id: str, *, audited: bool = True) -> bool:
        """Return whether the client may do an operation to a group."""
        return self.may(operation, AclResourceType.GROUP, group_id, audited=audited)

    def may_transaction(self, operation: AclOperation, transactional_id: str) -> bool:
        """Return whether the client may do an operation to a transactional id."""
        return self.may(operation, AclResourceType.TRANSACTIONAL_ID, transactional_id)

    def may_write_some_topic(self) -> bool:
        """Return whether the client may write to at least one topic, whether it exists or not."""
        return self._authorizer.authorize_any(self.principal, self._host, AclOperation.WRITE, AclResourceType.TOPIC)

    def topics(self, operation: AclOperation, names: Iterable[str], *, audited: bool = True) -> set[str]:
        """Return the topics among `names` to which the client may do an operation."""
        return {name for name in set(names) if self.may_topic(operation, name, audited=audited)}

    @property
    def acl_version(self) -> int:
        """Version of the ACLs: decisions stay the same until it grows."""
        return self._authorizer.version

    def operations(self, resource_type: AclResourceType, name: str) -> int:
        """Return what the client may do to a resource, as bits (KIP-430)."""
        bits = 0
        for operation in SUPPORTED_OPERATIONS[resource_type]:
            if self.may(operation, resource_type, name, audited=False):
                bits |= 1 << operation
        return bits

    def cluster_operations(self) -> int:
        """Return what the client may do to the cluster; nothing if it may not describe it."""
        may_describe = self.may_cluster(AclOperation.DESCRIBE)
        return self.operations(AclResourceType.CLUSTER, CLUSTER_NAME) if may_describe else 0

    def name_of(self, name: str, topic_id: bytes) -> str | None:
        """Return the name of a topic that a request names by name, or by id; None for an unknown id."""
        if topic_id == ZERO_UUID:
            return name
        topic = self.serving.topics.get(topic_id)
        return None if topic is None else topic.name


def caller_of(serving: Serving, exchange: Exchange) -> Caller | None:
    """Return the client of a request; None if it may do everything: there is no authorizer, or it is a node."""
    if serving.acls is None or exchange.peer is not None:
        return None
    return Caller(serving, exchange, serving.acls.authorizer)


def may_ask_for_tokens(connection: ClientConnection) -> bool:
    """Return whether a client is authenticated, and not by a delegation token."""
    return connection.principal != ANONYMOUS and not connection.has_delegation_token
