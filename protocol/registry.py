"""The APIs whose messages are known, with keys and versions, derived from the modules of `protocol.messages`.

A module named `list_groups` declares `KEY`, `ListGroupsRequest` and `ListGroupsResponse`. The versions are those of the
request, and they are Apache Kafka's. A node advertises the APIs of `APIS`, each of which has a handler. Nodes connect
to each other with the APIs of `protocol.messages.internal`, which clients never see.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType
from typing import Any, Final

import anabranch.protocol.messages
import anabranch.protocol.messages.internal
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


def _api(module: ModuleType) -> Api:
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


def _apis_of(package: ModuleType) -> Iterator[Api]:
    for module in iter_modules(package.__path__):
        if not module.ispkg:
            yield _api(import_module(f"{package.__name__}.{module.name}"))


def _by_key(package: ModuleType) -> Mapping[int, Api]:
    apis = sorted(_apis_of(package), key=lambda api: api.key)
    table = {api.key: api for api in apis}
    assert len(table) == len(apis), "two message modules declare the same KEY"
    return MappingProxyType(table)


APIS: Final[Mapping[int, Api]] = _by_key(anabranch.protocol.messages)
"""The APIs that handlers serve, by key in ascending order."""
INTERNAL_APIS: Final[Mapping[int, Api]] = _by_key(anabranch.protocol.messages.internal)
"""The APIs by which nodes authenticate each other, by key in ascending order."""
