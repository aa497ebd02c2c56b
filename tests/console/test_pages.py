"""Each page with the data of a real node: on a desktop and on a phone, light and dark, and judged by axe."""

import json
import math
import re
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Route, expect

from tests.console.browser import DESKTOP, PHONE, ConsolePage, console_page
from tests.console.shop import COMMITTED, ORDERS, PARTITIONS, Shop, send_order

PAGES = {
    "": "Cluster",
    "nodes/1": "Node 1",
    "topics": "Topics",
    "topics/orders": "orders",
    "topics/orders/records": "Records",
    "topics/orders/partitions/0": "Partition 0",
    "schemas": "Schemas",
    "tables": "Tables",
    "groups": "Groups",
    "groups/billing": "billing",
    "transactions": "Transactions",
    "storage": "Storage",
    "balance": "Balance",
    "cost": "Cost",
    "security": "Users",
    "security/acls": "ACLs",
    "security/tokens": "Delegation tokens",
    "quotas": "Quotas",
    "audit": "Audit log",
    "nothing": "Not found",
}
"""Titles by route."""
CUT_TABLES = """[...document.querySelectorAll(".table-scroll")]
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => `${each.ariaLabel}: ${each.scrollWidth} in ${each.clientWidth}`)"""
LINES = """(element) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), lines = [];
    let bottom = null;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (let at = 0; at < node.length; at++) {
            const range = new Range();
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            const box = range.getBoundingClientRect();
            if (bottom === null || box.top >= bottom) lines.push("");
            bottom = box.bottom;
            lines[lines.length - 1] += node.data[at];
        }
    }
    return lines;
}"""
"""The lines in which an element shows its text."""
LAG = ORDERS - PARTITIONS * COMMITTED


@pytest.mark.parametrize(("kind", "dark"), [("desktop", False), ("phone", True)])
def test_every_page_is_accessible_and_fits(browser: Browser, shop: Shop, kind: str, dark: bool) -> None:
    with console_page(browser, shop.admin, viewport=PHONE if kind == "phone" else DESKTOP, dark=dark) as console:
        for route, title in PAGES.items():
            page = console.open(route)
            expect(page.locator("main h1")).to_contain_text(title)
            expect(page.locator(".waiting")).to_have_count(0)
            assert console.violations() == [], route
            assert console.width() <= console.viewport["width"], route
            assert page.evaluate(CUT_TABLES) == [], route
        assert console.problems == []


def test_the_cluster_page_shows_nodes_and_traffic(console: ConsolePage, shop: Shop) -> None:
    page = console.open()
    expect(page.get_by_role("row", name="1 this up")).to_contain_text(shop.node.bootstrap)
    expect(page.get_by_text("Every partition has a leader")).to_be_visible()
    expect(page.locator(".chart canvas")).to_have_count(2)
    row = page.get_by_role("row", name="1 this up")
    expect(row).to_contain_text("MiB")  # memory
    expect(row).to_contain_text("B/s")  # once there are two samples
    # The internal topics and their partitions are counted apart.
    expect(page.locator(".figure", has_text="Topics")).to_contain_text("and 2 internal")
    expect(page.locator(".figure", has_text="Topics").locator("dd a")).to_have_text(str(len(shop_topics(shop))))
    expect(page.locator(".figure", has_text="Partitions")).to_contain_text("and 8 internal")


def test_a_node_that_is_down_is_in_the_headline(console: ConsolePage, shop: Shop) -> None:
    found = json.loads(shop.node.ask("/api/v1/cluster"))
    (own,) = found["nodes"]
    found["nodes"].append({**own, "id": 2, "self": False, "state": "down"})
    console.page.route("**/api/v1/cluster", lambda route: route.fulfill(json=found))
    found["unreachable"] = [3]
    page = console.open()
    expect(page.get_by_text("Node 2 is down")).to_be_visible()
    expect(page.get_by_text("Node 3 does not answer")).to_be_visible()
    expect(page.get_by_text("Every partition has a leader")).to_have_count(0)


def test_configs_are_shown_in_units(console: ConsolePage) -> None:
    page = console.open("topics/orders")
    expect(page.get_by_role("row", name="max.message.bytes")).to_contain_text("1 MiB")
    expect(page.get_by_role("row", name="retention.bytes")).to_contain_text("-1 no limit")
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("row", name="delete.retention.ms")).to_contain_text("86400000 1 d")


