"""Tokens: asked for once, kept for the tab, and what a reader sees."""

import urllib.error
from collections.abc import Iterator

import pytest
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, expect

from tests.console.browser import ConsolePage, console_page
from tests.console.tokens import OPERATE, READ, guarded_node
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose admin port needs a token, and shows records to operators only."""
    folder = tmp_path_factory.mktemp("guarded")
    with guarded_node(folder, [NewTopic("t", 1, 1)], admin_records="operators") as node:
        yield node


@pytest.fixture
def console(browser: Browser, guarded: NodeProcess) -> Iterator[ConsolePage]:
    with console_page(browser, guarded.admin) as page:
        yield page
        refusals = [each for each in page.problems if "401" not in each]
        assert refusals == []


def sign_in(console: ConsolePage, token: str) -> None:
    page = console.open()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_a_wrong_token_is_refused_and_a_right_one_kept_for_the_tab(console: ConsolePage) -> None:
    sign_in(console, "x" * 20)
    page = console.page
    expect(page.get_by_role("alert")).to_contain_text("The node does not accept this token")
    assert console.violations() == []
    sign_in(console, OPERATE)
    expect(page.locator("main h1")).to_have_text("Cluster")
    page.reload()
    expect(page.locator("main h1")).to_have_text("Cluster")
    assert page.evaluate("localStorage.length") == 0
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("main h1")).to_have_text("Sign in")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_new_tab_fails_no_authentication(console: ConsolePage, guarded: NodeProcess) -> None:
    before = len(guarded.events("authentication failed"))
    page = console.open()
    expect(page.locator("main h1")).to_have_text("Sign in")
    page.reload()
    expect(page.locator("main h1")).to_have_text("Sign in")
    assert console.problems == []
    # What is in the log behind this one was not there before it.
    with pytest.raises(urllib.error.HTTPError, match="401"):
        guarded.ask("/api/v1/status")
    wait_until(lambda: len(guarded.events("authentication failed")) > before, "it is logged")
    assert [each["action"] for each in guarded.events("authentication failed")[before:]] == ["GET /api/v1/status"]


def test_a_reader_is_offered_no_changes_and_no_records(console: ConsolePage) -> None:
    sign_in(console, READ)
    page = console.page
    expect(page.get_by_text("read only")).to_be_visible()
    page.get_by_role("link", name="Topics").first.click()
    expect(page.locator("main h1")).to_have_text("Topics")
    expect(page.get_by_role("button", name="Create a topic")).to_have_count(0)
    page.route("**/api/v1/topics", lambda route: route.fulfill(json={"topics": [], "more": False, "unreachable": []}))
    page.reload()
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    expect(page.get_by_text("Create one here")).to_have_count(0)
    console.open("topics/t/records")
    expect(page.get_by_text("You may not see records here.")).to_be_visible()
