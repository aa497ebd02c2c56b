"""Tables of topics: what the catalog has of them, what is missing, and their end.

A topic that is to be a table is listed before its first commit, too: the reason why there is none is shown there.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

from pydantic import Field

from anabranch.broker.api.handlers.leadership import NO_LEADER
from anabranch.broker.api.handlers.list_offsets import EARLIEST, LATEST, READ_COMMITTED
from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.table import is_enabled
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.api.calls import Calls, Partition
from anabranch.broker.operator.admin.api.cluster import may_read_records
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, check
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.topics import PARTITIONS_MAX, partitions_of
from anabranch.broker.operator.admin.table_metadata import (
    current_fields,
    location_of,
    metadata_key,
    read_metadata,
    type_text,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.internal.commit_table import CommitTableRequest
from anabranch.protocol.messages.internal.describe_tables import DescribeTablesRequest, LiveTable
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import (
    OffsetBounds,
    TableFile,
    TableInfo,
    TableState,
    TableTotals,
)
from anabranch.s3stream.errors import NotFound
from anabranch.spelling import near_text
from anabranch.tables.upkeep.options import ENABLE

TABLES_MAX: Final = 1000
TOPICS_PIECE: Final = 100
"""Tables that one request asks a committer about."""
POLL_S: Final = 0.1
ASK_AGAIN_S: Final = 1.0
PAGE: Final = 100
PAGE_MAX: Final = 1000
_SET: Final = 0
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX)]
SnapshotId = Annotated[
    str, Field(description="Iceberg's 64-bit integer as text: JavaScript and others round such numbers.")
]


class TableRow(Model):
    """A table in a list."""

    name: str
    topic: str | None
    """Null if the topic that it was made for is deleted or detached."""
    table_id: str | None
    """Iceberg's UUID; null before it is created."""
    enabled: bool
    """True if committed records of the topic become rows: its config `table.enable`."""
    committer: int | None
    """Node that commits it, which leads the topic's first partition."""
    version: int
    """Number of its commits."""
    snapshot_id: SnapshotId | None
    committed_ms: int | None
    """Time of the current snapshot."""
    rows: int
    files: int
    bytes: int
    snapshots: int
    """Snapshots that can be read."""
    lag: int | None
    """Offsets of committed records that are not in the table yet; null if some leader has not answered."""
    lag_ms: int | None
    """Time for which the oldest of them has waited, at most; null if the committer does not know it."""
    error_rows: int | None
    """Rows with an error since the committer has taken the table; null if it has not answered."""
    last_error: str | None
    """Reason why the committer's last round failed."""


class TableList(Model):
    """All tables, and topics that are to be some."""

    tables: list[TableRow]
    more: bool
    unreachable: list[int]


class Column(Model):
    """A column of a table."""

    id: int
    name: str
    type: str
    """Iceberg's type: `string`, `struct<a: long>`."""
    required: bool


class TablePartition(Model):
    """Offsets of a partition."""

    partition: int
    start_offset: int
    """First offset that the table has."""
    end_offset: int
    """One past the last offset that the table has."""
    topic_end_offset: int | None
    """The partition's last stable offset; null if its leader has not answered."""
    lag: int | None


class TablePublication(Model):
    """An entry of a table in another catalog."""

    catalog: str
    """Its name in the settings of the nodes."""
    version: int | None
    """Version of the table that it shows; null if the committer does not know it."""
    snapshot_id: SnapshotId | None
    """Snapshot of that version; null if it is not known, or has expired here."""
    lag_ms: int
    """Time for which it has lacked a version; 0 if it lacks none."""
    error: str | None
    """Reason why the last attempt failed."""


class TableDescription(TableRow):
    """A table."""

    location: str | None
    """URI of its files; null if the node that is asked does not have their store."""
    metadata_location: str | None
    """URI of its metadata.json, for engines."""
    publication: TablePublication | None
    """Null if its topic has no `table.publish`, or its committer has not answered."""
    columns: list[Column]
    partitions: list[TablePartition]
    reasons: list[str]
    """Some of the errors of rows, each once. They quote values: none for those who may not see what records contain."""
    unreachable: list[int]


class SnapshotRow(Model):
    """A snapshot that can be read."""

    snapshot_id: SnapshotId
    version: int
    """Commit that has made it."""
    committed_ms: int
    operation: str | None
    """append, replace, overwrite or delete."""
    summary: dict[str, str]
    """Counts, as Iceberg names them: `added-records`, `total-records`, ..."""