def shop_topics(shop: Shop) -> dict[str, dict[str, Any]]:
    """The topics that are not internal, by name."""
    found = json.loads(shop.node.ask("/api/v1/topics"))["topics"]
    return {each["name"]: each for each in found if not each["internal"]}


def test_topics_can_be_searched_sorted_and_opened(console: ConsolePage, shop: Shop) -> None:
    page = console.open("topics")
    expect(page.get_by_role("link", name="customers", exact=True)).to_be_visible()
    # It has records in the log only.
    expect(page.get_by_role("row", name="customers")).to_contain_text(f"{shop_topics(shop)['customers']['bytes']} B")
    page.get_by_label("Internal topics").check()
    expect(page.get_by_role("link", name="__consumer_offsets", exact=True)).to_be_visible()
    page.get_by_role("button", name="Offsets").click()
    expect(page.locator("tbody tr").first).to_contain_text("orders")
    expect(page.get_by_text("Offsets from start to end: there are no more records than that")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ord")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.locator("main h1")).to_be_focused()
    expect(page.get_by_role("row", name="0 node 1").first).to_contain_text("100")
    expect(page.get_by_role("link", name="billing")).to_contain_text(re.compile(r"lag \d+"))
    expect(page.get_by_text(f"Topic id {shop_topics(shop)['orders']['id']}")).to_be_visible()


def test_records_are_found_by_offset_key_and_text(console: ConsolePage) -> None:
    page = console.open("topics/orders/records")
    rows = page.locator(".row-button")
    expect(rows).to_have_count(50)
    expect(page.get_by_role("navigation", name="Path")).to_have_text("Topics/orders")
    page.get_by_label("Start").select_option("offset")
    page.get_by_role("spinbutton", name="Offset").fill("7")
    page.get_by_label("Partition").select_option("1")
    page.get_by_role("button", name="Show").click()
    expect(rows.first).to_contain_text("1 / 7")
    rows.first.click()
    details = page.locator(".record-details")
    expect(details).to_contain_text('"order": 22')
    expect(details).to_contain_text("trace")
    expect(details).to_contain_text("t0022")
    expect(details.get_by_text("Producer", exact=True)).to_have_count(0)  # it was not idempotent
    assert console.violations() == []
    page.get_by_label("Key is").fill("c25")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("1 / 8")
    page.get_by_label("Key is").fill("")
    page.get_by_label("Contains").fill("no such text")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No record matches.")).to_be_visible()


def test_a_search_goes_through_the_whole_topic(console: ConsolePage) -> None:
    page = console.open("topics/orders/records")
    rows = page.locator(".row-button")
    expect(rows).to_have_count(50)
    for shown in range(100, ORDERS + 50, 50):
        page.get_by_role("button", name="Older records").click()
        expect(rows).to_have_count(shown)
    expect(page.get_by_role("button", name="Older records")).to_have_count(0)
    page.get_by_label("Contains").fill('"order": 3,')  # it is among the oldest
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_text("1 record, ")).to_contain_text("looked at")
    page.get_by_label("Contains").fill("")
    page.get_by_role("button", name="More filters").click()
    page.get_by_label("JSON path").fill('$.items[*].sku == "tea-3"')
    page.get_by_label("Header").fill("trace=t0024")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    assert console.violations() == []
    page.reload()
    expect(page.get_by_label("Header"), "what is set is shown").to_have_value("trace=t0024")
    page.get_by_label("JSON path").fill("sku")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_contain_text("a JSON path begins with $")
    console.problems.clear()  # the browser notes the refusal


