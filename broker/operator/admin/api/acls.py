"""Access control lists, changed by the same requests that Kafka's tools send, with the rules of `anabranch acl`."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import (
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclResourceType,
    PatternType,
    Permission,
)
from anabranch.broker.kafka.acls.operations import CONSUMER, OPERATIONS, PRODUCER, check_operation, parse_principal
from anabranch.broker.kafka.acls.requests import create_request, delete_request, deleted_acls
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.node.settings.authorizer_area import super_users_of
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, check

ACLS_MAX: Final = 1000
"""ACLs of an answer, and of a request."""
ResourceType = Literal["topic", "group", "cluster", "transactional_id", "delegation_token", "user"]
Operation = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
    "create_tokens",
    "describe_tokens",
    "two_phase_commit",
]
Principal = Annotated[str, Field(min_length=1), AfterValidator(parse_principal)]
_ROLES: Final = {"producer": PRODUCER, "consumer": CONSUMER}


class AclRow(Model):
    """An ACL: who may do what to which resources, or may not, and from where."""

    principal: str
    host: str
    """An address; `*` for all."""
    permission: str
    operation: str
    resource_type: str
    resource: str
    """Name of the resource, or its beginning; `*` for all."""
    pattern: str
    """`literal` or `prefixed`."""


class AclEntry(Model):
    """An ACL of a request."""

    principal: Principal
    host: str
    permission: Literal["allow", "deny"]
    operation: Operation
    resource_type: ResourceType
    resource: str
    pattern: Literal["literal", "prefixed"]


class AclList(Model):
    """The ACLs that are selected."""

    authorizer: bool
    """False: there is no authorizer, so ACLs do not count, and every client may do everything."""
    super_users: list[str]
    """Principals that may do everything, whatever ACLs say."""
    acls: list[AclRow]
    more: bool
    operations: dict[str, list[str]]
    """Operations that ACLs can be about, by type of resource."""


class AclQuery(Model):
    """Parameters that select ACLs. What is not given matches all."""

    principal: Principal | None = None
    """Without a type it is a user."""
    host: str | None = None
    resource_type: ResourceType | None = None
    resource: str | None = None
    pattern: Literal["any", "match", "literal", "prefixed"] = "any"
    """Meaning of the resource's name; `match`: all ACLs that apply to the resource, also by prefix or `*`."""
    operation: Operation | None = None
    permission: Literal["allow", "deny"] | None = None

    def selected(self) -> AclFilter:
        """Return the filter, as Kafka's protocol has it."""
        return AclFilter(
            AclResourceType[(self.resource_type or "any").upper()],
            self.resource,
            PatternType[self.pattern.upper()],
            self.principal,
            self.host,
            AclOperation[(self.operation or "any").upper()],
            Permission[(self.permission or "any").upper()],
        )


class AclResource(Model):
    """Resources that ACLs are about."""

    type: ResourceType
    name: Annotated[str, Field(min_length=1)]
    """Name, or beginning of names; `*`: all. The cluster's name is `kafka-cluster`."""
    pattern: Literal["literal", "prefixed"] = "literal"


class AclCreation(Model):
    """ACLs to create: one for each resource and operation."""

    principal: Principal
    """Without a type it is a user."""
    host: Annotated[str, Field(min_length=1)] = WILDCARD
    permission: Literal["allow", "deny"] = "allow"
    resources: Annotated[list[AclResource], Field(min_length=1, max_length=50)]
    operations: list[Operation] = Field(default_factory=list)
    role: Literal["producer", "consumer"] | None = None
    """Instead of operations: those that a producer or consumer needs, as `anabranch acl add` has them."""
    validate_only: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.operations) == (self.role is not None):
            raise ValueError("either `operations` or a `role` is needed")
        for resource in self.resources:
            kind = AclResourceType[resource.type.upper()]
            if self.role is not None and kind not in _ROLES[self.role]:
                raise ValueError(f"a {self.role} needs no {kind.words}: give `operations` for it, in another request")
            for operation in self.operations:
                check_operation(kind, AclOperation[operation.upper()])
        return self

    def wanted(self) -> list[Acl]:
        """Return the ACLs, each once."""
        made = (
            Acl(
                kind,
                resource.name,
                PatternType[resource.pattern.upper()],
                self.principal,
                self.host,
                operation,
                Permission[self.permission.upper()],
            )
            for resource in self.resources
            for kind in [AclResourceType[resource.type.upper()]]
            for operation in self._operations(kind)
        )
        return list(dict.fromkeys(made))

    def _operations(self, kind: AclResourceType) -> Iterable[AclOperation]:
        if self.role is not None:
            return _ROLES[self.role][kind]
        return (AclOperation[each.upper()] for each in self.operations)