class SnapshotQuery(Model):
    """Parameters of a list of snapshots."""

    limit: Limit = PAGE


class SnapshotList(Model):
    """The newest snapshots, newest first."""

    snapshots: list[SnapshotRow]
    more: bool


class FileQuery(Model):
    """Place of a page: the partition and the offset that it begins with."""

    partition: Annotated[int, Field(ge=0)] = 0
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Limit = PAGE


class FileRow(Model):
    """A data file of the current snapshot."""

    partition: int
    start_offset: int
    end_offset: int
    rows: int
    bytes: int
    version: int
    """Commit that has added it."""
    committed_ms: int
    location: str | None


class FilePlace(Model):
    """Place of the next page."""

    partition: int
    offset: int


class FileList(Model):
    """A page of data files, by partition and offset."""

    files: list[FileRow]
    next: FilePlace | None
    """Null after the last page."""


class CommitQuery(Model):
    """Parameters of an ordered commit."""

    timeout_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 60_000
    """Longest time to wait."""


class CommittedTable(Model):
    """A table with all that was committed in its topic when the commit was ordered."""

    name: str
    version: int
    snapshot_id: SnapshotId | None
    metadata_location: str | None
    rows: int
    files: int
    bytes: int


class DropQuery(Model):
    """Parameters of a drop."""

    table_id: UUID | None = None
    """Drop no other table that has the name: so a drop can be repeated when its answer is lost."""
    keep_files: bool = False
    """Leave the files in the store, where nothing looks after them any more."""
    validate_only: bool = False


class DroppedTable(Model):
    """A table that was dropped, or that would be."""

    name: str
    table_id: str | None
    """Iceberg's UUID; null if there was none yet."""
    disabled_topic: str | None
    """Topic whose `table.enable` is false from now on."""
    rows: int
    files: int
    bytes: int
    keep_files: bool


class _Named(NamedTuple):
    """Holders of a table's name: the table, its topic or the one that is to be a table, or both."""

    name: str
    info: TableInfo | None
    topic: Topic | None

    @property
    def enabled(self) -> bool:
        return self.topic is not None and is_enabled(self.topic.info.configs)


class _Ends(NamedTuple):
    """Starts and last stable offsets of partitions, and the nodes that have not answered."""

    starts: Mapping[Partition, int]
    stable: Mapping[Partition, int]
    unreachable: frozenset[int]


class _Live(NamedTuple):
    """State of tables at their committers, by topic, and the nodes that have not answered."""

    tables: Mapping[str, LiveTable]
    unreachable: frozenset[int]