def test_a_search_can_be_stopped_and_continued(console: ConsolePage) -> None:
    answers = [
        {"records": [], "next": {"0": 90, "1": 90, "2": 90}, "end": False, "scanned": 30, "remaining": 270},
        None,  # takes long
    ]
    rest = {"read_bytes": 1 << 20, "errors": [], "unreachable": [], "more_partitions": False}

    def answer(route: Route) -> None:
        if not answers:
            route.continue_()
        elif found := answers.pop(0):
            route.fulfill(json={**rest, **found})

    console.page.route("**/records?**", answer)
    page = console.open("topics/orders/records?contains=tea-3&limit=100")
    expect(page.get_by_text("30 of about 300 looked at (1 MiB read)")).to_be_visible()
    assert page.get_by_role("progressbar").evaluate("(each) => each.position") == pytest.approx(0.1)
    assert console.violations() == []
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.get_by_text("No match so far.")).to_be_visible()
    page.get_by_role("button", name="Search further").click()
    expect(page.get_by_text("Stopped.")).to_have_count(0)
    expect(page.locator(".row-button").first).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_records_are_copied_downloaded_and_produced_again(console: ConsolePage, shop: Shop) -> None:
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    packed = json.dumps({"of": "again"}).encode()
    for value, trace in ((packed, b"a1"), (b"\xff\x00", b"a2")):
        shop.producer.produce("again", value, key=b"k", headers=[("trace", trace)])
        assert shop.producer.flush(60) == 0
    page = console.open("topics/again/records?from=earliest")
    rows = page.locator(".row-button")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download these").click()
    assert [json.loads(line)["offset"] for line in saved.value.path().read_text().splitlines()] == [0, 1]
    rows.first.click()
    page.get_by_role("button", name="Copy value").click()
    expect(page.get_by_text("The value is copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == packed.decode()
    page.get_by_role("button", name="Produce again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Value", exact=True)).to_have_value(packed.decode())
    expect(dialog.get_by_label("Headers")).to_have_value("trace: a1")
    expect(dialog.get_by_label("Partition")).to_have_value("0")
    assert console.violations() == []
    dialog.get_by_label("Value", exact=True).fill('{"of": "edited"}')
    dialog.get_by_role("button", name="Produce", exact=True).click()
    expect(rows).to_have_count(3)
    expect(page.locator("tr.record").nth(2)).to_contain_text("edited")
    rows.first.click()
    rows.nth(1).click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download value").click()
    assert (saved.value.suggested_filename, saved.value.path().read_bytes()) == ("again-0-1.bin", b"\xff\x00")
    page.get_by_role("button", name="Produce again").click()
    expect(dialog).to_contain_text("sent as they are")
    dialog.get_by_role("button", name="Produce", exact=True).click()
    expect(rows).to_have_count(4)
    copy = json.loads(shop.node.ask("/api/v1/topics/again/partitions/0/records/3"))
    assert (copy["key"], copy["value"], copy["headers"]) == ("aw==", "/wA=", [{"name": "trace", "value": "YTI="}])
    # The browser notes that the button already has the focus.
    console.problems[:] = [each for each in console.problems if "Autofocus" not in each]


def test_an_address_that_makes_no_sense_shows_the_newest(console: ConsolePage) -> None:
    page = console.open("topics/orders/records?from=time&partition=x&since=yesterday&limit=7&decode=xml")
    expect(page.locator(".row-button")).to_have_count(50)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_decoders_are_remembered_by_topic(console: ConsolePage) -> None:
    page = console.open("topics/orders/records")
    page.get_by_role("button", name="More filters").click()
    page.get_by_label("Decode keys").select_option("Hex")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr").first).to_contain_text(b"c".hex())
    page = console.open("topics/customers/records")
    expect(page.locator("tbody tr").first).to_contain_text("c")
    page = console.open("topics/orders/records")
    expect(page.locator("tbody tr .key-cell").first).to_contain_text(b"c".hex())
    expect(page.get_by_label("Decode keys")).to_have_value("hex")


def test_records_are_followed_as_they_arrive(console: ConsolePage, shop: Shop) -> None:
    page = console.open("topics/customers/records")
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_text("live, no records yet", exact=True)).to_be_visible()
    shop.producer.produce("customers", b'{"name": "Grace"}', key=b"c7")
    assert shop.producer.flush(60) == 0
    expect(page.locator("tbody tr")).to_contain_text(["Grace"])
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.keyboard.press("p")
    shop.producer.produce("customers", b'{"name": "Lin"}', key=b"c8")
    assert shop.producer.flush(60) == 0
    expect(page.get_by_text("1 held back while paused")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("tbody tr").first).to_contain_text("Lin")
    # Filters apply at once, and keep the focus.
    expect(page.get_by_role("button", name="Show")).to_have_count(0)
    contains = page.get_by_label("Contains")
    contains.fill("Mary")
    contains.press("Enter")
    expect(page).to_have_url(re.compile("contains=Mary"))
    expect(contains).to_be_focused()
    expect(page.get_by_text("live, no records yet")).to_be_visible()
    for name in ("Ada", "Mary"):
        shop.producer.produce("customers", json.dumps({"name": name}).encode(), key=b"c9")
    assert shop.producer.flush(60) == 0
    expect(page.locator("tbody tr")).to_contain_text(["Mary"])


