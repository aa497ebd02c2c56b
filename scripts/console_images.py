"""Takes the screenshots of the console in docs/images: a node with the data of a shop, and a headless Chromium.

    .venv/bin/python -m scripts.console_images

The data is made up, but the node is real: what the images show is what a user of it would see.
"""

import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Page, sync_playwright

from scripts.demo.node import NodeProcess
from scripts.tools import CHROMIUM_FLAGS, TOOLS, ensure, present_chromium

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ORDERS_SCHEMA = {
    "properties": {
        "order": {"type": "integer"},
        "customer": {"type": "string"},
        "items": {
            "type": "array",
            "items": {"properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}}},
        },
        "total": {"type": "number"},
    }
}
TABLE = {
    "table.enable": "true",
    "table.value": "json",
    "table.value.schema": json.dumps(ORDERS_SCHEMA),
    "table.commit.interval.ms": "5000",
}
"""Configs of `orders`."""
TOPICS = {"orders": 4, "payments": 2, "page-views": 6, "customers": 1}
ROUNDS = 60
"""Rounds of records before the images; a group reads behind in each."""
NODE_FLAGS = [
    "--wal-capacity-bytes=32MiB",
    "--storage-upload-age-ms=10000",
    # What one upload has of a partition is less, what a compaction has is more.
    "--storage-split-bytes=384KiB",
]
WATCH_S = 30
"""Time that a page with curves is watched while records arrive."""


class Shop:
    """Clients of the node."""

    def __init__(self, bootstrap: str) -> None:
        self._random = random.Random(1)
        self._clients = {"bootstrap.servers": bootstrap}
        self._number = 0
        admin = AdminClient({**self._clients})
        topics = [NewTopic(name, count, 1, config=TABLE if name == "orders" else {}) for name, count in TOPICS.items()]
        for created in admin.create_topics(topics).values():
            created.result(60)
        self._producer = Producer({**self._clients, "enable.idempotence": True, "linger.ms": 5})
        self._readers = [self._reader("billing"), self._reader("shipping")]
        self._ledger = Producer({**self._clients, "transactional.id": "ledger-1"})
        self._ledger.init_transactions(60)
        self._ledger.begin_transaction()
        self._ledger.produce("payments", b'{"order": 1, "amount": 12.5}')
        self._ledger.flush(60)

    def _reader(self, group: str) -> Consumer:
        reader = Consumer({**self._clients, "group.id": group, "auto.offset.reset": "earliest"})
        reader.subscribe(["orders"])
        return reader

    def work(self, orders: int) -> None:
        """Send orders and what belongs to them; one group keeps up, the other reads a part."""
        for _ in range(orders):
            self._number += 1
            number, customer = self._number, f"c{self._random.randrange(400)}"
            sku, quantity = f"tea-{self._random.randrange(90):02}", self._random.randrange(1, 5)
            tea, total = {"sku": sku, "quantity": quantity}, quantity * 4.5
            order = {"order": number, "customer": customer, "items": [tea], "total": total}
            trace: list[tuple[str, str | bytes | None]] = [("trace", f"{number:08x}"), ("source", "shop")]
            self._producer.produce("orders", json.dumps(order).encode(), key=customer.encode(), headers=trace)
            self._producer.produce("page-views", f"GET /{sku} 200".encode())
            if number % 3 == 0:
                payment = {"order": number, "amount": total, "method": "card"}
                self._producer.produce("payments", json.dumps(payment).encode(), key=customer.encode())
            if number % 40 == 0:
                self._producer.produce("customers", json.dumps({"id": customer}).encode(), key=customer.encode())
        self._producer.flush(60)
        for reader, part in zip(self._readers, (0.7, 1.5), strict=True):
            if reader.consume(int(orders * part), 0.5):
                reader.commit(asynchronous=False)


def take(page: Page, name: str) -> None:
    """Save what the window shows."""
    page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> int:
    """Run the node and the shop, and take all images. Returns 1 if there is no browser."""
    ensure(next(tool for tool in TOOLS if tool.name == "chromium"))
    program = present_chromium()
    if program is None:
        print("needs Chromium", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        node = NodeProcess(Path(folder), NODE_FLAGS)
        stack.callback(node.end)
        node.start()
        shop = Shop(node.servers)
        for number in range(ROUNDS):
            shop.work(400)
            if number == ROUNDS * 3 // 4:
                node.admin("POST", "/compaction")
        url = f"http://127.0.0.1:{node.admin_port}/console/#/"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_FLAGS))
            page = browser.new_page(viewport={"width": 1240, "height": 820})
            for route, name in (("groups/billing", "group"), ("storage", "storage")):
                page.goto(url + route)
                until = time.monotonic() + WATCH_S
                while time.monotonic() < until:
                    shop.work(random.randrange(50, 900))
                    page.wait_for_timeout(200)
                take(page, name)
            page.goto(f"{url}tables/orders")
            page.get_by_role("heading", name="Files").wait_for()
            take(page, "table")
            page.goto(f"{url}topics/orders/records")
            page.locator(".row-button").nth(2).click()
            take(page, "records")
            page.goto(f"{url}topics/orders/partitions/0")
            page.locator(".run.so").first.hover()
            take(page, "partition")
            phone = browser.new_page(
                viewport={"width": 390, "height": 800}, color_scheme="dark", has_touch=True, is_mobile=True
            )
            phone.goto(f"{url}topics/orders/partitions/0")
            phone.locator(".run.so").first.tap()
            phone.evaluate("scrollTo(0, 420)")
            phone.wait_for_timeout(500)
            take(phone, "phone")
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
