"""An API with its versions and messages, as its module in `protocol.messages` declares it.

A module named `list_groups` declares `KEY`, `ListGroupsRequest` and `ListGroupsResponse`. The versions are those of the
request, and they are Apache Kafka's. A client finds the APIs that it uses by their requests, so that it loads no
others; `protocol.registry` has them all.
"""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from anabranch.protocol.wire import schema_of


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its range of versions (inclusive), its messages, and the first version with flexible headers.

    `advertised_min_version` differs from `min_version` for Produce only: librdkafka sends compressed batches
    uncompressed to a broker that does not advertise version 0, so Apache Kafka advertises 0 to 2 and refuses them.
    """

    key: int
    name: str
    module_name: str
    """Name of its module in `protocol.messages`, and of its handler's in the broker: `list_groups` of ListGroups."""
    min_version: int
    max_version: int
    request: type[Any]
    response: type[Any]
    flexible_since: int | None
    advertised_min_version: int

    def is_flexible(self, version: int) -> bool:
        """Return whether messages and headers of this version have tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since


class _Apis(dict[type, Api]):
    """The APIs found so far, by the type of their requests."""

    def __missing__(self, request: type) -> Api:
        api = self[request] = declared_api(sys.modules[request.__module__])
        return api


_APIS: Final = _Apis()


def api_of(request: type) -> Api:
    """Return the API of a type of request."""
    return _APIS[request]


def declared_api(module: ModuleType) -> Api:
    """Return the API that a module declares."""
    module_name = module.__name__.rpartition(".")[2]
    name = "".join(word.capitalize() for word in module_name.split("_"))
    request, response = getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
    schema = schema_of(request)
    versions = schema.versions
    assert versions is not None
    assert versions == schema_of(response).versions
    assert schema.flexible == schema_of(response).flexible
    return Api(
        key=module.KEY,
        name=name,
        module_name=module_name,
        min_version=versions.first,
        max_version=versions.last,
        request=request,
        response=response,
        flexible_since=schema.flexible.first if schema.flexible.last >= 0 else None,
        advertised_min_version=getattr(module, "ADVERTISED_MIN_VERSION", versions.first),
    )