def test_a_partition_shows_where_its_bytes_are(console: ConsolePage) -> None:
    page = console.open("topics/orders/partitions/0")
    for kind in ("wal", "log_cache", "so"):
        expect(page.locator(f".run.{kind}").first).to_be_visible()
    names = page.locator(".map-place")
    expect(names).to_have_text(["Log", "Log cache", "Stream set objects", "Stream objects"])
    rows = page.locator(".map-row")
    for name, row in zip(names.all(), rows.all(), strict=True):
        above, below = name.bounding_box(), row.bounding_box()
        assert above is not None
        assert below is not None
        assert above["y"] + above["height"] / 2 < below["y"], "each name is above its row"
    page.locator(".run").first.focus()
    expect(page.locator(".map-details")).to_contain_text("write-ahead log: durable, not yet in an object")
    page.keyboard.press("End")
    expect(page.locator(".map-details")).to_contain_text("objects of this partition alone")
    table = page.get_by_role("group", name="Where the bytes are")
    expect(table, "there is room for it").to_contain_text("Stream objects")
    page.get_by_text("The same as a table").click()
    expect(table).to_be_hidden()
    expect(page.get_by_role("group", name="Producers").locator("tbody tr")).to_have_count(1)
    assert console.violations() == []


def test_a_group_that_lags_shows_by_how_much(console: ConsolePage, shop: Shop) -> None:
    page = console.open("groups")
    expect(page.get_by_role("row", name="billing")).to_contain_text(str(LAG))
    expect(page.get_by_role("row", name="shipping")).to_contain_text("Empty")
    page.get_by_role("link", name="billing").click()
    lag = page.locator(".figure", has_text="Lag").locator("dd")
    expect(lag).to_have_text(str(LAG))
    expect(page.get_by_role("figure", name="By partition")).to_be_visible()
    expect(page.locator(".chart canvas"), "the total has an axis of its own").to_have_count(2)
    send_order(shop.producer, 0)
    assert shop.producer.flush(60) == 0
    expect(lag).to_have_text(str(LAG + 1))


def stub_group(console: ConsolePage, shop: Shop, **changed: object) -> None:
    """Let the page of the group `billing` show something else."""
    found = json.loads(shop.node.ask("/api/v1/groups/billing"))
    console.page.route("**/api/v1/groups/billing", lambda route: route.fulfill(json={**found, **changed}))


def test_a_streams_group_shows_its_tasks_and_its_topology(console: ConsolePage, shop: Shop) -> None:
    tasks = {"active": ["0_0", "1_0"], "standby": ["1_1"], "warmup": []}
    member = {"member_id": "m", "client_id": "counter", "host": "/10.20.30.40", "instance_id": None, "assignments": ()}
    topics = {"sources": ["orders"], "repartition_sources": [], "repartition_sinks": ["by-item"]}
    stub_group(
        console,
        shop,
        type="streams",
        members=[{**member, "tasks": tasks}],
        topology=[{"subtopology": "0", "changelogs": ["counts"], **topics}],
    )
    page = console.open("groups/billing")
    row = page.get_by_role("group", name="Members").locator("tbody tr")
    expect(row.get_by_role("cell")).to_contain_text(["/10.20.30.40", "0_0, 1_0", "1_1"])
    row = page.get_by_role("group", name="Topology").locator("tbody tr")
    expect(row.get_by_role("cell")).to_have_text(["orders", "by-item", "counts"])


