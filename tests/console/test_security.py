"""Users, ACLs, delegation tokens, quotas and audit events: what operators see and change, and what readers see."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from tests.broker.kafka.sasl.clients import LISTENERS, PASSWORD, log_in
from tests.console.browser import DESKTOP, PHONE, ConsolePage, console_page
from tests.console.test_pages import CUT_TABLES
from tests.support.node import NodeProcess
from tests.support.raw_client import raw_client
from tests.support.waiting import WAIT_S

READ, OPERATE = "r" * 20, "o" * 20
PAGES: Final = {
    "security": "Users",
    "security/acls": "ACLs",
    "security/tokens": "Delegation tokens",
    "quotas": "Quotas",
    "audit": "Audit log",
}


class Secure:
    """A node with an authorizer, delegation tokens and an admin port with tokens."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The node's answer to a request to the API, as an operator."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {OPERATE}", "Content-Type": "application/json"}
        request = Request(f"http://{self.node.admin}/api/v1{path}", data, headers, method=method)
        with urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def can_log_in(self, user: str, password: str) -> bool:
        async def try_it() -> bool:
            async with raw_client(self._listener) as client:
                return bool((await log_in(client, user, password)).error_code == ErrorCode.NONE)

        return bool(apart(try_it()))

    def create_token(self, user: str) -> str:
        """Let a user ask for a delegation token; return its id."""

        async def create() -> str:
            async with raw_client(self._listener) as client:
                assert (await log_in(client, user)).error_code == ErrorCode.NONE
                return str((await client.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)).token_id)

        return str(apart(create()))

    @property
    def _listener(self) -> str:
        listeners: str = self.node.events("serving")[-1]["listeners"]
        return listeners.split("SASL_PLAINTEXT://")[1]


def apart(work: Any) -> object:
    """Run a coroutine in a thread: this one has the event loop of the browser."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """Such a node, with something for each page to show."""
    folder = tmp_path_factory.mktemp("secure")
    settings: dict[str, object] = {}
    for name, text in (
        ("admin_read_token", READ),
        ("admin_operate_token", OPERATE),
        ("delegation_token_secret_key", "k" * 40),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
        settings[f"{name}_file"] = folder / name
    with NodeProcess(
        folder,
        listeners=LISTENERS,
        authorizer_enabled=True,
        authorizer_super_users="User:root",
        sasl_failed_authentication_delay_ms=0,
        **settings,
    ) as node:
        running = Secure(node)
        running.ask("POST", "/users", {"name": "carol", "password": PASSWORD})
        running.create_token("carol")
        topic = {"type": "topic", "name": "a-topic-with-a-rather-long-name-", "pattern": "prefixed"}
        group = {"type": "group", "name": "*"}
        running.ask("POST", "/acls", {"principal": "carol", "role": "consumer", "resources": [topic, group]})
        denied = {"principal": "User:*", "permission": "deny", "host": "10.0.0.1", "operations": ["alter"]}
        running.ask("POST", "/acls", {**denied, "resources": [{"type": "cluster", "name": "kafka-cluster"}]})
        entity = [{"type": "user", "name": "carol"}, {"type": "client-id", "name": None}]
        quotas = {"producer_byte_rate": 10 << 20, "consumer_byte_rate": 1500, "request_percentage": 12.5}
        running.ask("PATCH", "/quotas", {"entity": entity, "quotas": quotas})
        yield running


def as_client(console: ConsolePage, token: str) -> ConsolePage:
    """Let the tab send a token."""
    console.page.add_init_script(f"sessionStorage.setItem('anabranch.token', '{token}')")
    return console


@pytest.fixture
def console(browser: Browser, secure: Secure) -> Iterator[ConsolePage]:
    with console_page(browser, secure.node.admin) as page:
        yield as_client(page, OPERATE)
        assert page.problems == []


def carry_out(page: Page, verb: str) -> None:
    """Show the plan of the dialog, and carry it out."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Show the plan").click()
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize(("kind", "dark"), [("desktop", False), ("phone", True)])
def test_every_page_is_accessible_and_fits(browser: Browser, secure: Secure, kind: str, dark: bool) -> None:
    with console_page(browser, secure.node.admin, viewport=PHONE if kind == "phone" else DESKTOP, dark=dark) as console:
        as_client(console, OPERATE)
        for route, title in PAGES.items():
            page = console.open(route)
            expect(page.locator("main h1")).to_have_text(title)
            expect(page.locator("tbody tr").first).to_be_visible()
            assert console.violations() == [], route
            assert console.width() <= console.viewport["width"], route
            assert page.evaluate(CUT_TABLES) == [], route
        assert console.problems == []


