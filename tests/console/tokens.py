"""A node whose admin port needs tokens, and tabs that have one."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.console.browser import ConsolePage
from tests.support.node import NodeProcess
from tests.support.waiting import WAIT_S

READ: Final = "r" * 20
OPERATE: Final = "o" * 20


@contextmanager
def guarded_node(folder: Path, topics: Sequence[NewTopic], **settings: object) -> Iterator[NodeProcess]:
    """Run a node with the tokens and some topics."""
    for name, token in (("read", READ), ("operate", OPERATE)):
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
        settings[f"admin_{name}_token_file"] = folder / name
    with NodeProcess(folder, **settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for created in admin.create_topics(list(topics)).values():
            created.result(60)
        yield node


def as_client(console: ConsolePage, token: str) -> ConsolePage:
    """Let a tab send a token."""
    console.page.add_init_script(f"sessionStorage.setItem('anabranch.token', '{token}')")
    return console


def ask(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    """Return the answer of the node's admin port to an operator."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {OPERATE}", "Content-Type": "application/json"}
    with urlopen(Request(f"http://{node.admin}{path}", data, headers, method=method), timeout=WAIT_S) as answer:
        return json.load(answer)
