"""Requests about ACLs, as commands and the admin API send them, and what the answers say."""

from collections.abc import Iterable, Sequence

from anabranch.broker.kafka.acls.model import Acl
from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse


def create_request(acls: Iterable[Acl]) -> CreateAclsRequest:
    """Return the request that adds ACLs. The answer has a result for each of them, in this order."""
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                resource_pattern_type=each.pattern_type,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in acls
        ]
    )


def delete_request(acls: Iterable[Acl]) -> DeleteAclsRequest:
    """Return the request that removes exactly these ACLs."""
    return DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.resource_name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in acls
        ]
    )


def deleted_acls(acls: Iterable[Acl], answer: DeleteAclsResponse) -> Sequence[Acl]:
    """Return those of the ACLs of `delete_request` that were still there."""
    return [each for each, result in zip(acls, answer.filter_results, strict=True) if result.matching_acls]
