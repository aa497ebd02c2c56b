"""All APIs whose messages are known, by key, found in the modules of `protocol.messages` (see `protocol.api`).

A node advertises the APIs of `APIS`, each of which has a handler. Nodes connect to each other with the APIs of
`protocol.messages.internal`, which clients never see.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType
from typing import Final

import anabranch.protocol.messages
import anabranch.protocol.messages.internal
from anabranch.protocol.api import Api, declared_api


def _apis_of(package: ModuleType) -> Iterator[Api]:
    for module in iter_modules(package.__path__):
        if not module.ispkg:
            yield declared_api(import_module(f"{package.__name__}.{module.name}"))


def _by_key(package: ModuleType) -> Mapping[int, Api]:
    apis = sorted(_apis_of(package), key=lambda api: api.key)
    table = {api.key: api for api in apis}
    assert len(table) == len(apis), "two message modules declare the same KEY"
    return MappingProxyType(table)


APIS: Final[Mapping[int, Api]] = _by_key(anabranch.protocol.messages)
"""The APIs that handlers serve, by key in ascending order."""
INTERNAL_APIS: Final[Mapping[int, Api]] = _by_key(anabranch.protocol.messages.internal)
"""The APIs by which nodes authenticate each other, by key in ascending order."""
