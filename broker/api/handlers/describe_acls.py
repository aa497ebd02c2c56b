"""DescribeAcls: the ACLs that a filter selects, by the patterns of their resources."""

from collections import defaultdict

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import Acl, AclFilter, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

UNKNOWN = 0
"""Code that no field of a filter may have. As in Kafka, the connection is closed."""


def handle(serving: Serving, request: DescribeAclsRequest, exchange: Exchange) -> DescribeAclsResponse | None:
    """Answer from this node's copy."""
    if UNKNOWN in {
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    }:
        exchange.connection.refuse("DescribeAcls request with a filter whose type, operation or permission is UNKNOWN")
        return None
    if serving.acls is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
        )
    wanted = AclFilter(
        AclResourceType(request.resource_type_filter),
        request.resource_name_filter,
        PatternType(request.pattern_type_filter),
        request.principal_filter,
        request.host_filter,
        AclOperation(request.operation),
        Permission(request.permission_type),
    )
    found: dict[tuple[int, str, int], list[Acl]] = defaultdict(list)
    for acl in sorted(serving.acls.authorizer.acls):
        if wanted.matches(acl):
            found[acl.resource_type, acl.resource_name, acl.pattern_type].append(acl)
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=[
                    AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ],
            )
            for (resource_type, name, pattern_type), acls in found.items()
        ],
    )


def refusal(_request: DescribeAclsRequest, _version: int) -> DescribeAclsResponse:
    """Return the answer to a client that is not authorized."""
    return DescribeAclsResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)


API = declare(DescribeAclsRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE, refusal))
