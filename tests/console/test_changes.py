"""Changes on the page: each shows the node's plan first, and the node has the change afterwards."""

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from playwright.sync_api import Route, expect

from tests.console.browser import ConsolePage
from tests.console.shop import Shop


def answer(shop: Shop, path: str) -> Any:
    """The node's answer to a GET of the API."""
    return json.loads(shop.node.ask(f"/api/v1{path}"))


def test_a_topic_is_created_altered_filled_and_deleted(console: ConsolePage, shop: Shop) -> None:
    page = console.open("topics")
    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    dialog.get_by_label("Name").fill("bad name")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("alert")).to_contain_text("bad name")
    console.problems.clear()  # the browser notes the refusal, which was wanted
    dialog.get_by_label("Name").fill("made-here")
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_label("Configs").fill("retention.ms=60000")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("retention.ms")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_focused()
    assert console.violations() == []
    # The keyboard alone does it, too; a change forgets the plan.
    dialog.get_by_label("Partitions").fill("3")
    expect(dialog.locator(".plan")).to_have_count(0)
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_label("Configs").press("Control+Enter")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_focused()
    assert "made-here" not in [each["name"] for each in answer(shop, "/topics")["topics"]]
    page.keyboard.press("Control+Enter")
    expect(page.locator("main h1")).to_have_text("made-here")
    expect(page.get_by_text("The topic has no records.")).to_be_visible()

    page.get_by_role("button", name="Add partitions").click()
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("partitions2")
    assert len(answer(shop, "/topics/made-here")["partitions"]) == 2
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".figure", has_text="Partitions").locator("dd")).to_have_text("3")

    page.get_by_role("button", name="Change retention.ms").click()
    dialog.get_by_label("retention.ms").fill("120000")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.locator(".plan")).to_contain_text("60000")
    configs = {each["name"]: each["value"] for each in answer(shop, "/topics/made-here")["configs"]}
    assert configs["retention.ms"] == "60000"
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("row", name="retention.ms 120000")).to_be_visible()

    page.get_by_role("link", name="Browse records").click()
    expect(page.get_by_text("There is no record here.")).to_be_visible()
    expect(page.get_by_role("button", name="Produce a record")).to_be_enabled()
    page.keyboard.press("n")
    dialog.get_by_label("Partition").select_option("1")
    dialog.get_by_label("Key", exact=True).fill("k")
    dialog.get_by_label("Value", exact=True).fill('{"hello": 1}')
    dialog.get_by_label("Headers").fill("from: console")
    assert console.violations() == []
    dialog.get_by_label("Value", exact=True).press("Control+Enter")
    expect(page.get_by_text("The record is at offset 0 of partition 1.")).to_be_visible()
    page.locator(".row-button").click()
    expect(page.locator(".record-details")).to_contain_text("console")

    page.get_by_role("link", name="made-here").click()
    page.get_by_role("button", name="Delete").click()
    expect(dialog.locator(".plan")).to_contain_text("up to 1 record ")
    delete = dialog.get_by_role("button", name="Delete the topic")
    expect(delete).to_be_disabled()
    expect(dialog.get_by_label("Type made-here to confirm")).to_be_focused()
    page.keyboard.type("made-here")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("Topics")
    assert "made-here" not in [each["name"] for each in answer(shop, "/topics")["topics"]]


def test_a_key_that_is_held_down_shows_the_plan_and_no_more(console: ConsolePage, shop: Shop) -> None:
    page = console.open("topics")
    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    dialog.get_by_label("Name").fill("held-down")
    for keys in ("Enter", "Control+Enter"):
        held = keys.rpartition("+")[0]
        if held:
            page.keyboard.down(held)
        page.keyboard.down("Enter")
        expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_focused()
        page.keyboard.down("Enter")  # a repetition, as the key is down already
        page.keyboard.up("Enter")
        if held:
            page.keyboard.up(held)
        expect(dialog.locator(".plan")).to_be_visible()
        dialog.get_by_label("Name").press("End")
        page.keyboard.type("-2")
    assert not [each for each in answer(shop, "/topics")["topics"] if each["name"].startswith("held-down")]


def test_a_plan_of_former_inputs_is_not_shown(console: ConsolePage) -> None:
    page = console.open("topics")
    asked: list[Route] = []
    page.route(
        "**/api/v1/topics", lambda route: asked.append(route) if route.request.method == "POST" else route.fallback()
    )
    dialog = page.get_by_role("dialog")
    page.keyboard.press("n")
    name = dialog.get_by_label("Name")
    name.fill("former")
    name.press("Enter")
    expect(dialog.locator("[aria-disabled=true]")).to_be_visible()
    name.fill("newer")
    while not asked:  # what the page shows may be here before its request is
        page.wait_for_timeout(10)
    (route,) = asked
    route.continue_()
    expect(dialog.locator("[aria-disabled=true]")).to_have_count(0)
    expect(dialog.locator(".plan")).to_have_count(0)
    expect(name).to_be_focused()


def test_offsets_of_a_group_are_reset_and_the_group_deleted(console: ConsolePage, shop: Shop) -> None:
    consumer = Consumer({"bootstrap.servers": shop.node.bootstrap, "group.id": "to-reset"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
    consumer.close()
    page = console.open("groups/to-reset")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Reset offsets").click()
    dialog.get_by_label("To", exact=True).select_option("shift")
    dialog.get_by_label("Records; negative").fill("-15")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog.get_by_role("row", name="orders 0")).to_contain_text("4025")
    assert console.violations() == []
    assert answer(shop, "/groups/to-reset")["offsets"][0]["committed"] == 40
    dialog.get_by_role("button", name="Reset", exact=True).click()
    expect(page.get_by_role("row", name="orders 0 25")).to_be_visible()

    page.get_by_role("button", name="Delete").click()
    expect(dialog.locator(".plan")).to_contain_text("1 committed offset of the group")
    dialog.get_by_label("Type to-reset to confirm").fill("to-reset")
    dialog.get_by_role("button", name="Delete the group").click()
    expect(page.locator("main h1")).to_have_text("Groups")
    assert "to-reset" not in [each["group_id"] for each in answer(shop, "/groups")["groups"]]


def test_a_transaction_is_aborted(console: ConsolePage, shop: Shop) -> None:
    producer = Producer({"bootstrap.servers": shop.node.bootstrap, "transactional.id": "hung", "log_level": 2})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("customers", b"{}", key=b"c3")
    assert producer.flush(60) == 0
    page = console.open("transactions")
    row = page.get_by_role("group", name="Open transactions").get_by_role("row", name="hung")
    row.get_by_role("button", name="Abort").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".plan")).to_contain_text("1 partition")
    assert console.violations() == []
    (before,) = [each for each in answer(shop, "/transactions")["transactions"] if each["transactional_id"] == "hung"]
    assert before["state"] == "Ongoing", "a plan changes nothing"
    dialog.get_by_role("button", name="Abort", exact=True).click()
    expect(page.get_by_text("The transaction of hung has ended.")).to_be_visible()
    expect(row).to_have_count(0)
    with pytest.raises(KafkaException, match=r"fenced|epoch"):
        producer.commit_transaction(60)
