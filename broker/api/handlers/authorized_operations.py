"""Operations that a client may do, as bits of Kafka's AclOperation (KIP-430): all of them without an authorizer."""

from typing import Final

CLUSTER_OPERATIONS: Final = 8096
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
TOPIC_OPERATIONS: Final = 3576
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
GROUP_OPERATIONS: Final = 3400
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
NOT_REQUESTED: Final = -(2**31)
"""The answer if the client did not request its operations."""
