"""The APIs this node serves: one module per API, which declares it (`broker.api.declaration`).

The module has the name of the API's module in `protocol.messages`: `broker/api/handlers/list_groups.py` handles
`protocol/messages/list_groups.py`. `HANDLERS` is derived from that convention; a message module without a handler fails
the import. ApiVersions answers from it, and the dispatcher looks handlers up in it. An API is served in the versions of
the registry, unless the node presents itself as an older release (`broker.api.releases`).
"""

from collections.abc import Sequence
from importlib import import_module

from anabranch.broker.api.declaration import Handler, Handlers
from anabranch.protocol.api import Api
from anabranch.protocol.messages.api_versions import ApiVersion
from anabranch.protocol.registry import APIS


def handler_of(api: Api) -> Handler:
    """Import the handler of an API. Raises ModuleNotFoundError or AttributeError if it is missing."""
    handler: Handler = import_module(f"{__name__}.{api.module_name}").API
    assert handler.api is api, f"the module of {api.name} declares {handler.api.name}"
    return handler


HANDLERS: Handlers = {key: handler_of(api) for key, api in APIS.items()}
"""The handlers by API key, in ascending order."""
PIPELINED = frozenset(key for key, handler in HANDLERS.items() if handler.pipelined)
"""Keys of the APIs whose requests start next to each other."""


def advertised_apis(handlers: Handlers, *, telemetry: bool) -> Sequence[ApiVersion]:
    """Return the APIs and versions that ApiVersions answers, with or without those of client metrics (KIP-714)."""
    return [
        ApiVersion(api_key=key, min_version=handler.advertised_min_version, max_version=handler.max_version)
        for key, handler in handlers.items()
        if telemetry or not handler.of_telemetry
    ]