def test_a_user_is_created_given_a_new_password_and_deleted(console: ConsolePage, secure: Secure) -> None:
    page = console.open("security")
    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    dialog.get_by_label("Name").fill("älice")
    dialog.get_by_label("Password", exact=True).fill("first")
    dialog.get_by_label("SCRAM-SHA-256").uncheck()
    dialog.get_by_label("SCRAM-SHA-512").uncheck()
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("choose at least one mechanism")
    dialog.get_by_label("SCRAM-SHA-256").check()
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("must consist of ASCII characters")
    console.problems.clear()  # the browser notes the refusal, which was wanted
    assert console.violations() == []
    dialog.get_by_label("Name").fill("alice")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("SCRAM-SHA-256the new password, with 4,096 iterations")
    assert "alice" not in [each["name"] for each in secure.ask("GET", "/users")["users"]]
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("row", name="alice")).to_contain_text("SCRAM-SHA-256")
    assert secure.can_log_in("alice", "first")

    page.get_by_role("button", name="New password for alice").click()
    dialog.get_by_role("button", name="Generate").click()
    password = dialog.get_by_label("Password", exact=True).input_value()
    assert len(password) == 24
    expect(dialog.get_by_label("Password", exact=True)).to_have_attribute("type", "text")
    dialog.get_by_label("Show the password").uncheck()
    expect(dialog.get_by_label("Password", exact=True)).to_have_attribute("type", "password")
    carry_out(page, "Set the password")
    assert secure.can_log_in("alice", password)
    assert not secure.can_log_in("alice", "first")

    page.get_by_role("button", name="Delete carol").click()
    expect(dialog.locator(".plan")).to_contain_text("1 delegation token of the user will be gone, too")
    expect(dialog.locator(".plan")).to_contain_text("3 ACLs of User:carol stay")
    assert console.violations() == []
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete alice").click()
    dialog.get_by_label("Type alice to confirm").fill("alice")
    dialog.get_by_role("button", name="Delete the user").click()
    expect(page.get_by_role("row", name="alice")).to_have_count(0)
    assert [each["name"] for each in secure.ask("GET", "/users")["users"]] == ["carol"]
    page.get_by_role("link", name="ACLs of carol").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_label("Principal")).to_have_value("User:carol")


def test_acls_are_created_found_and_deleted(console: ConsolePage, secure: Secure) -> None:
    page = console.open("security/acls")
    rows = page.locator("main tbody tr")
    expect(page.get_by_text("4 ACLs. Super users may do everything: User:root.")).to_be_visible()
    expect(page.get_by_role("row", name="User:*")).to_contain_text("not alter the cluster10.0.0.1")
    page.get_by_label("Applies to").fill("a-topic-with-a-rather-long-name-1")
    page.get_by_label("Applies to").press("Enter")
    expect(rows).to_have_count(3)  # an ACL of every group would apply to a group of this name, too
    page.locator("form").get_by_label("Type").select_option("topic")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("topic beginning with a-topic-with-a-rather-long-name-")
    page.get_by_label("Operation").select_option("read")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(4)
    expect(page.get_by_label("Applies to")).to_have_value("")

    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    dialog.get_by_label("Principal").fill("etl")
    dialog.get_by_label("To", exact=True).select_option("producer")
    dialog.get_by_label("Topic").fill("orders")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan tbody tr")).to_have_count(3)
    assert console.violations() == []
    dialog.get_by_label("Permission").select_option("deny")
    dialog.get_by_label("Type of the resource").select_option("group")
    dialog.get_by_label("Name", exact=True).fill("readers")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("choose at least one operation")
    dialog.get_by_label("delete").check()
    dialog.get_by_label("describe", exact=True).check()
    assert len(secure.ask("GET", "/acls")["acls"]) == 4
    carry_out(page, "Create")
    expect(page.get_by_text("2 ACLs created.")).to_be_visible()
    page.get_by_label("Principal").fill("etl")
    page.get_by_label("Principal").press("Enter")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Delete: deny User:etl delete group readers").click()
    expect(dialog.locator(".plan tbody tr")).to_have_count(1)
    dialog.get_by_role("button", name="Delete the ACL").click()
    expect(rows).to_have_count(1)
    page.get_by_label("Principal").fill("carol")
    page.get_by_label("Principal").press("Enter")
    page.get_by_role("button", name="Delete these 3").click()
    expect(dialog.locator(".plan tbody tr")).to_have_count(3)
    dialog.get_by_role("button", name="Cancel").click()
    (left,) = secure.ask("GET", "/acls?principal=etl")["acls"]
    assert (left["operation"], left["permission"]) == ("describe", "deny")
    secure.ask("POST", "/acls/delete", {"acls": [left]})


