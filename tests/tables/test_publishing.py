"""Tables in other catalogs: Iceberg's own REST catalog, and databases with the tables of its JDBC catalog."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException, NoSuchTableError
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from anabranch.tables import publishing
from anabranch.tables.errors import ExternalCatalogError, ForeignTableError, PublishError
from anabranch.tables.publication import ExternalCatalog, Place, Publish, Withdraw
from anabranch.tables.publishing import publish, withdraw
from anabranch.tables.schema import KAFKA
from anabranch.tables.snapshots import CLEANED, OFFSETS, OFFSETS_OF, TOPIC_ID
from tests.support.postgres import PostgresServer
from tests.support.rest_catalog import rest_catalog
from tests.tables.versions import TABLE_ID, TableFolder, kafka_rows

NAME: Final = "small.events"
FOREIGN = pa.table({"x": [1, 2]})


class Folder(TableFolder):
    """A table whose files of metadata have names like those of a node."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "table" / "metadata").mkdir()

    def new_uri(self, suffix: str) -> str:
        return f"{self.location}/metadata/{next(self._names):016x}{suffix}"

    def append(self, offsets: range, **changes: Any) -> None:
        """Commit a file of rows."""
        file = self.add_rows(kafka_rows(self.schema, 0, list(offsets), n=[each * 2 for each in offsets]))
        self.commit([file], **changes)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another catalog, as it is told to nodes and as an engine opens it."""

    catalog: ExternalCatalog
    open: Callable[[], Catalog]

    @property
    def name(self) -> tuple[str, ...]:
        return (*self.catalog.namespace, NAME)


@pytest.fixture(scope="module")
def rest_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as address:
        yield address


_numbers = count(1)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.server),
        pytest.param("rest", marks=[pytest.mark.interop, pytest.mark.slow]),
    ]
)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    """Another catalog that knows no table of the namespace."""
    namespace = ("lake", f"n{next(_numbers)}")
    with ExitStack() as opened:
        if request.param == "rest":
            address = request.getfixturevalue("rest_address")
            yield Elsewhere(
                ExternalCatalog("lake", "rest", address, namespace),
                lambda: opened.enter_context(closing(RestCatalog("reader", uri=address))),
            )
            return
        url = f"sqlite:///{tmp_path}/catalog.db"
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.new_database()
        reader = {
            "uri": url.replace("postgresql://", "postgresql+psycopg://"),
            "warehouse": f"file://{tmp_path}/warehouse",
        }
        yield Elsewhere(
            ExternalCatalog("lake", "jdbc", url, namespace, catalog_name="main"),
            lambda: opened.enter_context(closing(SqlCatalog("main", **reader))),
        )


@pytest.fixture
def table(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def place(table: Folder) -> Place:
    return Place(NAME, TABLE_ID, table.location)


def request(there: Elsewhere, table: Folder, metadata: Path | None = None) -> Publish:
    path = metadata or table.metadata
    return Publish(there.catalog, place(table), f"file://{path}", str(path))


def rows_of(table: Any) -> list[tuple[int, Any]]:
    rows = table.to_arrow().to_pylist()
    return sorted((row[KAFKA]["offset"], row["n"]) for row in rows)


def wanted(offsets: Sequence[int]) -> list[tuple[int, Any]]:
    return [(each, each * 2) for each in offsets]


def read(there: Elsewhere) -> list[tuple[int, Any]]:
    """Return offset and `n` of the rows that an engine finds."""
    return rows_of(there.open().load_table(there.name).scan())


def snapshots(there: Elsewhere) -> list[int]:
    return [each.snapshot_id for each in there.open().load_table(there.name).metadata.snapshots]


def test_each_version_is_shown_with_its_schema_and_snapshots(there: Elsewhere, table: Folder) -> None:
    table.commit(has_snapshot=False)
    publish(request(there, table))
    assert read(there) == []
    table.append(range(3))
    publish(request(there, table))
    assert read(there) == wanted(range(3))
    table.append(range(3, 5))
    table.evolve(pa.field("extra", pa.string()))
    table.append(range(5, 6))
    publish(request(there, table))
    assert read(there) == wanted(range(6))
    found = there.open().load_table(there.name)
    assert [each.name for each in found.schema().fields] == ["n", "s", KAFKA, "extra"]
    assert [rows_of(found.scan(snapshot_id=each)) for each in snapshots(there)] == [
        wanted(range(3)), wanted(range(5)), wanted(range(6))
    ]  # fmt: skip
    assert found.metadata.table_uuid.hex == TABLE_ID
    times = [each.timestamp_ms for each in found.metadata.snapshots]
    assert sorted(set(times)) == times, "the current one is known by its time"
    table.append(range(6, 7), kept=[1004])
    publish(request(there, table))
    assert (read(there), snapshots(there)) == (wanted(range(7)), [1004, 1005])


def test_a_version_may_be_published_again_and_an_older_one_is_refused(there: Elsewhere, table: Folder) -> None:
    table.append(range(3))
    older = table.metadata
    publish(request(there, table))
    publish(request(there, table))
    table.append(range(3, 5))
    publish(request(there, table))
    before = there.open().load_table(there.name).metadata_location
    publish(request(there, table))
    with pytest.raises(PublishError, match=r"^catalog lake: lake\.n\d+\.small\.events is at a later version there"):
        publish(request(there, table, older))
    assert there.open().load_table(there.name).metadata_location == before
    assert read(there) == wanted(range(5))


def test_a_table_under_the_same_name_is_left_alone(there: Elsewhere, table: Folder) -> None:
    other = there.open()
    other.create_namespace(tuple(there.catalog.namespace))
    other.create_table(there.name, FOREIGN.schema).append(FOREIGN)
    table.append(range(3))
    with pytest.raises(
        ForeignTableError, match=r"^catalog lake: lake\.n\d+\.small\.events is another table.*\(.*\): it"
    ):
        publish(request(there, table))
    withdraw(Withdraw(there.catalog, place(table)))
    assert there.open().load_table(there.name).scan().to_arrow() == FOREIGN


def test_what_somebody_else_has_written_is_not_undone(there: Elsewhere, table: Folder) -> None:
    table.append(range(3))
    publish(request(there, table))
    rows = kafka_rows(table.schema, 0, [100], n=[1])
    there.open().load_table(there.name).append(pa.Table.from_batches([rows]))
    table.append(range(3, 5))
    with pytest.raises(ForeignTableError, match="changed"):
        publish(request(there, table))
    assert (100, 1) in read(there)


def test_a_table_is_taken_out_and_its_files_stay(there: Elsewhere, table: Folder) -> None:
    withdraw(Withdraw(there.catalog, place(table)))
    table.append(range(3))
    publish(request(there, table))
    files = set(table.folder.rglob("*.parquet")) | set(table.folder.rglob("*.avro"))
    withdraw(Withdraw(there.catalog, Place(NAME, "f" * 32, f"{table.location}-other")))
    assert read(there) == wanted(range(3))
    withdraw(Withdraw(there.catalog, place(table)))
    withdraw(Withdraw(there.catalog, place(table)))
    with pytest.raises(NoSuchTableError):
        read(there)
    assert files
    assert all(each.exists() for each in files)
    publish(request(there, table))
    assert read(there) == wanted(range(3))


@pytest.mark.parametrize("there", ["rest"], indirect=True)
def test_what_grows_with_partitions_is_there_of_the_current_snapshot_alone(there: Elsewhere, table: Folder) -> None:
    """No version of the server's metadata is shortened later, as ours is."""
    for at in range(3):
        table.append(range(at, at + 1), summary={OFFSETS: f'{{"0":{at + 1}}}', TOPIC_ID: "a topic", CLEANED: "{}"})
        publish(request(there, table))
    found = there.open().load_table(there.name)
    names = [set(each.summary.additional_properties) for each in found.metadata.snapshots if each.summary is not None]
    assert [any(name.startswith("anabranch.") for name in some) for some in names] == [False] * 3
    assert all("total-records" in some for some in names)
    noted = {name: text for name, text in found.properties.items() if name.startswith("anabranch.")}
    assert noted == {OFFSETS: '{"0":3}', TOPIC_ID: "a topic", OFFSETS_OF: str(snapshots(there)[-1])}


