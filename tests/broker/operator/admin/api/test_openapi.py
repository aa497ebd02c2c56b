"""The OpenAPI document is that of the endpoints."""

import json
from pathlib import Path
from typing import Any

from anabranch.broker.operator.admin.api.documentation import documentation
from tests.support.admin_api import api_client
from tests.support.node import running_node

ROOT = Path(__file__).parents[5]


def test_the_document_is_the_endpoints() -> None:
    written = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert written == documentation(), "run `python -m anabranch.broker.operator.admin.api.documentation`"


async def test_a_node_serves_the_document(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, api_client(node) as api:
        assert await api.get("/openapi.json") == json.loads(documentation())


def test_each_reference_has_a_schema() -> None:
    document = json.loads(documentation())
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found: set[str] = set()

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                found.add(part["$ref"])
            for each in part.values():
                collect(each)
        elif isinstance(part, list):
            for each in part:
                collect(each)

    collect(document)
    assert found
    assert found <= known
