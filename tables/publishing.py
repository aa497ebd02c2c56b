"""Tables in other catalogs of Iceberg: the current version of a table is put there, and taken away again.

Both kinds move from one version to the next in one step, on the condition that the catalog still has what was read from
it: readers see the one or the other, and nobody else's change is lost.

    jdbc    the row of the table points to our own metadata.json
    rest    the catalog has metadata of its own, to which the missing schemas and snapshots are added, and from which
            expired snapshots are removed. What we note in a snapshot grows with partitions, and nobody shortens it
            there later: the table's properties have it, of the current snapshot alone

What is there is known by its names: those of files in the folder of the table are made by its nodes alone, and their
ids grow. A version that is older than what the catalog has is refused: another node was faster, and this one finds the
next version at its next attempt, or the cluster's own catalog was restored from an earlier state.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    NoSuchTableError,
    OAuthError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import AssertCreate, AssertRefSnapshotId, AssertTableUUID, TableRequirement, TableUpdate
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import URL, ColumnElement, delete, insert, make_url, select, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from anabranch.tables.errors import ExternalCatalogError, ForeignTableError, PublishError
from anabranch.tables.publication import ExternalCatalog, Place, Publish, Withdraw
from anabranch.tables.snapshots import NOTES, OFFSETS, OFFSETS_OF, TOPIC_ID

HTTP_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10
STATEMENT_TIMEOUT_MS: Final = 30_000
LAST_ADDED: Final = -1
"""Iceberg's name for the schema, specification or order that the same commit has added last."""
PROPERTIES: Final[Mapping[str, str]] = {
    # Files belong to the nodes: engines neither purge them with the table nor look for orphans.
    "gc.enabled": "false",
    # Metadata is written by the catalog with each commit. These are its own files.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
Update = Mapping[str, Any]
"""An update of a table's metadata, by the names of the REST specification."""
_UPDATES: Final = TypeAdapter(tuple[TableUpdate, ...])
_AWAY: Final = (
    RequestException,
    OperationalError,
    InterfaceError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    AuthorizationExpiredError,
    OAuthError,
)
"""Errors that each table of the catalog would have."""
_DELEGATION: Final = "X-Iceberg-Access-Delegation"


def publish(request: Publish) -> None:
    """Let a catalog show a version of a table.

    Raises ForeignTableError if there is something else under the name, ExternalCatalogError if the catalog cannot be
    used, PublishError for others. Whatever has happened, the request may be repeated.
    """
    with _one_line(request.catalog):
        (_publish_in_database if request.catalog.type == "jdbc" else _publish_over_rest)(request)


def withdraw(request: Withdraw) -> None:
    """Take a table out of a catalog, and leave its files. Ignores a table that is not there, or another one.

    Raises ExternalCatalogError, PublishError.
    """
    with _one_line(request.catalog):
        (_withdraw_from_database if request.catalog.type == "jdbc" else _withdraw_over_rest)(request)


@contextmanager
def _one_line(catalog: ExternalCatalog) -> Iterator[None]:
    """Raise errors with one line that names the catalog and shows no secret."""
    try:
        yield
    except PublishError:
        raise
    except Exception as error:  # noqa: BLE001 - libraries and servers differ in theirs
        text = " ".join(str(_reason(error)).split()) or type(error).__name__
        for secret in sorted(filter(None, catalog.secrets), key=len, reverse=True):
            text = text.replace(secret, "***")
        kind = ExternalCatalogError if isinstance(error, _AWAY) else PublishError
        raise kind(f"catalog {catalog.name}: {text}") from None


def _reason(error: BaseException) -> object:
    """Return what is at the bottom of an error: libraries wrap that of a connection several times."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else error.orig
    if isinstance(error, SQLAlchemyError):
        return type(error).__name__  # it may show the URL
    if not isinstance(error, RequestException):
        return error
    found: BaseException = error
    while (inner := found.__cause__ or found.__context__) is not None:
        found = inner
    return f"no answer: {found}"


def _file_id(uri: str, table: Place, suffix: str) -> int | None:
    """Return the id of a file of a table's metadata; None if it is none that the table's nodes have written."""
    found = re.fullmatch(rf"{re.escape(table.location)}/metadata/([0-9a-f]{{16}}){re.escape(suffix)}", uri)
    return None if found is None else int(found[1], 16)


def _foreign(catalog: ExternalCatalog, table: Place, what: str) -> ForeignTableError:
    name = ".".join((*catalog.namespace, table.name))
    return ForeignTableError(f"catalog {catalog.name}: {name} {what}: it is left alone; drop or rename it there")


def _ahead(catalog: ExternalCatalog, table: Place) -> PublishError:
    name = ".".join((*catalog.namespace, table.name))
    return PublishError(
        f"catalog {catalog.name}: {name} is at a later version there than here: if the cluster's catalog was restored, "
        "drop it there, or wait until the table has more commits"
    )


# jdbc


@contextmanager
def _database(catalog: ExternalCatalog) -> Iterator[SqlCatalog]:
    """Open a catalog in a database. Its tables are created if they are missing."""
    opened = SqlCatalog(catalog.catalog_name, uri=_url(catalog).render_as_string(hide_password=False))
    try:
        yield opened
    finally:
        opened.engine.dispose()


def _url(catalog: ExternalCatalog) -> URL:
    url = make_url(catalog.uri)
    if url.get_backend_name() != "postgresql":
        return url
    limits = {
        "connect_timeout": str(CONNECT_TIMEOUT_S),
        "tcp_user_timeout": str(STATEMENT_TIMEOUT_MS),
        "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS}",
    }
    url = url.set(drivername="postgresql+psycopg", query={**limits, **url.query})
    return url.set(password=catalog.password) if catalog.password else url


def _row_of(catalog: ExternalCatalog, table: Place) -> tuple[ColumnElement[bool], ...]:
    return (
        IcebergTables.catalog_name == catalog.catalog_name,
        IcebergTables.table_namespace == ".".join(catalog.namespace),
        IcebergTables.table_name == table.name,
    )


def _publish_in_database(request: Publish) -> None:
    catalog, table, uri = request.catalog, request.table, request.metadata_uri
    row = _row_of(catalog, table)
    with _database(catalog) as opened:
        with opened.engine.begin() as connection:
            found = connection.execute(select(IcebergTables.metadata_location).where(*row)).first()
            if found is not None:
                at, mine = found[0] or "", _file_id(uri, table, ".metadata.json")
                there = _file_id(at, table, ".metadata.json")
                if there is None:
                    raise _foreign(catalog, table, f"is another table, or somebody else has changed it ({at})")
                if mine is None or there == mine:
                    return
                if there > mine:
                    raise _ahead(catalog, table)
                moved = {"metadata_location": uri, "previous_metadata_location": at}
                changed = update(IcebergTables).where(*row, IcebergTables.metadata_location == at).values(moved)
                if connection.execute(changed).rowcount != 1:
                    raise PublishError(f"catalog {catalog.name}: {table.name} was changed at the same time")
                return
        namespace = ".".join(catalog.namespace)
        opened.create_namespace_if_not_exists(namespace)
        # No `iceberg_type`: databases of older versions lack the column, and without a value it is a table.
        fresh = {"catalog_name": catalog.catalog_name, "table_namespace": namespace, "table_name": table.name}
        with opened.engine.begin() as connection:
            connection.execute(insert(IcebergTables).values(**fresh, metadata_location=uri))


def _withdraw_from_database(request: Withdraw) -> None:
    catalog, table = request.catalog, request.table
    row = _row_of(catalog, table)
    with _database(catalog) as opened, opened.engine.begin() as connection:
        found = connection.execute(select(IcebergTables.metadata_location).where(*row)).first()
        if found is not None and _file_id(found[0] or "", table, ".metadata.json") is not None:
            connection.execute(delete(IcebergTables).where(*row, IcebergTables.metadata_location == found[0]))


# rest


class _Adapter(HTTPAdapter):
    """Connections that do not wait for ever."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Send a request, and raise RequestException if nothing comes back in time."""
        return super().send(request, *args, **kwargs | {"timeout": HTTP_TIMEOUT_S})


class _Client(RestCatalog):
    """A client of a REST catalog that wants no keys of the store."""

    def _config_headers(self, session: Session) -> None:
        # It is the first that is done with a session: a token may be fetched next.
        super()._config_headers(session)
        session.headers.pop(_DELEGATION, None)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())