def test_long_names_stay_in_their_charts(browser: Browser, shop: Shop) -> None:
    names = ["x" * 120, "shop.europe-west.orders-of-private-customers.enriched.v3", "short"]
    row = {
        "partition": 0,
        "start_offset": 0,
        "end_offset": 9,
        "committed": 4,
        "lag": 5,
        "metadata": "",
        "member_id": None,
    }
    for viewport in (DESKTOP, PHONE):
        with console_page(browser, shop.admin, viewport=viewport) as console:
            stub_group(console, shop, offsets=[{**row, "topic": name} for name in names], lag=15)
            page = console.open("groups/billing")
            expect(page.locator(".legend")).to_have_count(4)
            outside = page.evaluate("""[...document.querySelectorAll(".legend")].filter((each) => {
                const [inner, outer] = [each, each.closest("figure")].map((one) => one.getBoundingClientRect());
                return inner.left < outer.left || inner.right > outer.right;
            }).map((each) => each.textContent)""")
            assert outside == []
            assert console.width() <= console.viewport["width"]


def test_addresses_stay_whole(browser: Browser, shop: Shop) -> None:
    with console_page(browser, shop.admin, viewport=PHONE) as console:
        addresses = ["10.0.0.1:9092", "/10.20.30.40", "[2001:db8::1]:9092", "2001:db8::1", "kafka-1.example.com:9092"]
        parts = console.open("groups").evaluate(
            "(texts) => import('/console/js/components/basics.js').then(({ Name }) =>"
            " texts.map((text) => Name({ text }).map(([part]) => part)))",
            [*addresses, "User:alice at 10.0.0.1"],
        )
        assert parts[:4] == [[each] for each in addresses[:4]]
        assert parts[4:] == [["kafka-", "1.", "example.", "com:", "9092"], ["User:", "alice ", "at ", "10.0.0.1"]]
        member = {
            "member_id": "m-1",
            "client_id": "analytics-of-the-shop-1",
            "host": "/10.20.30.40",
            "instance_id": None,
        }
        stub_group(console, shop, members=[{**member, "assignments": [{"topic": "orders", "partition": 0}]}])
        page = console.open("groups/billing")
        host = page.get_by_role("group", name="Members").get_by_role("cell", name="/10.20.30.40")
        assert host.evaluate(LINES) == ["/10.20.30.40"]
        assert page.evaluate(CUT_TABLES) == []


def test_sections_that_do_not_fit_are_announced(browser: Browser, shop: Shop) -> None:
    with console_page(browser, shop.admin) as console:
        console.open()
        expect(console.page.locator(".arrow-before, .arrow-after")).to_have_count(0)
    with console_page(browser, shop.admin, viewport=PHONE) as console:
        page = console.open()
        before, after = page.locator(".arrow-before"), page.locator(".arrow-after")
        expect(before).to_have_count(0)
        expect(page.get_by_role("link", name="Audit")).not_to_be_in_viewport()
        after.tap()
        expect(before).to_be_visible()
        page.get_by_role("link", name="Audit").scroll_into_view_if_needed()
        expect(after).to_have_count(0)
        before.tap()
        expect(after).to_be_visible()
        page = console.open("audit")  # the section of the page is in view from the start
        expect(page.get_by_role("link", name="Audit")).to_be_in_viewport(ratio=0.99)  # but for rounding
        assert console.violations() == []


def test_an_open_transaction_is_shown(console: ConsolePage) -> None:
    page = console.open("transactions")
    row = page.get_by_role("group", name="Open transactions").get_by_role("row", name="ledger-1")
    expect(row).to_contain_text("Ongoing")
    row.get_by_role("link", name="customers 0").click()
    expect(page.get_by_text("open since offset 1")).to_be_visible()


def test_storage_shows_the_ring_and_the_calls(console: ConsolePage, shop: Shop) -> None:
    page = console.open("storage")
    wal = json.loads(shop.node.ask("/api/v1/storage"))["wal"]
    share = wal["used_bytes"] / wal["capacity_bytes"]
    expect(page.get_by_role("img", name=f"{round(100 * share)} percent of the log is in use")).to_be_visible()
    drawn = page.evaluate("document.querySelector('.ring-used').getTotalLength() / (2 * Math.PI * 82)")
    assert drawn == pytest.approx(share, abs=0.005)
    head = page.locator(".ring-head")
    end = [float(head.get_attribute(name) or "nan") for name in ("cx", "cy")]
    turn = wal["write_position"] / wal["capacity_bytes"] * 2 * math.pi
    assert end == pytest.approx([100 + 82 * math.sin(turn), 100 - 82 * math.cos(turn)], abs=0.5)
    expect(page.get_by_role("group", name="Objects")).to_contain_text("Stream objects")
    expect(page.get_by_role("group", name="Calls to the store")).to_contain_text("PUT")


