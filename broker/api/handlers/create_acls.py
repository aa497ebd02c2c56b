"""CreateAcls: add ACLs. An error of one does not affect the others; one that exists already succeeds."""

from collections.abc import Iterable
from typing import Final

from anabranch.broker.api.access.changes import Change, acl_text
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import CLUSTER_NAME, Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from anabranch.s3stream.errors import StorageError

UNKNOWN = 0
TEXT_MAX: Final = 4096
"""Longest name, principal and host. Kafka has no limit; ACLs are kept in memory by all nodes."""


async def handle(serving: Serving, request: CreateAclsRequest, exchange: Exchange) -> CreateAclsResponse | None:
    """Answer when they are in the catalog, and this node decides by them."""
    for creation in request.creations:
        codes = (
            creation.resource_type,
            creation.resource_pattern_type,
            creation.operation,
            creation.permission_type,
        )
        if UNKNOWN in codes:
            exchange.connection.refuse("CreateAcls request with a type, operation or permission that is UNKNOWN")
            return None
    if serving.acls is None:
        disabled = AclCreationResult(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
        )
        return CreateAclsResponse(results=[disabled] * len(request.creations))
    results: list[AclCreationResult] = []
    added: dict[int, Acl] = {}
    for creation in request.creations:
        try:
            added[len(results)] = _checked(creation)
        except KafkaError as error:
            results.append(_failure(error))
        else:
            results.append(AclCreationResult())
    if added:
        try:
            await serving.membership.catch_up()  # so that what other nodes have changed counts
            await serving.acls.alter(added=list(added.values()))
        except (KafkaError, StorageError) as error:
            for place in added:
                results[place] = _failure(error)
    return CreateAclsResponse(results=results)


def _failure(error: KafkaError | StorageError) -> AclCreationResult:
    if isinstance(error, KafkaError):
        return AclCreationResult(error_code=error.code, error_message=error.message)
    return AclCreationResult(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error))


def _checked(creation: AclCreation) -> Acl:
    """Return the ACL. Raises INVALID_REQUEST, with Kafka's messages."""
    acl = Acl(
        AclResourceType(creation.resource_type),
        creation.resource_name,
        PatternType(creation.resource_pattern_type),
        creation.principal,
        creation.host,
        AclOperation(creation.operation),
        Permission(creation.permission_type),
    )
    message = None
    if acl.resource_type is AclResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        message = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        message = "Invalid empty resource name"
    elif acl.resource_type <= AclResourceType.ANY:
        message = f"Invalid resourceType {acl.resource_type.name}"
    elif acl.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        message = f"Invalid patternType {acl.pattern_type.name}"
    elif acl.operation <= AclOperation.ANY:
        message = f"Invalid operation {acl.operation.name}"
    elif acl.permission not in {Permission.DENY, Permission.ALLOW}:
        message = f"Invalid permissionType {acl.permission.name}"
    elif ":" not in acl.principal:
        message = (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    elif max(len(acl.resource_name), len(acl.principal), len(acl.host)) > TEXT_MAX:
        message = f"Resource name, principal and host may have {TEXT_MAX} characters."
    if message is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return acl


def refusal(request: CreateAclsRequest, _version: int) -> CreateAclsResponse:
    """Return the answer to a client that is not authorized."""
    result = AclCreationResult(error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)
    return CreateAclsResponse(results=[result] * len(request.creations))


def _changes(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterable[Change]:
    for asked, result in zip(request.creations, response.results, strict=True):
        text = acl_text(
            asked.resource_type,
            asked.resource_pattern_type,
            asked.resource_name,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
        yield Change("ACL", text, result.error_code)


API = declare(CreateAclsRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal), changes=_changes)
