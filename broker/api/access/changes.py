"""Audit events of requested changes: one for each resource, whether it was changed or not."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from anabranch.broker.api.access.guard import HandlerFunction, amending
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode


class Change(NamedTuple):
    """A resource that was to be changed, and the outcome."""

    resource_type: str
    resource: str
    error_code: int


Request = TypeVar("Request")
Changes = Callable[[Request, Any], Iterable[Change]]
"""Returns what a request was to change, from request and response."""
Subject = Callable[[Serving, Request], str]
"""Looks up the changed resource before a request is handled that does not name it."""


def acl_text(
    resource_type: int, pattern_type: int, name: str, principal: str, host: str, operation: int, permission: int
) -> str:
    """Return an ACL as audit events name it."""
    pattern = f"{AclResourceType(resource_type).name} {PatternType(pattern_type).name} {name}"
    return f"{Permission(permission).name} {principal} at {host} {AclOperation(operation).name} on {pattern}"


def recording(
    api: str, function: HandlerFunction[Any], changes: Changes[Any], subject_of: Subject[Any] | None
) -> HandlerFunction[Any]:
    """Return a handler that records the changes."""

    def handle(serving: Serving, request: Any, exchange: Exchange) -> Any:
        if not getattr(request, "validate_only", False):
            subject = "" if subject_of is None else subject_of(serving, request)
            exchange.amend = amending(
                serving,
                exchange,
                lambda response: _recorded(serving, request, exchange, response, subject),
                exchange.amend,
            )
        return function(serving, request, exchange)

    def _recorded(serving: Serving, request: Any, exchange: Exchange, response: Any, subject: str) -> Any:
        found = (change._replace(resource=change.resource or subject) for change in changes(request, response))
        record(serving, exchange, api, found)
        return response

    return handle


def record(serving: Serving, exchange: Exchange, api: str, changes: Iterable[Change]) -> None:
    """Record changes that were made, or refused, for a request of this API."""
    connection = exchange.connection
    for change in changes:
        serving.audit.record(
            "changed" if not change.error_code else "change refused",
            principal=connection.principal,
            host=connection.host,
            api=api,
            resource_type=change.resource_type,
            resource=change.resource,
            outcome=ErrorCode(change.error_code).name if change.error_code else "OK",
        )