def test_the_cost_is_of_prices_that_can_be_changed(console: ConsolePage) -> None:
    page = console.open("cost")
    price = page.get_by_label("1 GB in objects for a month")
    cost = page.get_by_role("row", name=re.compile("^objects ")).get_by_role("cell").nth(2)
    expect(price).to_have_value("0.023")
    expect(cost).to_have_text("0.00")
    price.fill("1e9")
    price.press("Enter")
    expect(cost).not_to_have_text("0.00")
    page.reload()
    expect(price).to_have_value("1000000000")
    page.evaluate("localStorage.setItem('anabranch.prices', '{\"zone_gb\": 1e16, \"put\": 1}')")
    page.reload()
    expect(page.get_by_label("1 GB between zones")).to_have_value("0.02")
    page.get_by_role("button", name="Back to list prices").click()
    expect(price).to_have_value("0.023")
    expect(cost).to_have_text("0.00")


def test_times_are_in_utc_in_every_time_zone(browser: Browser, shop: Shop) -> None:
    producer = Producer({"bootstrap.servers": shop.node.bootstrap})
    for at_ms, key in ((1_772_627_401_250, b"noon"), (1_772_627_402_250, b"later")):
        producer.produce("times", b"x", key=key, timestamp=at_ms)
        assert producer.flush(60) == 0
    with console_page(browser, shop.admin, timezone="Asia/Tokyo") as console:
        page = console.open("topics/times/records?from=earliest")
        row = page.get_by_role("row", name="noon")
        expect(row.locator("time")).to_have_text("2026-03-04T12:30:01.250Z")
        expect(row.locator("time")).to_have_attribute("title", re.compile(r"4 Mar 2026, 21:30:01"))
        page.get_by_label("Since (UTC)").fill("2026-03-04T12:30:02")
        page.get_by_role("button", name="Show").click()
        expect(page.locator(".row-button")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("later")
        page = console.open()
        expect(page.locator(".chart-time").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\dZ$"))
        assert console.problems == []


def test_sizes_have_the_unit_that_they_are_rounded_to(console: ConsolePage) -> None:
    page = console.open()
    shown = page.evaluate(
        "import('/console/js/format.js').then(({ bytes }) => [0, 1023, 1536, 2**30 - 4096, 1e15].map(bytes))"
    )
    assert shown == ["0 B", "1023 B", "1.5 KiB", "1 GiB", "909 TiB"]
    shown = page.evaluate(
        "import('/console/js/format.js').then(({ percent, perSecond, bytesPerSecond }) =>"
        " [percent(0.0123), percent(1.5), perSecond(0.25), perSecond(1234), bytesPerSecond(1536)])"
    )
    assert shown == ["1.2 %", "150 %", "0.3/s", "1,234/s", "1.5 KiB/s"]


def test_a_click_anywhere_in_a_record_opens_it(console: ConsolePage) -> None:
    page = console.open("topics/orders/records?from=offset&at=7&partition=1")
    row = page.locator("tr.record").first
    row.locator(".value-cell").click()
    details = page.locator(".record-details")
    expect(details).to_contain_text('"order": 22')
    details.get_by_text("Timestamp").click()  # what is open stays so while somebody reads it
    expect(details).to_have_count(1)
    row.locator(".value-cell").click()
    expect(details).to_have_count(0)
    row.get_by_role("button").press("Enter")
    expect(details).to_have_count(1)
    row.get_by_role("button").click()
    expect(details).to_have_count(0)
    row.locator(".key-cell span").select_text()
    row.locator(".key-cell").dispatch_event("click")
    expect(details, "who selects a text wants to copy it").to_have_count(0)


def test_a_topic_that_does_not_exist_can_be_created_on_its_page(console: ConsolePage, shop: Shop) -> None:
    for route, text in (
        ("topics/nope/records", "Topic nope does not exist."),
        ("topics/nope/partitions/0", "Topic nope does not exist."),
        ("topics/orders/partitions/9", "Partition 9 of topic orders does not exist."),
        ("groups/nobody", "Group nobody does not exist."),
        ("topics/nope", "Topic nope does not exist."),
    ):
        page = console.open(route)
        expect(page.get_by_text(text)).to_have_count(1)
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_role("link", name=re.compile("^All (topics|groups)$"))).to_be_visible()
        assert console.violations() == [], route
    page = console.page
    expect(page.get_by_role("link", name="Browse records")).to_have_count(0)
    page.get_by_role("button", name="Create this topic").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_have_value("nope")
    dialog.get_by_role("button", name="Show the plan").click()
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("The topic has no records.")).to_be_visible()
    expect(page.get_by_role("link", name="Browse records")).to_be_visible()
    assert "nope" in shop_topics(shop)
    # The browser itself notes each request for what is not there, and that the button already has the focus.
    assert [each for each in console.problems if "404" not in each and "Autofocus" not in each] == []
    console.problems.clear()