def _client(catalog: ExternalCatalog) -> RestCatalog:
    properties: dict[str, Any] = {"uri": catalog.uri, **catalog.properties}
    if not {"token", "credential"}.isdisjoint(properties):
        properties.setdefault("oauth2-server-uri", f"{catalog.uri}/v1/oauth/tokens")
    if catalog.ca_file:
        properties["ssl"] = {"cabundle": catalog.ca_file}
    return _Client(catalog.name, **properties)


def _publish_over_rest(request: Publish) -> None:
    catalog, table = request.catalog, request.table
    ours = TableMetadataV2.model_validate_json(Path(request.metadata).read_bytes())
    name = (*catalog.namespace, table.name)
    with closing(_client(catalog)) as client:
        try:
            found = client.load_table(name)
        except NoSuchTableError:
            if not client.namespace_exists(tuple(catalog.namespace)):
                client.create_namespace(tuple(catalog.namespace))
            io = load_file_io({}, request.metadata_uri)
            fresh = Table(name, ours, request.metadata_uri, io, client)
            _commit(client, fresh, [AssertCreate()], creation(ours))
            found = client.load_table(name)
        if found.metadata.table_uuid != UUID(table.table_id):
            raise _foreign(catalog, table, f"is another table ({found.metadata.location})")
        current = found.metadata.current_snapshot()
        if current is not None and not _is_ours(current, table):
            raise _foreign(catalog, table, f"was changed by somebody else ({current.manifest_list})")
        if _is_ahead(found.metadata, ours):
            raise _ahead(catalog, table)
        is_same = AssertTableUUID(uuid=ours.table_uuid)
        if missing := [each for each in ours.schemas if each not in found.metadata.schemas]:
            _commit(client, found, [is_same], [{"action": "add-schema", "schema": each} for each in missing])
            found = client.load_table(name)
        if updates := step_to(ours, found.metadata, table):
            known = None if current is None else current.snapshot_id
            at = AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": known})
            _commit(client, found, [is_same, at], updates)


