"""Operations that ACLs can be about, and those that producers and consumers need: as in `kafka-acls`."""

from collections.abc import Mapping, Sequence
from typing import Final

from anabranch.broker.kafka.acls.model import SUPPORTED_OPERATIONS, AclOperation, AclResourceType

OPERATIONS: Final[Mapping[AclResourceType, Sequence[AclOperation]]] = {
    **SUPPORTED_OPERATIONS,
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""Operations by type of resource, beside ALL."""
Role = Mapping[AclResourceType, Sequence[AclOperation]]
"""Operations that somebody needs, by type of resource."""
PRODUCER: Final[Role] = {
    AclResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
CONSUMER: Final[Role] = {
    AclResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    AclResourceType.GROUP: (AclOperation.READ,),
}
_USER: Final = "User:"


class NoSuchOperation(ValueError):
    """A resource has no such operation. The text is the one line to show."""


def check_operation(resource_type: AclResourceType, operation: AclOperation) -> None:
    """Raise NoSuchOperation unless an ACL of such a resource can be about the operation."""
    if operation is not AclOperation.ALL and operation not in OPERATIONS[resource_type]:
        known = ", ".join(each.text for each in (*OPERATIONS[resource_type], AclOperation.ALL))
        raise NoSuchOperation(f"a {resource_type.words} has no operation {operation.text}: it has {known}")


def parse_principal(text: str) -> str:
    """Parse a principal; without a type it is a user."""
    return text if ":" in text else f"{_USER}{text}"
