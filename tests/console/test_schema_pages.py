"""The pages of the schema registry: its subjects, their versions, and what readers are not offered."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, expect

from tests.console.browser import DESKTOP, PHONE, ConsolePage, console_page
from tests.console.test_pages import CUT_TABLES
from tests.console.tokens import OPERATE, READ, as_client, ask, guarded_node
from tests.support.node import NodeProcess

ID: Final = {"name": "id", "type": "long"}
NOTE: Final = {"name": "note", "type": "string", "default": ""}
ORDER: Final = {"type": "record", "name": "Order", "fields": [ID]}
NOTED_ORDER: Final = {**ORDER, "fields": [ID, NOTE]}
CRATE: Final = {"type": "record", "name": "Crate", "fields": [{"name": "order", "type": "Order"}]}


class Registry:
    """A node whose admin port has tokens, and its schema registry."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The registry's answer, to an operator."""
        return ask(self.node, method, f"/schema-registry{path}", body)

    def register(self, subject: str, schema: Mapping[str, Any], **body: Any) -> int:
        """Register a version; return its id."""
        body["schema"] = json.dumps(schema)
        return int(self.ask("POST", f"/subjects/{subject}/versions", body)["id"])


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Such a node, with a topic `orders` and no schemas."""
    with guarded_node(tmp_path_factory.mktemp("registry"), [NewTopic("orders", 1, 1)]) as node:
        yield Registry(node)


@pytest.fixture(scope="module")
def filled(registry: Registry) -> Registry:
    """The registry with two versions of `orders-value`, a schema that refers to the first, and a deleted subject."""
    registry.register("orders-value", ORDER)
    registry.register("orders-value", NOTED_ORDER)
    reference = {"name": "Order", "subject": "orders-value", "version": 1}
    registry.register("crates", CRATE, references=[reference])
    registry.register("places", {"type": "object"}, schemaType="JSON")
    registry.ask("PUT", "/config/places", {"compatibility": "FULL"})
    registry.register("former", {"type": "string"})
    registry.ask("DELETE", "/subjects/former")
    return registry


@pytest.fixture
def console(browser: Browser, registry: Registry) -> Iterator[ConsolePage]:
    with console_page(browser, registry.node.admin) as page:
        yield as_client(page, OPERATE)
        assert page.problems == []


def test_an_empty_registry_says_how_to_register_the_first_schema(console: ConsolePage) -> None:
    page = console.open("topics")
    page.get_by_role("link", name="Schemas", exact=True).click()
    expect(page.get_by_text("There are no schemas yet.")).to_be_visible()
    command = page.locator(".command code")
    expect(command).to_contain_text(f"{console.base}/schema-registry/subjects/greetings-value/versions --oauth2-bearer")
    expect(page.locator(".figure", has_text="Compatibility")).to_contain_text("BACKWARD")
    assert console.violations() == []


def test_subjects_are_listed_and_searched(console: ConsolePage, filled: Registry) -> None:
    page = console.open("schemas")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("row", name="orders-value")).to_have_text("orders-valueAvro22BACKWARD")
    expect(page.get_by_role("row", name="places")).to_contain_text("JSON Schema")
    expect(page.get_by_role("row", name="places")).to_contain_text("FULL")
    page.keyboard.press("/")
    page.keyboard.type("VALUE")
    expect(rows).to_have_count(1)
    expect(page.get_by_text("1 subject", exact=True)).to_be_visible()
    page.get_by_role("searchbox").fill("nothing")
    expect(page.get_by_text("No subject's name contains “nothing”.")).to_be_visible()
    page.get_by_role("searchbox").fill("former")
    page.get_by_label("Deleted subjects (1)").check()
    expect(page.get_by_role("row", name="former deleted")).to_contain_text("Avro")


def test_a_subject_shows_its_versions_and_what_belongs_to_them(console: ConsolePage, filled: Registry) -> None:
    page = console.open("schemas/orders-value")
    schema = page.locator(".payload pre")
    expect(schema).to_contain_text('"name": "note"')
    expect(schema.locator(".j-name").first).to_have_text('"type"')
    page.get_by_role("combobox", name="Version").select_option("1")
    expect(schema).not_to_contain_text("note")
    assert json.loads(schema.inner_text()) == ORDER
    expect(page.locator(".schema-facts")).to_contain_text("Id1")
    page.get_by_role("link", name="crates 1").click()
    expect(page.locator("main h1")).to_have_text("crates")
    expect(page.locator(".schema-facts")).to_contain_text("Refers toorders-value 1 as Order")
    expect(page.get_by_text("the subject is not named after one")).to_be_visible()
    page.get_by_role("link", name="orders-value 1").click()
    expect(page.locator("main h1")).to_have_text("orders-value")
    expect(page.get_by_role("combobox", name="Version")).to_have_value("1")
    page.locator(".figure", has_text="Topic").get_by_role("link", name="orders").click()
    expect(page.locator("main h1")).to_have_text("orders")
    page.get_by_role("link", name="orders-value").click()
    expect(page.get_by_role("combobox", name="Version")).to_have_value("2")
    console.open("schemas/former")
    expect(page.get_by_text("The subject is deleted.")).to_be_visible()
    expect(schema).to_have_text('"string"')


@pytest.mark.parametrize(("kind", "dark"), [("desktop", False), ("phone", True)])
def test_the_pages_are_accessible_and_fit(browser: Browser, filled: Registry, kind: str, dark: bool) -> None:
    viewport = PHONE if kind == "phone" else DESKTOP
    with console_page(browser, filled.node.admin, viewport=viewport, dark=dark) as console:
        as_client(console, READ)
        for route in ("schemas?deleted=true", "schemas/orders-value", "schemas/crates", "topics/orders"):
            page = console.open(route)
            expect(page.locator(".waiting")).to_have_count(0)
            assert console.violations() == [], route
            assert console.width() <= viewport["width"], route
            assert page.evaluate(CUT_TABLES) == [], route
        assert console.problems == []


def test_a_schema_is_checked_and_registered(console: ConsolePage, registry: Registry) -> None:
    page = console.open("schemas")
    dialog = page.get_by_role("dialog")
    show, register = (dialog.get_by_role("button", name=name, exact=True) for name in ("Show the plan", "Register"))
    expect(page.locator(".filters")).to_be_visible()
    page.keyboard.press("n")
    dialog.get_by_label("Subject").fill("teas-value")
    dialog.get_by_label("Schema", exact=True).fill('{"type": "nonsense"}')
    dialog.get_by_label("References").fill("Order orders-value first")
    show.click()
    expect(dialog.get_by_role("alert")).to_contain_text("expected name subject version")
    dialog.get_by_label("References").fill("")
    show.click()
    expect(dialog.locator(".plan")).to_contain_text("The schema would be refused.")
    expect(dialog.locator(".reasons")).to_contain_text("Invalid schema")
    expect(register).to_be_disabled()
    assert console.violations() == []
    dialog.get_by_label("Schema", exact=True).fill(json.dumps(ORDER))
    show.click()
    expect(dialog.locator(".plan")).to_have_text("PlanThe schema is compatible.")
    assert "teas-value" not in registry.ask("GET", "/subjects")
    register.click()
    expect(page.locator("main h1")).to_have_text("teas-value")
    version = page.get_by_role("combobox", name="Version")
    expect(version).to_have_value("1")

    page.get_by_role("button", name="Register a version").click()
    required = {**ORDER, "fields": [ID, {"name": "note", "type": "string"}]}
    assert json.loads(dialog.get_by_label("Schema", exact=True).input_value()) == ORDER
    dialog.get_by_label("Schema", exact=True).fill(json.dumps(required))
    show.click()
    expect(dialog.locator(".reasons li").first).to_contain_text("READER_FIELD_MISSING_DEFAULT_VALUE")
    expect(dialog.locator(".plan")).to_contain_text("not compatible (BACKWARD) with version 1")
    expect(dialog.locator(".reasons li")).to_have_count(1)
    expect(register).to_be_disabled()
    dialog.get_by_label("Schema", exact=True).fill(json.dumps(NOTED_ORDER))
    show.click()
    register.click()
    expect(version).to_have_value("2")
    page.get_by_role("combobox", name="Compared with").select_option("1")
    expect(page.get_by_text("5 lines added, 0 lines removed")).to_be_visible()
    expect(page.locator(".difference ins", has_text='"note"')).to_have_count(1)
    expect(page.locator(".difference")).to_contain_text('"id"')
    assert console.violations() == []


def test_levels_are_set_and_withdrawn(console: ConsolePage, filled: Registry) -> None:
    page = console.open("schemas/places")
    dialog = page.get_by_role("dialog")
    level = page.locator(".figure", has_text="Compatibility")
    expect(level).to_contain_text("FULLthe registry's is BACKWARD")
    for chosen, shown in (("NONE", "NONE"), ("", "BACKWARDas the registry's"), ("FULL", "FULL")):
        page.get_by_role("button", name="Set the compatibility").click()
        dialog.get_by_label("A new version").select_option(chosen)
        dialog.get_by_role("button", name="Show the plan").click()
        dialog.get_by_role("button", name="Set the level").click()
        expect(level).to_contain_text(shown)
    console.open("schemas")
    for chosen, shown in (("FORWARD", "FORWARD"), ("", "BACKWARD")):
        page.get_by_role("button", name="Set the compatibility").click()
        dialog.get_by_label("A new version").select_option(chosen)
        dialog.get_by_role("button", name="Show the plan").click()
        dialog.get_by_role("button", name="Set the level").click()
        expect(level).to_contain_text(shown)
        expect(page.get_by_role("row", name="crates")).to_contain_text(shown)
        assert filled.ask("GET", "/config")["compatibilityLevel"] == shown


def test_versions_and_subjects_are_deleted(console: ConsolePage, filled: Registry) -> None:
    for schema in (ORDER, NOTED_ORDER):
        filled.register("to-delete", schema)
    page = console.open("schemas/orders-value?version=1")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Delete version 1").click()
    expect(dialog.locator(".plan")).to_contain_text("1 schema refers to it")
    expect(dialog.get_by_role("button", name="Delete the version")).to_be_disabled()
    page.keyboard.press("Escape")

    console.open("schemas/to-delete")
    page.get_by_role("button", name="Delete version 2").click()
    dialog.get_by_role("button", name="Delete the version").click()
    version = page.get_by_role("combobox", name="Version")
    expect(version).to_have_value("1")
    version.select_option("2, deleted")
    page.get_by_role("button", name="Delete version 2 for good").click()
    delete = dialog.get_by_role("button", name="Delete the version")
    expect(delete).to_be_disabled()
    dialog.get_by_label("Type to-delete to confirm").fill("to-delete")
    assert filled.ask("GET", "/subjects/to-delete/versions?deleted=true") == [1, 2]
    delete.click()
    expect(version.locator("option")).to_have_count(1)
    assert filled.ask("GET", "/subjects/to-delete/versions?deleted=true") == [1]

    page.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_role("button", name="Delete the subject").click()
    expect(page.get_by_text("The subject is deleted.")).to_be_visible()
    page.get_by_role("button", name="Delete for good", exact=True).click()
    expect(dialog.locator(".plan")).to_contain_text("can no longer be decoded")
    dialog.get_by_label("Type to-delete to confirm").fill("to-delete")
    dialog.get_by_role("button", name="Delete the subject").click()
    expect(page.locator("main h1")).to_have_text("Schemas")
    assert "to-delete" not in filled.ask("GET", "/subjects?deleted=true")


def test_a_reader_is_offered_no_changes(browser: Browser, filled: Registry) -> None:
    with console_page(browser, filled.node.admin) as console:
        as_client(console, READ)
        for route, buttons in (("schemas", []), ("schemas/orders-value", ["Copy"])):
            page = console.open(route)
            expect(page.get_by_text("orders-value").first).to_be_visible()
            expect(page.locator(".waiting")).to_have_count(0)
            assert page.locator("main button").all_inner_texts() == buttons, route
        assert console.problems == []
