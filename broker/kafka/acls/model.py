"""ACLs as Kafka defines them (KIP-11, KIP-290): who may do what to which resources. Pure."""

from enum import IntEnum
from typing import Final, NamedTuple, Self

from anabranch.addresses import normal_host

WILDCARD: Final = "*"
"""Name of the literal pattern that matches all resources of a type, and the host that matches all hosts."""
EVERYBODY: Final = "User:*"
"""Principal that stands for all users."""
CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of the type CLUSTER."""


class _Code(IntEnum):
    """Kafka's code; 0 stands for undefined ones."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls(0) if isinstance(value, int) else None

    @property
    def text(self) -> str:
        """Its name in lower case: `transactional_id`."""
        return self.name.lower()


class AclResourceType(_Code):
    """Types of resources. ANY occurs in filters only, UNKNOWN stands for a code that Kafka does not define."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def words(self) -> str:
        """Its name in a sentence: `transactional id`."""
        return "user as a resource" if self is AclResourceType.USER else self.text.replace("_", " ")


class PatternType(_Code):
    """Ways in which a pattern's name matches names of resources. ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """All patterns that match a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """Operations on resources. ANY occurs in filters only, ALL in ACLs and filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    """Allow or deny. ANY occurs in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL: resources by a pattern, and a principal at a host that may do an operation, or may not."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class AclFilter(NamedTuple):
    """Filter of ACLs. None matches any name, principal or host."""

    resource_type: AclResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: Permission

    @property
    def is_unknown(self) -> bool:
        """True if a field has a code that Kafka does not define."""
        return not (self.resource_type and self.pattern_type and self.operation and self.permission)

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter selects an ACL."""
        return (
            (self.resource_type in {AclResourceType.ANY, acl.resource_type})
            and self._matches_name(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or normal_host(self.host) == normal_host(acl.host))
            and (self.operation in {AclOperation.ANY, acl.operation})
            and (self.permission in {Permission.ANY, acl.permission})
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in {PatternType.ANY, PatternType.MATCH, acl.pattern_type}:
            return False
        name = self.resource_name
        if name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in {name, WILDCARD}


SUPPORTED_OPERATIONS: Final = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Operations that answers name as authorized (KIP-430), by type of resource."""
