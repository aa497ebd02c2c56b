"""Requests of nodes about tables that others commit, or whose records others have not uploaded yet."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import Handler, declare
from anabranch.protocol.messages.internal.commit_table import CommitTableRequest, CommitTableResponse
from anabranch.protocol.messages.internal.describe_tables import (
    DescribeTablesRequest,
    DescribeTablesResponse,
    LiveTable,
)

if TYPE_CHECKING:
    from anabranch.tables.upkeep.status import TableStatus

REASON_CHARACTERS_MAX: Final = 300


def table_handlers(statuses: "Callable[[], Sequence[TableStatus]]", hurry: Callable[[str], None]) -> Sequence[Handler]:
    """Return the handlers of DescribeTables and CommitTable.

    `statuses` returns the tables that this node commits; `hurry` begins to upload and commit a topic's records. They
    are relayed, so that a node of an earlier version says that it does not know them, instead of closing the link.
    """

    def describe(request: DescribeTablesRequest) -> DescribeTablesResponse:
        wanted = set(request.topics)
        return DescribeTablesResponse(tables=[_committed(each) for each in statuses() if each.topic in wanted])

    def commit(request: CommitTableRequest) -> CommitTableResponse:
        hurry(request.topic)
        return CommitTableResponse()

    return [
        declare(DescribeTablesRequest, lambda _, request, __: describe(request), guard=open_to_all, relayed=True),
        declare(CommitTableRequest, lambda _, request, __: commit(request), guard=open_to_all, relayed=True),
    ]


def _committed(status: "TableStatus") -> LiveTable:
    there = status.publication
    return LiveTable(
        topic=status.topic,
        complete_ms=status.complete_ms,
        errors=status.errors,
        reasons=[reason[:REASON_CHARACTERS_MAX] for reason in status.reasons],
        last_error=status.last_error[:REASON_CHARACTERS_MAX],
        catalog="" if there is None else there.catalog,
        published_version=0 if there is None else there.version,
        lacking_since_ms=0 if there is None else there.lacking_since_ms,
        publish_error="" if there is None else there.error[:REASON_CHARACTERS_MAX],
    )