class TableEndpoints:
    """Endpoints of tables."""

    def __init__(self, node: Node, calls: Calls, offsets: Offsets, local: LocalRequests) -> None:
        self._node = node
        self._calls = calls
        self._offsets = offsets
        self._local = local
        path = "/tables/{table}"
        commit = "Upload and commit what a table lacks, and wait for it."
        drop = "Drop a table, and make no rows of its topic any more."
        self.endpoints = [
            Endpoint("GET", "/tables", "All tables.", self._list, TableList),
            Endpoint("GET", path, "One table.", self._describe, TableDescription),
            Endpoint("DELETE", path, drop, self._drop, DroppedTable, query=DropQuery),
            Endpoint(
                "POST", f"{path}/commit", commit, self._commit, CommittedTable, query=CommitQuery, is_limited=False
            ),
            Endpoint("GET", f"{path}/snapshots", "Its snapshots.", self._snapshots, SnapshotList, query=SnapshotQuery),
            Endpoint("GET", f"{path}/files", "Its data files.", self._files, FileList, query=FileQuery),
        ]

    @property
    def _serving(self) -> Serving:
        return self._node.serving

    @property
    def _tables(self) -> TableCatalog:
        return self._node.serving.catalog.tables

    # which there are

    async def _named(self) -> dict[str, _Named]:
        """Return tables, and topics that are to be some, by name."""
        topics = self._serving.topics
        found = {each.name: _Named(each.name, None, each) for each in topics if is_enabled(each.info.configs)}
        for info in await self._tables.list():
            topic = topics.get(info.topic_id)
            found[info.name] = _Named(info.name, info, topic)
        return found

    async def _find(self, name: str) -> _Named:
        named = await self._named()
        found = named.get(name)
        if found is None:
            reason = near_text(name, named)
            if not reason and self._serving.topics.get(name) is not None:
                reason = f": its topic has {ENABLE}=false"
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no table {name!r}{reason}")
        return found

    async def _found_table(self, name: str) -> TableInfo:
        """Return a table that exists in the catalog."""
        found = await self._find(name)
        if found.info is None:
            raise ApiError(HTTPStatus.CONFLICT, f"table {name} has no commit yet")
        return found.info

    # reading

    async def _list(self, call: Call) -> TableList:
        named = sorted((await self._named()).values())
        shown = named[:TABLES_MAX]
        totals = await self._tables.count_data()
        ends = await self._ends((each.topic for each in shown if each.topic is not None), call.user)
        live = await self._live(shown, call.user)
        rows = [TableRow(**self._row(each, await self._state(each), totals, ends, live)) for each in shown]
        return TableList(
            tables=rows, more=len(named) > len(shown), unreachable=sorted(ends.unreachable | live.unreachable)
        )

    async def _state(self, named: _Named) -> TableState | None:
        try:
            return None if named.info is None else await self._tables.read(named.info.table_id)
        except NotFound:
            return None  # it was dropped meanwhile

    async def _live(self, named: Iterable[_Named], user: User) -> _Live:
        """Ask the committers of tables."""
        wanted: dict[int, list[str]] = {}
        for each in named:
            topic = each.topic or self._serving.topics.get(each.name)  # one that has to wait for the name
            if topic is not None and (leader := self._calls.leader_of(topic.name, 0)) != NO_LEADER:
                wanted.setdefault(leader, []).append(topic.name)
        answers, unreachable = await self._calls.ask_in_pieces(
            wanted, lambda topics: DescribeTablesRequest(topics=topics), TOPICS_PIECE, user
        )
        return _Live({each.topic: each for answer in answers for each in answer.tables}, unreachable)

    def _row(
        self,
        named: _Named,
        state: TableState | None,
        totals: Mapping[bytes, TableTotals],
        ends: _Ends,
        live: _Live,
    ) -> dict[str, Any]:
        """Return the fields of a row."""
        topic, info = named.topic, named.info if state is None else state.info
        leader = NO_LEADER if topic is None else self._calls.leader_of(topic.name, 0)
        counted = TableTotals() if info is None else totals.get(info.table_id, TableTotals())
        snapshots = () if state is None else state.snapshots
        lags = [each.lag for each in _partitions(topic, state, ends)]
        lag = sum(each for each in lags if each is not None) if None not in lags else None
        known = live.tables.get(named.name if topic is None else topic.name)
        return {
            "name": named.name,
            "topic": None if topic is None else topic.name,
            "table_id": _uuid_text(info),
            "enabled": named.enabled,
            "committer": None if leader == NO_LEADER else leader,
            "version": 0 if info is None else info.version,
            "snapshot_id": None if info is None else _id_text(info.snapshot_id),
            "committed_ms": snapshots[-1].committed_ms if snapshots else None,
            "rows": counted.records,
            "files": counted.files,
            "bytes": counted.size_bytes,
            "snapshots": len(snapshots),
            "lag": lag,
            "lag_ms": 0 if lag == 0 else self._waited_ms(known),
            "error_rows": None if known is None else known.errors,
            "last_error": None if known is None else known.last_error or None,
        }

    def _waited_ms(self, known: LiveTable | None) -> int | None:
        return max(0, self._serving.now_ms() - known.complete_ms) if known is not None and known.complete_ms else None

    async def _ends(self, topics: Iterable[Topic], user: User) -> _Ends:
        keys = [key for topic in topics for key in partitions_of(topic)][:PARTITIONS_MAX]
        starts = await self._offsets.at(keys, EARLIEST, user)
        stable = await self._offsets.at(keys, LATEST, user, READ_COMMITTED)
        return _Ends(starts.offsets, stable.offsets, starts.unreachable | stable.unreachable)

    async def _describe(self, call: Call) -> TableDescription:
        named = await self._find(call.path["table"])
        state = await self._state(named)
        ends = await self._ends([] if named.topic is None else [named.topic], call.user)
        live = await self._live([named], call.user)
        row = self._row(named, state, await self._tables.count_data(), ends, live)
        known = live.tables.get(named.name if named.topic is None else named.topic.name)
        info = None if state is None else state.info
        metadata = None if info is None else await read_metadata(self._node.stores, info)
        key = None if info is None else metadata_key(info)
        return TableDescription(
            **row,
            location=None if info is None else location_of(self._node.stores, info, info.location),
            metadata_location=None if info is None or key is None else location_of(self._node.stores, info, key),
            publication=None if known is None or not known.catalog else self._publication(known, state),
            columns=[
                Column(id=each["id"], name=each["name"], type=type_text(each["type"]), required=each["required"])
                for each in (() if metadata is None else current_fields(metadata))
            ],
            partitions=_partitions(named.topic, state, ends),
            reasons=list(known.reasons) if known is not None and may_read_records(self._serving, call) else [],
            unreachable=sorted(ends.unreachable | live.unreachable),
        )

    def _publication(self, known: LiveTable, state: TableState | None) -> TablePublication:
        since_ms = known.lacking_since_ms
        shown = [each for each in (() if state is None else state.snapshots) if each.version <= known.published_version]
        return TablePublication(
            catalog=known.catalog,
            version=known.published_version or None,
            snapshot_id=str(shown[-1].snapshot_id) if shown else None,
            lag_ms=max(0, self._serving.now_ms() - since_ms) if since_ms else 0,
            error=known.publish_error or None,
        )

    async def _snapshots(self, call: Call) -> SnapshotList:
        info = await self._found_table(call.path["table"])
        state = await self._tables.read(info.table_id)
        metadata = await read_metadata(self._node.stores, state.info) or {}
        summaries = {each["snapshot-id"]: each.get("summary", {}) for each in metadata.get("snapshots", ())}
        newest = state.snapshots[::-1]
        rows = []
        for each in newest[: call.query.limit]:
            summary = dict(summaries.get(each.snapshot_id, {}))
            operation = summary.pop("operation", None)
            rows.append(
                SnapshotRow(
                    snapshot_id=str(each.snapshot_id),
                    version=each.version,
                    committed_ms=each.committed_ms,
                    operation=operation,
                    summary=summary,
                )
            )
        return SnapshotList(snapshots=rows, more=len(newest) > len(rows))

    async def _files(self, call: Call) -> FileList:
        info = await self._found_table(call.path["table"])
        state, query = await self._tables.read(info.table_id), call.query
        found: list[TableFile] = []
        offset = query.offset
        for index in sorted(index for index in state.bounds if index >= query.partition):
            left = query.limit + 1 - len(found)
            if index != query.partition:
                offset = 0
            found += await self._tables.list_data_files(info.table_id, index, start_offset=offset, limit=left)
            if len(found) > query.limit:
                break
        shown, following = found[: query.limit], found[query.limit :]
        place = FilePlace(partition=following[0].idx, offset=following[0].start_offset) if following else None
        return FileList(files=[self._file(info, each) for each in shown], next=place)

    def _file(self, info: TableInfo, file: TableFile) -> FileRow:
        return FileRow(
            partition=file.idx,
            start_offset=file.start_offset,
            end_offset=file.end_offset,
            rows=file.record_count,
            bytes=file.size_bytes,
            version=file.added,
            committed_ms=file.committed_ms,
            location=location_of(self._node.stores, info, file.file_key),
        )

    # changes

    async def _commit(self, call: Call) -> CommittedTable:
        named, timeout_s = await self._find(call.path["table"]), call.query.timeout_ms / 1000
        topic = named.topic
        if topic is None or not named.enabled:
            why = f"its topic has {ENABLE}=false" if topic is not None else "its topic is deleted or detached"
            raise ApiError(HTTPStatus.CONFLICT, f"no rows are added to table {named.name}: {why}")
        ends = await self._ends([topic], call.user)
        if any(key not in ends.stable or key not in ends.starts for key in partitions_of(topic)):
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"some leaders of {topic.name} have not answered: try again")
        targets = {key[1]: end for key, end in ends.stable.items() if end > ends.starts[key]}
        clock = asyncio.get_running_loop().time
        began_s = asked_s = clock()
        await self._hurry(topic, call.user)
        while (state := await self._complete(topic, targets)) is None:
            if clock() > began_s + timeout_s:
                reason = f"table {topic.name} still lacks records after {timeout_s:g} s"
                raise ApiError(HTTPStatus.GATEWAY_TIMEOUT, f"{reason}: see `anabranch table describe {topic.name}`")
            if clock() > asked_s + ASK_AGAIN_S:
                reason = await self._reason(topic, call.user)
                if reason:
                    raise ApiError(HTTPStatus.CONFLICT, f"table {topic.name} waits: {reason}")
                await self._hurry(topic, call.user)
                asked_s = clock()
            await asyncio.sleep(POLL_S)
        info, key = state.info, metadata_key(state.info)
        totals = (await self._tables.count_data()).get(info.table_id, TableTotals())
        return CommittedTable(
            name=info.name,
            version=info.version,
            snapshot_id=_id_text(info.snapshot_id),
            metadata_location=None if key is None else location_of(self._node.stores, info, key),
            rows=totals.records,
            files=totals.files,
            bytes=totals.size_bytes,
        )

    async def _hurry(self, topic: Topic, user: User) -> None:
        """Have all leaders upload the topic's records, and its committer commit them."""
        leaders = {self._calls.leader_of(*key) for key in partitions_of(topic)} - {NO_LEADER}
        await self._calls.call_each(leaders, lambda _: CommitTableRequest(topic=topic.name), user)

    async def _reason(self, topic: Topic, user: User) -> str:
        """Return why the committer's last round failed; empty: it did not."""
        found = (await self._live([_Named(topic.name, None, topic)], user)).tables.get(topic.name)
        return "" if found is None else found.last_error

    async def _complete(self, topic: Topic, targets: Mapping[int, int]) -> TableState | None:
        """Return the table if it has the records of all partitions up to these offsets."""
        info = await self._tables.of_topic(topic.topic_id)
        if info is None or not info.metadata_file:
            return None
        state = await self._tables.read(info.table_id)
        none = OffsetBounds(0, 0)
        is_complete = all(state.bounds.get(index, none).end_offset >= end for index, end in targets.items())
        return state if is_complete else None

    async def _drop(self, call: Call) -> DroppedTable:
        named, query = await self._find(call.path["table"]), call.query
        info, topic = named.info, named.topic if named.enabled else None
        if query.table_id is not None and (info is None or UUID(bytes=info.table_id) != query.table_id):
            there = "" if info is None else f": the one of this name has the id {_uuid_text(info)}"
            raise ApiError(
                HTTPStatus.NOT_FOUND, f"there is no table {named.name!r} with the id {query.table_id}{there}"
            )
        if topic is not None:  # first: its committer would make the table anew, or has just made it
            await self._disable(topic, call.user, validate_only=query.validate_only)
            if query.table_id is None:
                info = await self._tables.of_topic(topic.topic_id)
        totals = TableTotals() if info is None else (await self._tables.count_data()).get(info.table_id, TableTotals())
        if info is not None and not query.validate_only:
            now_ms = self._serving.now_ms()
            delete_after_ms = now_ms + self._serving.settings.storage.delete_delay_ms
            await self._tables.drop(
                info.table_id, keep_files=query.keep_files, now_ms=now_ms, delete_after_ms=delete_after_ms
            )
        return DroppedTable(
            name=named.name,
            table_id=_uuid_text(info),
            disabled_topic=None if topic is None else topic.name,
            rows=totals.records,
            files=totals.files,
            bytes=totals.size_bytes,
            keep_files=query.keep_files,
        )

    async def _disable(self, topic: Topic, user: User, *, validate_only: bool) -> None:
        change = AlterableConfig(name=ENABLE, config_operation=_SET, value="false")
        resource = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=topic.name, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (result,) = (await self._local.call(request, user)).responses
        check(result.error_code, result.error_message)


def _uuid_text(info: TableInfo | None) -> str | None:
    """Return Iceberg's UUID of a table; None if there is no table."""
    return None if info is None else str(UUID(bytes=info.table_id))


def _id_text(snapshot_id: int) -> str | None:
    """Return the id of a table's current snapshot; None if there is none."""
    return str(snapshot_id) if snapshot_id else None


def _partitions(topic: Topic | None, state: TableState | None, ends: _Ends) -> list[TablePartition]:
    """Return the partitions of a table, or those that it is to have."""
    bounds: Mapping[int, OffsetBounds] = {} if state is None else state.bounds
    keys: Sequence[Partition] = () if topic is None else partitions_of(topic)
    found = []
    for index in sorted({*bounds, *(index for _, index in keys)}):
        key = ("" if topic is None else topic.name, index)
        start, stable = ends.starts.get(key), ends.stable.get(key)
        own = bounds.get(index) or OffsetBounds(start or 0, start or 0)
        behind = None if stable is None else max(0, stable - max(own.end_offset, start or 0))
        found.append(
            TablePartition(
                partition=index,
                start_offset=own.start_offset,
                end_offset=own.end_offset,
                topic_end_offset=stable,
                lag=0 if topic is None else behind,
            )
        )
    return found