def test_a_phone_is_spoken_to_as_one(browser: Browser, shop: Shop) -> None:
    with console_page(browser, shop.admin, viewport=PHONE) as console:
        page = console.open("topics/orders/partitions/0")
        expect(page.get_by_text("Tap a piece for its details.")).to_be_visible()
        empty = page.locator(".map-details").bounding_box()
        assert empty is not None
        assert empty["height"] < 40, "no room is kept for what a tap may show"
        page.locator(".run.so").first.tap()
        expect(page.locator(".map-details")).to_contain_text("objects of this partition alone")
        assert page.locator(".map-details").evaluate("(each) => each.scrollWidth <= each.clientWidth"), "it fits"
        page = console.open("topics/orders")
        # Names of configs break at their dots only.
        name = page.get_by_role("row", name="max.message.bytes").get_by_role("rowheader")
        words = name.evaluate(LINES)
        assert "".join(words) == "max.message.bytes"
        assert set(words) <= {"max.", "max.message.", "message.", "message.bytes", "bytes", "max.message.bytes"}
        assert console.problems == []


def test_keys_lead_to_pages_and_change_the_colours(console: ConsolePage) -> None:
    page = console.open()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to storage")
    heights = {box["height"] for each in page.locator("kbd").all() if (box := each.bounding_box()) is not None}
    assert len(heights) == 1, "no key is stretched by a text of two lines"
    assert console.violations() == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.locator("main h1")).to_contain_text("Storage")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.keyboard.press("d")  # from the system's colours to light ones
    page.keyboard.press("d")
    assert page.evaluate(background) != light
    page.reload()
    assert page.evaluate(background) != light


def test_charts_without_data_say_so(console: ConsolePage) -> None:
    patterns = ("**/api/v1/live", "**/api/v1/cluster/figures")
    for pattern in patterns:
        console.page.route(pattern, lambda _: None)  # which is not answered
    for route in ("", "storage"):
        page = console.open(route)
        expect(page.get_by_text("Waiting for data …")).to_have_count(2)
        assert console.violations() == []
    for pattern in patterns:
        console.page.unroute(pattern)
    console.page.reload()
    expect(console.page.locator(".chart")).to_have_count(2)
    expect(console.page.get_by_text("Waiting for data …")).to_have_count(0)


def test_a_node_shows_what_it_uses(console: ConsolePage) -> None:
    page = console.open()
    page.get_by_role("row", name="1 this up").get_by_role("link", name="1").click()
    expect(page.locator("main h1")).to_have_text("Node 1")
    figures = page.locator(".figure")
    expect(figures.filter(has_text="CPU").locator("dd")).to_have_text(re.compile(r"^[\d.]+ % ?of a core"))
    expect(figures.filter(has_text="Connections").locator("dd")).to_have_text(re.compile(r"^\d+$"))
    expect(figures.filter(has_text="Up for").locator("dd")).to_have_text(re.compile(r"\d+ (s|min|h)$"))
    expect(page.get_by_text("Waiting for data …")).to_have_count(0)
    traffic = page.get_by_role("figure", name="Traffic of Kafka clients")
    expect(traffic).to_contain_text(re.compile(r"in \d+ B/s"))
    expect(page.locator(".chart canvas")).to_have_count(4)
    console.open("nodes/9")
    expect(page.get_by_text("Node 9 is not registered.")).to_be_visible()