class AclDeletion(Model):
    """ACLs to delete: exactly these, as they were listed."""

    acls: Annotated[list[AclEntry], Field(min_length=1, max_length=ACLS_MAX)]
    validate_only: bool = False


class AclChanges(Model):
    """ACLs that were created or deleted, or that would be."""

    acls: list[AclRow]
    """Those that exist already, or do not exist, are left out."""


class AclEndpoints:
    """Endpoints of ACLs."""

    def __init__(self, serving: Serving, local: LocalRequests) -> None:
        self._serving = serving
        self._local = local
        path = "/acls"
        listed = "ACLs, of the whole cluster."
        self.endpoints = [
            Endpoint("GET", path, listed, self._list, AclList, query=AclQuery),
            Endpoint("POST", path, "Create ACLs.", self._create, AclChanges, body=AclCreation),
            Endpoint("POST", f"{path}/delete", "Delete ACLs.", self._delete, AclChanges, body=AclDeletion),
        ]

    async def _list(self, call: Call) -> AclList:
        store = self._serving.acls
        query: AclQuery = call.query
        selected = query.selected()
        found = [] if store is None else sorted(each for each in store.authorizer.acls if selected.matches(each))
        return AclList(
            authorizer=store is not None,
            super_users=list(super_users_of(self._serving.settings.authorizer)),
            acls=[_row(each) for each in found[:ACLS_MAX]],
            more=len(found) > ACLS_MAX,
            operations={
                kind.text: [each.text for each in (*operations, AclOperation.ALL)]
                for kind, operations in OPERATIONS.items()
            },
        )

    async def _create(self, call: Call) -> AclChanges:
        body: AclCreation = call.body
        present = self._store().authorizer.acls
        new = [each for each in body.wanted() if each not in present]
        if new and not body.validate_only:
            for result in (await self._local.call(create_request(new), call.user)).results:
                check(result.error_code, result.error_message)
        return AclChanges(acls=[_row(each) for each in new])

    async def _delete(self, call: Call) -> AclChanges:
        body: AclDeletion = call.body
        present = self._store().authorizer.acls
        named = list(dict.fromkeys(_acl(each) for each in body.acls))
        if body.validate_only:
            return AclChanges(acls=[_row(each) for each in named if each in present])
        answer = await self._local.call(delete_request(named), call.user)
        for result in answer.filter_results:
            check(result.error_code, result.error_message)
        return AclChanges(acls=[_row(each) for each in deleted_acls(named, answer)])

    def _store(self) -> ClusterAcls:
        """Return the ACLs. Raises ApiError if there is no authorizer."""
        if self._serving.acls is None:
            raise ApiError(HTTPStatus.CONFLICT, "there is no authorizer, so ACLs do not count: set authorizer.enabled")
        return self._serving.acls


def _row(acl: Acl) -> AclRow:
    return AclRow(
        principal=acl.principal,
        host=acl.host,
        permission=acl.permission.text,
        operation=acl.operation.text,
        resource_type=acl.resource_type.text,
        resource=acl.resource_name,
        pattern=acl.pattern_type.text,
    )


def _acl(entry: AclEntry) -> Acl:
    return Acl(
        AclResourceType[entry.resource_type.upper()],
        entry.resource,
        PatternType[entry.pattern.upper()],
        entry.principal,
        entry.host,
        AclOperation[entry.operation.upper()],
        Permission[entry.permission.upper()],
    )
