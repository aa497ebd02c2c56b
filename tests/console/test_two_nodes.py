"""The console of one node shows the other one, too: its figures, moves of partitions, and its end."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

from tests.console.browser import console_page
from tests.support.events import create_topic
from tests.support.node import NodeProcess
from tests.support.node_processes import node_processes
from tests.support.waiting import wait_until

PARTITIONS = 4


def leaders(node: NodeProcess) -> list[Any]:
    """The leader of each partition of the topic."""
    return [each["leader"] for each in json.loads(node.ask("/api/v1/topics/orders"))["partitions"]]


def test_the_other_node_is_shown_and_its_partitions_are_moved(browser: Browser, tmp_path: Path) -> None:
    with (
        node_processes(tmp_path, 2, f"sqlite:///{tmp_path}/catalog.db") as (first, second),
        console_page(browser, first.admin) as console,
    ):
        create_topic(first.bootstrap, "orders", PARTITIONS)
        page = console.open()
        row = page.get_by_role("row", name="2 up")
        expect(row).to_contain_text("B/s")
        expect(row).to_contain_text("MiB")
        row.get_by_role("link", name="2").click()
        expect(page.locator("main h1")).to_have_text("Node 2")
        expect(page.locator(".figure", has_text="Up for").locator("dd")).to_have_text(re.compile(r"\d+ (s|min|h)$"))

        page = console.open("balance")
        dialog = page.get_by_role("dialog")
        page.get_by_role("button", name="Drain node 2").click()
        expect(dialog.locator(".plan")).to_contain_text("of node 2 will move to other nodes")
        assert console.violations() == []
        dialog.get_by_role("button", name="Drain", exact=True).click()
        expect(page.get_by_role("row", name="2 draining 0")).to_be_visible()
        expect(page.get_by_role("group", name="Not at the preferred leader")).to_have_count(0)
        wait_until(lambda: leaders(first) == [1] * PARTITIONS, "node 1 leads all partitions")
        page.get_by_role("button", name="End the drain of node 2").click()
        dialog.get_by_role("button", name="End the drain").click()
        strays = page.get_by_role("group", name="Not at the preferred leader").locator("tbody tr")
        expect(strays.first).to_be_visible()
        assert console.violations() == []
        page.get_by_role("button", name="Elect preferred leaders").click()
        dialog.get_by_role("button", name="Elect", exact=True).click()
        expect(strays).to_have_count(0)
        wait_until(lambda: set(leaders(first)) == {1, 2}, "both nodes lead partitions")
        page.get_by_role("button", name="Move partitions").click()
        dialog.get_by_label("Topic").select_option("orders")
        dialog.get_by_label("Partitions").fill("0, 1")
        dialog.get_by_label("To", exact=True).select_option("node 2")
        dialog.get_by_role("button", name="Show the plan").click()
        expect(dialog.locator(".plan")).to_contain_text("Node 2 will lead 2 partitions of orders: 0, 1.")
        dialog.get_by_role("button", name="Move", exact=True).click()
        expect(page.get_by_text("The moves are ordered.").first).to_be_visible()
        wait_until(lambda: leaders(first)[:2] == [2, 2], "node 2 leads the partitions")
        expect(page.get_by_text("No partition is being moved.")).to_be_visible()

        paused = page.get_by_text("Balancing is paused: no partition moves by itself.")
        expect(paused).to_be_visible()
        page.get_by_role("button", name="Resume balancing").click()
        expect(dialog.locator(".plan")).to_contain_text("Partitions will move by themselves again")
        dialog.get_by_role("button", name="Resume", exact=True).click()
        expect(paused).to_have_count(0)
        page.get_by_role("button", name="Pause balancing").click()
        expect(dialog.locator(".plan")).to_contain_text("No partition will move by itself")
        dialog.get_by_role("button", name="Pause", exact=True).click()
        expect(paused).to_be_visible()
        expect(page.get_by_role("group", name="Load by node").get_by_role("row", name="2 0.000")).to_be_visible()
        expect(page.get_by_text("Node 1 has moved nothing since it became the controller.")).to_be_visible()
        assert console.violations() == []

        create_topic(first.bootstrap, "shared", 1, factor=2)
        page = console.open("topics/shared")
        row = page.get_by_role("group", name="Partitions").get_by_role("row", name="0 node")
        expect(row).to_contain_text(re.compile("node 1.*node 2|node 2.*node 1"))
        page = console.open("topics/shared/partitions/0")
        expect(page.locator(".figure", has_text="Replicas").locator("dd")).to_contain_text(
            re.compile("^node [12]one that")
        )

        page = console.open()
        second.kill9()
        expect(page.get_by_text("Node 2 is down")).to_be_visible()
        expect(page.get_by_text("Every partition has a leader")).to_have_count(0)
        assert console.problems == []
