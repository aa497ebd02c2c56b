"""The newest audit events of this node: what its memory has of the audit log."""

from http import HTTPStatus
from itertools import islice
from typing import Annotated, Final

from pydantic import Field

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.logging.audit import AuditEvent
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model

LIMIT_MAX: Final = 1000
REFUSAL: Final = "only operators may see the audit log"


class AuditQuery(Model):
    """Parameters that select events. Texts are parts of what they are compared with, whatever their case."""

    event: str = ""
    """The kind, whole: `changed`, `change refused`, `denied`, `authentication failed` or `records read`."""
    principal: str = ""
    """Principal that asked, or the name that somebody gave who could not authenticate himself."""
    operation: str = ""
    """Request: an API of Kafka's protocol with the operation that it needs, or a request to the admin port."""
    resource: str = ""
    """Type and name of the resource."""
    outcome: str = ""
    """`OK`, an error, or the reason of a refusal."""
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 200


class AuditRow(Model):
    """An event. What does not apply to its kind is null."""

    number: int
    """1 for the first event since the start of the node."""
    at_ms: int
    event: str
    principal: str | None
    host: str | None
    listener: str | None
    operation: str | None
    resource: str | None
    outcome: str | None
    left_out: int
    """Events of its kind that were not recorded, since there were too many just before it."""


class AuditList(Model):
    """The newest events that are selected, the newest first."""

    node_id: int
    """The node whose memory they are from. Other nodes have their own."""
    events: list[AuditRow]
    more: bool


class AuditEndpoints:
    """Endpoint of audit events."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        summary = "The newest audit events in the memory of the node that is asked, for operators."
        self.endpoints = [Endpoint("GET", "/audit", summary, self._list, AuditList, query=AuditQuery)]

    async def _list(self, call: Call) -> AuditList:
        if not call.may_operate:
            known = {"principal": call.user.principal, "host": call.user.host, "listener": "admin"}
            self._serving.audit.record("denied", **known, action="GET /api/v1/audit", reason=REFUSAL)
            raise ApiError(HTTPStatus.FORBIDDEN, REFUSAL)
        query: AuditQuery = call.query
        wanted = (row for row in map(_row, self._serving.audit.newest()) if _is_wanted(query, row))
        rows = list(islice(wanted, query.limit + 1))
        return AuditList(node_id=self._serving.node_id, events=rows[: query.limit], more=len(rows) > query.limit)


def _row(event: AuditEvent) -> AuditRow:
    fields = event.fields

    def joined(*names: str) -> str | None:
        return " ".join(fields[name] for name in names if fields.get(name)) or None

    return AuditRow(
        number=event.number,
        at_ms=event.at_ms,
        event=event.event,
        principal=joined("principal", "user"),
        host=joined("host"),
        listener=joined("listener"),
        operation=joined("api", "operation", "action", "mechanism"),
        resource=joined("resource_type", "resource"),
        outcome=joined("outcome", "reason"),
        left_out=event.left_out,
    )


def _is_wanted(query: AuditQuery, row: AuditRow) -> bool:
    return query.event in {"", row.event} and all(
        wanted.lower() in (found or "").lower()
        for wanted, found in (
            (query.principal, row.principal),
            (query.operation, row.operation),
            (query.resource, row.resource),
            (query.outcome, row.outcome),
        )
    )
