"""Records with schemas of a registry, as the records page shows them."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, expect

from tests.broker.operator.admin.api.test_decoder_worker import written
from tests.broker.operator.admin.api.test_schemas import PLACE, with_id
from tests.console.browser import ConsolePage, console_page
from tests.spark.pipeline.registry_server import running_registry
from tests.support.node import NodeProcess

TEA = 'syntax = "proto3"; message Tea { string kind = 1; int64 grams = 2; }'


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with a registry, and a topic with a record in Avro, two in protobuf, and one of another schema."""
    with running_registry() as registry:
        settings: dict[str, object] = {"admin_schema_registry_url": registry.url}
        with NodeProcess(tmp_path_factory.mktemp("decoding"), topic_num_partitions=1, **settings) as node:
            place, tea = registry.add("place", PLACE), registry.add("tea", TEA, "PROTOBUF")
            producer = Producer({"bootstrap.servers": node.bootstrap})
            values = [with_id(place, written(PLACE, {"city": "Oslo"})), with_id(tea, b"\0\x0a\x05green\x10\x05")]
            for value in [*values, with_id(tea, b"\0\x0a\x7f"), with_id(99, b"\0")]:
                producer.produce("teas", value)
            assert producer.flush(60) == 0
            yield node


@pytest.fixture
def console(browser: Browser, decoding: NodeProcess) -> Iterator[ConsolePage]:
    with console_page(browser, decoding.admin) as page:
        yield page
        assert page.problems == []


def test_values_are_shown_as_their_schemas_say(console: ConsolePage) -> None:
    page = console.open("topics/teas/records?from=earliest")
    rows = page.locator(".row-button")
    expect(rows).to_have_count(4)
    for row in rows.all():
        row.click()
    avro, tea, damaged, unknown = page.locator(".record-details").all()
    expect(avro).to_contain_text("avro, 10 B, schema 1")
    expect(avro.locator("pre")).to_have_text('{\n  "city": "Oslo"\n}')
    expect(tea).to_contain_text("protobuf, 15 B, schema 2")
    expect(tea.locator("pre")).to_have_text('{\n  "kind": "green",\n  "grams": "5"\n}')
    expect(tea.locator(".j-name").first).to_have_text('"kind"')
    expect(damaged).to_contain_text("hex, 8 B, schema 2")
    expect(damaged).to_contain_text("schema 2: the payload is no message Tea")
    expect(damaged.locator("pre")).to_have_text("0000000002000a7f")
    expect(unknown).to_contain_text("schema 99: the schema registry does not have it")
    assert console.violations() == []
    page.get_by_role("button", name="More filters").click()
    page.get_by_label("Decode values").select_option("Protobuf")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(4)