def test_connectors_are_shown_and_changed(console: ConsolePage, shop: Shop) -> None:
    trace = "org.apache.kafka.connect.errors.ConnectException: no such table\n\tat org.example.Task.start"
    task = {"id": 0, "state": "RUNNING", "worker": "10.0.0.7:8083", "trace": None}
    tasks = [task, {**task, "id": 1, "state": "FAILED", "trace": trace}]
    connector = {"name": "orders", "type": "source", "state": "RUNNING", "worker": "", "trace": None, "tasks": tasks}
    clusters = [
        {"name": "connect:8083", "error": None, "connectors": [connector]},
        {"name": "other:8083", "error": "no answer within 5 s", "connectors": []},
    ]
    session = {**json.loads(shop.node.ask("/api/v1/session")), "has_connect": True}
    changes: list[str] = []

    def change(route: Route) -> None:
        changes.append(route.request.url.partition("/connect/")[2])
        route.fulfill(json={"cluster": "connect:8083", "connector": "orders"})

    page = console.page
    page.route("**/api/v1/session", lambda route: route.fulfill(json=session))
    page.route("**/api/v1/connect", lambda route: route.fulfill(json={"clusters": clusters}))
    page.route("**/api/v1/connect/**", change)
    console.open()
    page.get_by_role("link", name="Connect").click()
    row = page.get_by_role("row", name="orders running")
    expect(row).to_contain_text("1 running, 1 failed")
    expect(page.get_by_text("no answer within 5 s")).to_be_visible()
    page.get_by_text("Stack trace").click()
    expect(page.locator(".failure pre")).to_have_text(trace)
    assert console.violations() == []
    dialog = page.get_by_role("dialog")
    for name in ("Pause orders", "Restart orders", "Restart orders, task 1"):
        page.get_by_role("button", name=name, exact=True).click()
        expect(dialog.locator(".plan")).to_be_visible()
        dialog.get_by_role("button", name=name.partition(" ")[0], exact=True).click()
        expect(dialog).to_have_count(0)
    base = "connect%3A8083/connectors/orders"
    assert changes == [f"{base}/pause", f"{base}/restart", f"{base}/tasks/1/restart"]
    page.set_viewport_size(PHONE)
    assert console.width() <= PHONE["width"]
    assert page.evaluate(CUT_TABLES) == []


def test_json_is_indented_unless_a_number_would_be_rounded(console: ConsolePage) -> None:
    page = console.open("topics")
    indent = """(text) => import('/console/js/components/payload.js')
        .then(({ pretty }) => pretty({ format: 'json', text }))"""
    kept = '{"a": "\\"", "b": 1234567890123456}'
    assert page.evaluate(indent, kept) == '{\n  "a": "\\"",\n  "b": 1234567890123456\n}'
    rounded = '{"a": 12345678901234567890}'
    assert page.evaluate(indent, rounded) == rounded


def test_rates_are_not_guessed(console: ConsolePage) -> None:
    found = console.open("topics").evaluate("""import('/console/js/figures.js').then(({ rates, totals }) => {
        const figures = (node, at_ms, requests, started_ms = 0) => ({ node, at_ms, started_ms, requests });
        const sample = (...nodes) => ({ byNode: new Map(nodes.map((each) => [each.node, each])) });
        const all = [
            sample(figures(1, 0, 10), figures(2, 0, 0)),
            sample(figures(1, 2000, 30), figures(2, 2000, 4)),
            sample(figures(1, 4000, 50)), // node 2 does not answer
            sample(figures(1, 6000, 5, 5500), figures(2, 6000, 8)), // node 1 has started again
        ];
        return [rates(all, 1, "requests"), rates(all, 2, "requests"), totals(all, "requests")];
    })""")
    assert found == [[10, 10, None], [2, None, None], [12, 10, None]]