def _is_ours(snapshot: Snapshot, table: Place) -> bool:
    return _file_id(snapshot.manifest_list, table, ".avro") is not None


def _is_ahead(theirs: TableMetadata, ours: TableMetadataV2) -> bool:
    """Return whether the newest snapshot there is one that ours does not have, or does not have yet."""
    newest = max(theirs.snapshots, key=_sequence, default=None)
    known = {each.snapshot_id for each in ours.snapshots}
    return newest is not None and _sequence(newest) >= ours.last_sequence_number and newest.snapshot_id not in known


def creation(ours: TableMetadata) -> list[Update]:
    """Return the updates that make a table of nothing, with the identity and schemas of ours, and without snapshots."""
    return [
        {"action": "assign-uuid", "uuid": ours.table_uuid},
        {"action": "upgrade-format-version", "format-version": ours.format_version},
        *({"action": "add-schema", "schema": each} for each in sorted(ours.schemas, key=lambda each: each.schema_id)),
        {"action": "set-current-schema", "schema-id": LAST_ADDED},
        {"action": "add-spec", "spec": ours.spec()},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
        {"action": "add-sort-order", "sort-order": ours.sort_orders[0]},
        {"action": "set-default-sort-order", "sort-order-id": LAST_ADDED},
        {"action": "set-location", "location": ours.location},
        {"action": "set-properties", "updates": {**ours.properties, **PROPERTIES}},
    ]


def step_to(ours: TableMetadata, theirs: TableMetadata, table: Place) -> list[Update]:
    """Return the updates that bring a catalog's metadata to the state of ours. All schemas of ours are in it.

    Catalogs number schemas by themselves, so the ids are theirs. Their times do not go back: a snapshot that was made
    before the last change there gets a time right after that change, and after the snapshot before it, since readers
    take the one with the largest time for the current one.
    """
    ids = {each.schema_id: _same(each, theirs.schemas) for each in ours.schemas}
    updates: list[Update] = []
    if theirs.current_schema_id != ids[ours.current_schema_id]:
        updates.append({"action": "set-current-schema", "schema-id": ids[ours.current_schema_id]})
    last_ms = theirs.last_updated_ms
    for each in sorted(ours.snapshots, key=_sequence):
        if _sequence(each) > _newest(theirs):
            last_ms = max(each.timestamp_ms, last_ms + 1)
            changes = {
                "schema_id": None if each.schema_id is None else ids[each.schema_id],
                "timestamp_ms": last_ms,
                "summary": _without_notes(each.summary),
            }
            updates.append({"action": "add-snapshot", "snapshot": each.model_copy(update=changes)})
    snapshot_id = ours.current_snapshot_id
    if snapshot_id is not None and snapshot_id != theirs.current_snapshot_id:
        main = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot_id}
        updates.append({"action": "set-snapshot-ref", **main})
        current = ours.snapshot_by_id(snapshot_id)
        summary = {} if current is None or current.summary is None else current.summary.additional_properties
        noted = {name: summary[name] for name in (OFFSETS, TOPIC_ID) if name in summary}
        updates.append({"action": "set-properties", "updates": {**noted, OFFSETS_OF: str(snapshot_id)}})
    kept = {each.snapshot_id for each in ours.snapshots}
    kept |= {ref.snapshot_id for name, ref in theirs.refs.items() if name != MAIN_BRANCH}
    # One by one: catalogs before Iceberg 1.9 take no more.
    updates += [
        {"action": "remove-snapshots", "snapshot-ids": [each.snapshot_id]}
        for each in theirs.snapshots
        if each.snapshot_id not in kept and _is_ours(each, table)
    ]
    return updates


def _without_notes(summary: Summary | None) -> Summary | None:
    """Return a summary as engines write it."""
    if summary is None:
        return None
    theirs = {name: text for name, text in summary.additional_properties.items() if not name.startswith(NOTES)}
    return Summary(summary.operation, **theirs)


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _newest(metadata: TableMetadata) -> int:
    return max(map(_sequence, metadata.snapshots), default=0)


def _commit(client: RestCatalog, table: Table, requirements: Sequence[TableRequirement], updates: list[Update]) -> None:
    client.commit_table(table, tuple(requirements), _UPDATES.validate_python(updates))


def _same(schema: Schema, schemas: Sequence[Schema]) -> int:
    return next(each.schema_id for each in schemas if each == schema)


def _withdraw_over_rest(request: Withdraw) -> None:
    catalog, table = request.catalog, request.table
    name = (*catalog.namespace, table.name)
    with closing(_client(catalog)) as client:
        try:
            if client.load_table(name).metadata.table_uuid == UUID(table.table_id):
                client.drop_table(name)
        except NoSuchTableError:
            pass