@pytest.mark.parametrize("there", ["rest"], indirect=True)
def test_a_commit_whose_answer_was_lost_is_found(
    there: Elsewhere, table: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = RestCatalog.commit_table

    def lose(*args: Any) -> None:
        commit(*args)
        raise CommitStateUnknownException("no answer")

    table.append(range(3))
    publish(request(there, table))
    table.append(range(3, 5))
    with monkeypatch.context() as patch:
        patch.setattr(RestCatalog, "commit_table", lose)
        with pytest.raises(PublishError, match=r"^catalog lake: no answer$"):
            publish(request(there, table))
    publish(request(there, table))
    assert (read(there), snapshots(there)) == (wanted(range(5)), [1001, 1002])


@pytest.mark.parametrize("there", ["rest"], indirect=True)
def test_requests_have_a_fetched_token_headers_and_a_time_limit(
    there: Elsewhere, table: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, Any, Any, Any]] = []
    send = HTTPAdapter.send

    def note(self: HTTPAdapter, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        headers, place = request.headers, (request.url or "").rpartition("/v1/")[2]
        requests.append((place, headers.get("Authorization"), headers.get("Polaris-Realm"), kwargs["timeout"]))
        return send(self, request, *args, **kwargs)

    monkeypatch.setattr(HTTPAdapter, "send", note)
    properties = {"credential": "me:s3cret", "header.Polaris-Realm": "POLARIS"}
    table.append(range(3))
    publish(request(replace(there, catalog=replace(there.catalog, properties=properties)), table))
    tokens = [authorization for place, authorization, _, _ in requests if place.startswith("namespaces/")]
    assert tokens
    assert set(tokens) == {"Bearer client-credentials-token:sub=me"}
    assert {realm for _, _, realm, _ in requests} == {"POLARIS"}
    assert {limit_s for *_, limit_s in requests} == {publishing.HTTP_TIMEOUT_S}


@pytest.mark.parametrize("there", [pytest.param("postgresql", marks=pytest.mark.server)], indirect=True)
def test_a_row_that_moves_meanwhile_is_not_moved_back(
    there: Elsewhere, table: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(range(3))
    publish(request(there, table))
    table.append(range(3, 5))
    slower = request(there, table)
    table.append(range(5, 6))
    faster = request(there, table)
    update = sqlalchemy.update

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(publishing, "update", update)
        publish(faster)
        return update(*args)

    monkeypatch.setattr(publishing, "update", overtaken)
    with pytest.raises(PublishError, match="changed at the same time"):
        publish(slower)
    assert read(there) == wanted(range(6))
    with pytest.raises(PublishError, match="later version"):
        publish(slower)
    assert read(there) == wanted(range(6))


@pytest.mark.parametrize("there", ["rest"], indirect=True)
def test_another_history_is_refused_until_it_is_passed(there: Elsewhere, table: Folder, tmp_path: Path) -> None:
    table.append(range(3))
    publish(request(there, table))
    (tmp_path / "restored").mkdir()
    restored = Folder(tmp_path / "restored")
    restored.location = table.location
    for _ in range(100):
        restored.new_uri("is skipped: files have other names")
    restored.append(range(4), snapshot_id=2001)
    with pytest.raises(PublishError, match="later version"):
        publish(request(there, restored))
    restored.append(range(4, 5), snapshot_id=2002, kept=[])
    publish(request(there, restored))
    assert (read(there), snapshots(there)) == (wanted(range(5)), [2002])


@pytest.mark.parametrize(
    ("catalog", "reason"),
    [
        (ExternalCatalog("lake", "rest", "http://127.0.0.1:1", properties={"token": "s3cret"}), "no answer: .*refused"),
        (ExternalCatalog("lake", "rest", "http://127.0.0.1:1", properties={"credential": "a:s3cret"}), "no answer: "),
        (
            ExternalCatalog("lake", "rest", "http://127.0.0.1:1", properties={"token": "s3cret\n"}),
            r"Invalid header value .*\*\*\*",
        ),
        (ExternalCatalog("lake", "jdbc", "postgresql://u:s3cret@127.0.0.1:1/db", catalog_name="c"), ".*refused"),
        (ExternalCatalog("lake", "jdbc", "sqlite:////missing/s3cret.db", catalog_name="c"), "unable to open"),
    ],
)
def test_a_catalog_that_is_away_is_named_without_secrets(catalog: ExternalCatalog, reason: str, table: Folder) -> None:
    catalog = replace(catalog, secrets=("s3cret", "a:s3cret"))
    table.append(range(3))
    with pytest.raises(PublishError) as raised:
        publish(Publish(catalog, place(table), f"file://{table.metadata}", str(table.metadata)))
    assert isinstance(raised.value, ExternalCatalogError) is not reason.startswith("Invalid")
    text = str(raised.value)
    assert re.match(f"catalog lake: {reason}", text)
    assert "s3cret" not in text + repr(catalog)
    assert "\n" not in text
