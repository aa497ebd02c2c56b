"""The pages of tables: their list, one of them, and what a topic's page says."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, Route, expect

from anabranch.broker.operator.admin.api.tables import (
    Column,
    FileList,
    FilePlace,
    FileRow,
    SnapshotList,
    SnapshotRow,
    TableDescription,
    TableList,
    TablePartition,
    TablePublication,
    TableRow,
)
from tests.console.browser import PHONE, ConsolePage, console_page
from tests.console.test_pages import CUT_TABLES
from tests.console.tokens import OPERATE, READ, as_client, ask, guarded_node
from tests.support.node import NodeProcess

TABLES = "t" * 20
"""Token of engines."""
TIME_MS = 1_783_000_000_000
FIRST_ID = 1 << 62
"""Ids of snapshots have more digits than JavaScript's numbers."""
WIDTHS = ({"width": 1440, "height": 900}, {"width": 1024, "height": 768}, {**PHONE, "width": 390})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose topic `sales` is a table; `plain` is none."""
    schema = {"properties": {"item": {"type": "string"}, "price": {"type": "number"}}}
    configs = {
        "table.enable": "true",
        "table.value": "json",
        "table.value.schema": json.dumps(schema),
        "table.commit.interval.ms": "3600000",  # so that the test decides when
    }
    topics = [NewTopic("plain", 1, 1), NewTopic("sales", 2, 1, config=configs)]
    folder = tmp_path_factory.mktemp("tables")
    (folder / "tables").write_text(TABLES)
    (folder / "tables").chmod(0o600)
    with guarded_node(folder, topics, admin_tables_token_file=folder / "tables") as running:
        yield running


@pytest.fixture
def console(browser: Browser, node: NodeProcess) -> Iterator[ConsolePage]:
    with console_page(browser, node.admin) as page:
        yield as_client(page, OPERATE)
        assert page.problems == []


def row(**changes: Any) -> dict[str, Any]:
    """A row of the list of tables."""
    found = TableRow(
        name="orders",
        topic="orders",
        table_id="6f72-64",
        enabled=True,
        committer=1,
        version=45,
        snapshot_id=str(FIRST_ID + 45),
        committed_ms=TIME_MS,
        rows=12_345,
        files=45,
        bytes=3 << 20,
        snapshots=45,
        lag=77,
        lag_ms=12_000,
        error_rows=0,
        last_error=None,
    )
    return {**found.model_dump(), **changes}


def description(publication: TablePublication | None = None, **changes: Any) -> TableDescription:
    """A table with a long name of a column, and a partition that is behind."""
    return TableDescription(
        **{"location": "file:///data/table/c/6f72", **row(**changes)},
        metadata_location="file:///data/table/c/6f72/metadata/2d.metadata.json",
        columns=[
            Column(id=1, name="order", type="long", required=False),
            Column(
                id=2,
                name="items",
                type="list<struct<sku: string, quantity: int, price: decimal(12, 2)>>",
                required=False,
            ),
            Column(
                id=9, name="_kafka", type="struct<partition: int, offset: long, timestamp: timestamptz>", required=True
            ),
        ],
        partitions=[
            TablePartition(partition=0, start_offset=0, end_offset=6_000, topic_end_offset=6_000, lag=0),
            TablePartition(partition=1, start_offset=100, end_offset=6_445, topic_end_offset=6_522, lag=77),
        ],
        publication=publication,
        reasons=["field quantity: expected an integer, found a string", "expected JSON: line 1 column 1"],
        unreachable=[],
    )


def snapshot(version: int) -> SnapshotRow:
    kind, counted = ("append", "added-records") if version % 9 else ("delete", "deleted-records")
    return SnapshotRow(
        snapshot_id=str(FIRST_ID + version),
        version=version,
        committed_ms=TIME_MS + version,
        operation=kind,
        summary={counted: "1000", "total-records": str(1000 * version)},
    )


def files(partitions: Sequence[int], limit: int) -> FileList:
    """The first files of partitions, with 100 offsets each."""
    places = [
        (index, start * 100) for index, count in ((0, 20), (1, 15)) for start in range(count) if index in partitions
    ]
    rows = [
        FileRow(
            partition=index,
            start_offset=start,
            end_offset=start + 100,
            rows=99,
            bytes=70_000,
            version=3,
            committed_ms=TIME_MS,
            location=None,
        )
        for index, start in places[:limit]
    ]
    following = FilePlace(partition=places[limit][0], offset=places[limit][1]) if len(places) > limit else None
    return FileList(files=rows, next=following)


def with_table(console: ConsolePage, table: TableDescription) -> None:
    """Let the node answer as if it had a table with 25 snapshots."""

    def answer(route: Route) -> None:
        path, _, query = route.request.url.partition("/api/v1/tables")[2].partition("?")
        asked = dict(each.split("=") for each in query.split("&") if each)
        limit = int(asked.get("limit", 100))
        found: Any
        match path.split("/")[2:]:
            case ["snapshots"]:
                shown = [snapshot(version) for version in range(25, 0, -1)]
                found = SnapshotList(snapshots=shown[:limit], more=len(shown) > limit)
            case ["files"]:
                found = files(range(int(asked.get("partition", 0)), 2), limit)
            case []:
                short = TableRow(**{name: getattr(table, name) for name in TableRow.model_fields})
                found = table if path else TableList(tables=[short], more=False, unreachable=[])
        route.fulfill(json=found.model_dump())

    console.page.route("**/api/v1/tables**", answer)


def test_a_node_without_tables_says_how_a_topic_becomes_one(console: ConsolePage) -> None:
    none = TableList(tables=[], more=False, unreachable=[])
    console.page.route("**/api/v1/tables", lambda route: route.fulfill(json=none.model_dump()))
    page = console.open("topics")
    page.get_by_role("link", name="Tables", exact=True).click()
    expect(page.get_by_text("No topic is a table yet.")).to_be_visible()
    expect(page.locator(".command code")).to_contain_text("anabranch topic alter TOPIC --table json")
    assert console.violations() == []
    console.open("topics/plain")
    expect(page.get_by_text("The topic is no table.")).to_be_visible()
    command = page.locator(".command code", has_text="--table")
    expect(command).to_contain_text("anabranch topic alter plain --table json")
    console.open("tables/plain")
    expect(page.get_by_text("There is no table 'plain': its topic has table.enable=false.")).to_be_visible()
    console.problems.clear()  # the browser notes the refusal


def test_a_node_that_lacks_the_packages_says_so(console: ConsolePage, node: NodeProcess) -> None:
    session = ask(node, "GET", "/api/v1/session")
    console.page.route("**/api/v1/session", lambda route: route.fulfill(json={**session, "has_tables": False}))
    none = TableList(tables=[], more=False, unreachable=[])
    console.page.route("**/api/v1/tables", lambda route: route.fulfill(json=none.model_dump()))
    page = console.open("tables")
    expect(page.locator(".command code")).to_have_text("pip install 'anabranch[tables]'")
    console.open("topics/plain")
    expect(page.locator(".command code", has_text="tables")).to_have_text("pip install 'anabranch[tables]'")


@pytest.mark.parametrize("viewport", WIDTHS, ids=lambda each: str(each["width"]))
def test_the_pages_fit_and_are_accessible(browser: Browser, node: NodeProcess, viewport: Any) -> None:
    with console_page(browser, node.admin, viewport=viewport, dark=viewport["width"] < 1000) as console:
        with_table(as_client(console, READ), description(error_rows=4, last_error="no such subject: orders-value"))
        for route in ("tables", "tables/orders", "tables/orders?engine=duckdb"):
            page = console.open(route)
            expect(page.get_by_text("12,345").first).to_be_visible()
            expect(page.locator(".waiting")).to_have_count(0)
            assert console.violations() == [], route
            assert console.width() <= console.viewport["width"], route
            assert page.evaluate(CUT_TABLES) == [], route
            assert page.get_by_role("button", name="Drop").count() == 0, "a reader is offered no changes"
        expect(
            console.page.get_by_text("Those who may see what records contain are shown the reasons here.")
        ).to_be_visible()
        assert console.problems == []


def test_a_table_shows_its_columns_snapshots_and_files(console: ConsolePage) -> None:
    with_table(console, description())
    page = console.open("tables")
    expect(page.get_by_role("row", name="orders")).to_contain_text("12,345453 MiB77 12 s")
    page.keyboard.press("/")
    page.keyboard.type("none")
    expect(page.get_by_text("No table's name contains “none”.")).to_be_visible()
    page.get_by_role("searchbox").fill("ORD")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.locator("main h1")).to_have_text("orders")
    expect(page.get_by_role("row", name="_kafka")).to_contain_text(
        "struct<partition: int, offset: long, timestamp: timestamptz>yes9"
    )
    expect(page.get_by_role("row", name="1 100 6,445 6,522 77")).to_be_visible()
    snapshots = page.get_by_role("group", name="Snapshots").locator("tbody tr")
    expect(snapshots).to_have_count(10)
    expect(snapshots.first).to_contain_text("25append+1,00025,0004611686018427387929")
    expect(snapshots.nth(7)).to_contain_text("18delete\u22121,00018,000")
    more = page.get_by_role("button", name="Show 10 more snapshots")
    for count in (20, 25):
        more.click()
        expect(snapshots).to_have_count(count)
    expect(more).to_have_count(0)
    shown = page.get_by_role("group", name="Files").locator("tbody tr")
    more = page.get_by_role("button", name="Show 10 more files")
    expect(shown).to_have_count(10)
    page.get_by_role("combobox", name="Partition").select_option("1")
    expect(shown).to_have_count(10)
    expect(shown.first).to_contain_text("10100")
    more.click()
    expect(shown).to_have_count(15)
    expect(more).to_have_count(0)
    page.get_by_role("combobox", name="Partition").select_option("0")
    expect(shown).to_have_count(20)  # as many as were wanted of the other
    expect(more).to_have_count(0)


def test_what_is_wrong_is_shown_with_its_reasons(console: ConsolePage) -> None:
    with_table(console, description(error_rows=4, last_error="subject orders-value does not exist"))
    page = console.open("tables/orders")
    expect(page.get_by_text("The table waits: subject orders-value does not exist")).to_be_visible()
    expect(page.locator(".figure", has_text="Lag")).to_contain_text("77the first waits for 12 s")
    expect(page.locator(".reasons li")).to_have_count(2)
    expect(page.locator(".reasons")).to_contain_text("expected an integer, found a string")
    console.open("tables")
    expect(page.get_by_role("row", name="orders")).to_contain_text("waits")


def test_another_catalog_is_shown_with_its_version_and_error(console: ConsolePage) -> None:
    there = TablePublication(catalog="lake", version=44, snapshot_id=str(FIRST_ID + 44), lag_ms=12_000, error="no room")
    with_table(console, description(there))
    page = console.open("tables/orders")
    expect(page.locator(".figure", has_text="Published in")).to_have_text("Published inlakeversion 44, behind for 12 s")
    expect(page.get_by_text("Not published in lake: no room")).to_be_visible()
    expect(page.get_by_text("Published snapshot")).to_contain_text(str(FIRST_ID + 44))
    assert console.violations() == []


def test_queries_name_the_table_and_the_node(console: ConsolePage) -> None:
    with_table(console, description(name="web-shop.orders"))
    page = console.open("tables/web-shop.orders")
    command = page.locator(".command code")
    uri = f"{console.base}/iceberg"
    for engine, parts in {
        "Spark": [uri, "anabranch.default.`web-shop.orders`", '_2.13:1.12.0")', '.token", "TOKEN"'],
        "pyiceberg": [uri, '("default", "web-shop.orders")', 'token="TOKEN"'],
        "DuckDB": [uri, 'anabranch."default"."web-shop.orders"', "TOKEN 'TOKEN'"],
        "Polars": [uri, "polars.scan_iceberg", '("default", "web-shop.orders")'],
        "Trino": [uri, 'anabranch."default"."web-shop.orders"', "oauth2.token=TOKEN", "fs.hadoop.enabled=true"],
    }.items():
        page.get_by_label("Engine").select_option(engine)
        for part in parts:
            expect(command).to_contain_text(part)
    expect(page).to_have_url(re.compile("engine=trino"))


def test_queries_reach_the_catalog_as_the_documentation_says(console: ConsolePage, node: NodeProcess) -> None:
    session = ask(node, "GET", "/api/v1/session")
    console.page.route("**/api/v1/session", lambda route: route.fulfill(json={**session, "authentication": False}))
    with_table(console, description(location="s3://bucket/table/c/6f72"))
    page = console.open("tables/orders")
    command = page.locator(".command code")
    documented = "".join(path.read_text() for path in (Path(__file__).parents[2] / "docs").glob("tables*.md"))
    for engine in ("Spark", "pyiceberg", "DuckDB", "Polars", "Trino"):
        page.get_by_label("Engine").select_option(engine)
        query = command.inner_text().replace(console.base, "http://127.0.0.1:9644")
        (line,) = (each.strip() for each in query.splitlines() if "127.0.0.1:9644" in each)
        assert line in documented
    expect(command).to_contain_text("fs.native-s3.enabled=true")
    page.get_by_label("Engine").select_option("Spark")
    expect(command).to_contain_text(",org.apache.iceberg:iceberg-aws-bundle:1.12.0")


def test_a_table_is_enabled_seen_and_dropped(console: ConsolePage, node: NodeProcess) -> None:
    page = console.open("topics/plain")
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="Change table.enable").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("table.enable").fill("true")
    dialog.get_by_role("button", name="Show the plan").click()
    dialog.get_by_role("button", name="Change", exact=True).click()
    page.get_by_role("link", name="Queries, schema and snapshots").click()
    expect(page.get_by_text("The table has no rows yet.")).to_be_visible()
    expect(page.get_by_text("There are no snapshots.")).to_be_visible()  # from its first commit on
    expect(page.get_by_text("There are no files.")).to_be_visible()
    expect(page.get_by_role("row", name="_kafka")).to_be_visible()
    assert console.violations() == []
    page.get_by_role("navigation", name="Path").get_by_role("link", name="Tables").click()
    expect(page.get_by_role("row", name="plain")).to_contain_text("none yet")
    page.get_by_role("link", name="plain", exact=True).click()
    table_id = ask(node, "GET", "/api/v1/tables/plain")["table_id"]
    page.get_by_role("button", name="Drop").click()
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("The topic plain keeps its records, and is no table any more")
    drop = dialog.get_by_role("button", name="Drop the table")
    expect(drop).to_be_disabled()
    assert console.violations() == []
    dialog.get_by_label("Type plain to confirm").fill("plain")
    with page.expect_request(lambda request: request.method == "DELETE") as sent:
        drop.click()
    assert f"table_id={table_id}" in sent.value.url, "a drop that is repeated leaves a new table alone"
    expect(page.get_by_role("row", name="sales")).to_be_visible()
    expect(page.get_by_role("row", name="plain")).to_have_count(0)
    configs = ask(node, "GET", "/api/v1/topics/plain")["configs"]
    assert {each["name"]: each["value"] for each in configs}["table.enable"] == "false"


def test_records_become_rows_that_the_queries_find(console: ConsolePage, node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for index, value in enumerate((b'{"item": "tea", "price": 3.5}', b'{"item": "pot"}', b"tea", b"{}")):
        producer.produce("sales", value, partition=index % 2)
    assert producer.flush(60) == 0
    page = console.open("topics/sales")
    page.get_by_role("link", name="Queries, schema and snapshots").click()
    page.get_by_role("button", name="Commit now").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".plan")).to_contain_text("4 offsets the table lacks")
    assert console.violations() == []
    dialog.get_by_role("button", name="Commit", exact=True).click()
    expect(page.get_by_text("The table has 4 rows: all that was committed in its topic.")).to_be_visible()
    expect(page.locator(".figure").first).to_have_text("Rows4")
    expect(page.locator(".figure", has_text="Lag")).to_contain_text("0")
    expect(page.get_by_role("row", name="price")).to_contain_text("double")
    expect(page.get_by_role("group", name="Snapshots").locator("tbody tr").first).to_contain_text("append+44")
    expect(page.get_by_role("group", name="Files").locator("tbody tr")).to_have_count(2)
    expect(page.locator(".reasons")).to_contain_text("JSON")
    assert console.violations() == []
    for engine in ("pyiceberg", "Polars"):
        page.get_by_label("Engine").select_option(engine)
        query = page.locator(".command code").inner_text().replace("TOKEN", TABLES)
        done = subprocess.run([sys.executable, "-c", query], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "tea" in done.stdout
        assert "pot" in done.stdout
