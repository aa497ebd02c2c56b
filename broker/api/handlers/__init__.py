"""The APIs this node serves: one module and one function `handle` per API.

The handler of an API has the name of the API's module in `protocol.messages`: `broker/api/handlers/list_groups.py`
handles `protocol/messages/list_groups.py`. `HANDLERS` is derived from that convention; a message module without a
handler fails the import. ApiVersions answers from it, and the dispatcher looks handlers up in it. An API is served in
the versions of the registry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages import get_telemetry_subscriptions, push_telemetry
from anabranch.protocol.messages.api_versions import ApiVersion
from anabranch.protocol.registry import APIS, Api

TELEMETRY_APIS = frozenset({get_telemetry_subscriptions.KEY, push_telemetry.KEY})

HandlerFunction = Callable[[Node, Any, Exchange], Any]
"""`handle(node, request, exchange)` returns the response, a coroutine for it, or None if it calls `exchange.complete`
itself, at once or later."""


@dataclass(frozen=True, slots=True)
class Handler:
    """An API that is served, in an inclusive range of versions."""

    api: Api
    min_version: int
    max_version: int
    function: HandlerFunction

    @property
    def advertised_min_version(self) -> int:
        """Lowest version named in ApiVersions. Produce advertises more than it serves (see the registry)."""
        return min(self.min_version, self.api.advertised_min_version)


def handler_of(api: Api) -> Handler:
    """Import the handler of an API. Raises ModuleNotFoundError if it is missing."""
    module = import_module(f"{__name__}.{api.module_name}")
    return Handler(api, api.min_version, api.max_version, module.handle)


HANDLERS: Mapping[int, Handler] = {key: handler_of(api) for key, api in APIS.items()}
"""The handlers by API key, in ascending order."""


def advertised_apis(*, telemetry: bool) -> Sequence[ApiVersion]:
    """Return the APIs and versions that ApiVersions answers, with or without those of client metrics (KIP-714)."""
    return [
        ApiVersion(api_key=key, min_version=handler.advertised_min_version, max_version=handler.max_version)
        for key, handler in HANDLERS.items()
        if telemetry or key not in TELEMETRY_APIS
    ]
