"""Writes docs/openapi.json from the endpoints: `python -m anabranch.broker.operator.admin.api.documentation`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.operator.admin.api.api import Api

if TYPE_CHECKING:
    from anabranch.broker.api.handlers.local import LocalRequests
    from anabranch.broker.cluster.node import Node


def documentation() -> str:
    """Return the text of docs/openapi.json."""
    # The endpoints are described and never called, so they need no components.
    node = SimpleNamespace(serving=None, upkeep=SimpleNamespace(failover=None))
    api = Api(cast("Node", node), cast("LocalRequests", None), AdminSettings(), bytes)
    try:
        return json.dumps(api.document(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    finally:
        api.close()


if __name__ == "__main__":
    target = Path(__file__).resolve().parents[4] / "docs" / "openapi.json"
    target.write_text(documentation(), encoding="utf-8")