def test_a_token_is_revoked(console: ConsolePage, secure: Secure) -> None:
    token_id = secure.create_token("carol")
    page = console.open("security/tokens")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name=f"Revoke {token_id}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".plan")).to_contain_text("Clients can no longer log in as User:carol with it")
    dialog.get_by_label(f"Type {token_id} to confirm").fill(token_id)
    dialog.get_by_role("button", name="Revoke the token").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert token_id not in [each["id"] for each in secure.ask("GET", "/delegation-tokens")["tokens"]]


def test_quotas_are_set_changed_and_removed(console: ConsolePage, secure: Secure) -> None:
    page = console.open("quotas")
    expect(page.get_by_role("row", name="user carol, any client id")).to_contain_text(
        "Consume: 1.5 KiB/sProduce: 10 MiB/s"
    )
    expect(page.get_by_role("status").filter(has_text="with quotas")).to_have_text("1 entity with quotas")
    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    dialog.get_by_label("Of", exact=True).select_option("ip")
    dialog.get_by_label("Any address").check()
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("give at least one quota")
    dialog.get_by_label("New connections").fill("many")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("“many” is no number")
    dialog.get_by_label("New connections").fill("10")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("no quota → 10/s")
    assert console.violations() == []
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("row", name="any address")).to_contain_text("New connections: 10/s")

    page.get_by_role("button", name="Change quotas of user carol, any client id").click()
    expect(dialog.get_by_label("Consume")).to_have_value("1500")
    dialog.get_by_label("Produce").fill("5 MB")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("“5 MB”: expected bytes")
    dialog.get_by_label("Produce").fill("5 MiB")
    dialog.get_by_label("Consume").fill("")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("Produce10 MiB/s → 5 MiB/sConsume1.5 KiB/s → no quota")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("2 quotas changed.")).to_be_visible()
    quotas = {len(each["entity"]): each["quotas"] for each in secure.ask("GET", "/quotas")["quotas"]}
    assert quotas == {
        1: {"connection_creation_rate": 10},
        2: {"producer_byte_rate": 5 << 20, "request_percentage": 12.5},
    }

    page.get_by_role("button", name="Remove quotas of any address").click()
    expect(dialog.locator(".plan")).to_contain_text("10/s → no quota")
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("row", name="any address")).to_have_count(0)


def test_audit_events_are_filtered(console: ConsolePage, secure: Secure) -> None:
    assert not secure.can_log_in("mallory", "guessed")
    page = console.open("audit")
    expect(page.get_by_text("in the memory of node 1, which keeps the last 500 of each kind")).to_be_visible()
    page.locator("form").get_by_label("Event").select_option("authentication failed")
    page.get_by_label("Principal").fill("MALL")
    page.get_by_label("Principal").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("mallory at 127.0.0.1")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Resource").fill("User:carol")
    page.get_by_label("Resource").press("Enter")
    expect(page.get_by_role("row", name="CreateAcls").first).to_contain_text("ALLOW User:carol at *")
    page.get_by_label("Outcome").fill("nothing")
    page.get_by_label("Outcome").press("Enter")
    expect(page.get_by_text("No event in memory passes these filters.")).to_be_visible()


def test_a_reader_is_offered_no_changes_and_no_audit_log(browser: Browser, secure: Secure) -> None:
    with console_page(browser, secure.node.admin) as console:
        as_client(console, READ)
        page = console.page
        for route in ("security", "security/acls", "security/tokens", "quotas"):
            console.open(route)
            expect(page.locator("tbody tr").first).to_be_visible()
            assert page.locator("main button:not(.sort)").all_inner_texts() == [], route
        expect(page.get_by_role("link", name="Quotas", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="Audit", exact=True)).to_have_count(0)
        console.open("audit")
        expect(page.get_by_text("Only operators may see the audit log.")).to_be_visible()
        assert console.problems == [], "it is not even asked for"
