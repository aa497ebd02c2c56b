"""DeleteAcls: remove the ACLs that filters select, and answer with them."""

from collections.abc import Iterable
from typing import Final

from anabranch.broker.api.access.changes import Change, acl_text
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclFilter, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from anabranch.s3stream.errors import StorageError

UNKNOWN = 0
REMOVED_MAX: Final = 10_000
"""ACLs that one request may remove, as in Kafka."""


async def handle(serving: Serving, request: DeleteAclsRequest, exchange: Exchange) -> DeleteAclsResponse | None:
    """Answer when they are gone from the catalog, and this node decides without them."""
    for each in request.filters:
        if UNKNOWN in {each.resource_type_filter, each.pattern_type_filter, each.operation, each.permission_type}:
            exchange.connection.refuse(
                "DeleteAcls request with a filter whose type, operation or permission is UNKNOWN"
            )
            return None
    if serving.acls is None:
        return _failed(request, ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    try:
        await serving.membership.catch_up()  # an ACL that another node has just created is deleted, too
        present = sorted(serving.acls.authorizer.acls)
        selected = [_filter_of(each) for each in request.filters]
        found = [[acl for acl in present if each.matches(acl)] for each in selected]
        removed = {acl for each in found for acl in each}
        if len(removed) > REMOVED_MAX:
            return _failed(
                request,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Cannot remove more than {REMOVED_MAX} acls in a single delete operation.",
            )
        await serving.acls.alter(removed=removed)
    except KafkaError as error:
        return _failed(request, error.code, error.message)
    except StorageError as error:
        return _failed(request, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return DeleteAclsResponse(
        filter_results=[
            _failure(ErrorCode.INVALID_REQUEST, _reason(each))
            if each.is_unknown
            else DeleteAclsFilterResult(
                error_message=None,
                matching_acls=[
                    DeleteAclsMatchingAcl(
                        error_message=None,
                        resource_type=acl.resource_type,
                        resource_name=acl.resource_name,
                        pattern_type=acl.pattern_type,
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ],
            )
            for each, acls in zip(selected, found, strict=True)
        ]
    )


def _filter_of(requested: DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        AclResourceType(requested.resource_type_filter),
        requested.resource_name_filter,
        PatternType(requested.pattern_type_filter),
        requested.principal_filter,
        requested.host_filter,
        AclOperation(requested.operation),
        Permission(requested.permission_type),
    )


def _reason(selected: AclFilter) -> str:
    of_pattern = not (selected.resource_type and selected.pattern_type)
    return "Unknown patternFilter." if of_pattern else "Unknown entryFilter."


def _failure(code: ErrorCode, message: str) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


def _failed(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[_failure(code, message)] * len(request.filters))


def refusal(request: DeleteAclsRequest, _version: int) -> DeleteAclsResponse:
    """Return the answer to a client that is not authorized."""
    result = DeleteAclsFilterResult(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


def _changes(_request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterable[Change]:
    for result in response.filter_results:
        if result.error_code:
            yield Change("ACL", "", result.error_code)
        for each in result.matching_acls:
            text = acl_text(
                each.resource_type,
                each.pattern_type,
                each.resource_name,
                each.principal,
                each.host,
                each.operation,
                each.permission_type,
            )
            yield Change("ACL", text, each.error_code)


API = declare(DeleteAclsRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal), changes=_changes)
