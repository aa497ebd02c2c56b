"""A node that stops or hangs under the page, and comes back."""

import os
import signal
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.browser import console_page
from tests.support.node import NodeProcess


def test_a_page_outlives_its_node(browser: Browser, tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node, console_page(browser, node.admin) as console:
        node.settings["admin_port"] = int(node.admin.rpartition(":")[2])
        page = console.open()
        expect(page.get_by_text("Every partition has a leader")).to_be_visible()
        assert console.problems == []
        node.kill9()
        outage = page.get_by_text("does not answer. Trying again")
        expect(outage).to_be_visible()
        expect(page.get_by_text("Every partition has a leader"), "nobody knows").to_have_count(0)
        expect(page.get_by_text("The state is not known")).to_be_visible()
        expect(page.get_by_role("row", name="1 this"), "what was shown stays").to_be_visible()
        assert console.violations() == []
        page.get_by_role("link", name="Storage").click()
        expect(page.locator("main h1")).to_have_text("Storage")
        expect(page.get_by_text("Loading …")).to_be_visible()
        expect(page.get_by_role("alert"), "nothing is said twice").to_have_count(0)
        # The browser itself notes each request that failed; the page adds nothing to that.
        assert all("ERR_" in each for each in console.problems), console.problems
        node.start()
        expect(outage).to_have_count(0)
        expect(page.get_by_role("img", name="percent of the log is in use")).to_be_visible()


def test_a_node_that_hangs_is_noticed(browser: Browser, tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node, console_page(browser, node.admin) as console:
        page = console.open("topics")
        expect(page.get_by_text("There are no topics yet.")).to_be_visible()
        outage = page.get_by_text("does not answer. Trying again")
        os.kill(node.pid, signal.SIGSTOP)  # its sockets stay open, and take what is sent
        try:
            expect(outage).to_be_visible()
        finally:
            os.kill(node.pid, signal.SIGCONT)
        expect(outage).to_have_count(0)
        assert console.problems == []
