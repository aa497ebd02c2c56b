"""Handlers and message modules belong together by their names."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

import anabranch.broker.api.handlers
import anabranch.protocol.messages
from anabranch.broker.api.handlers import HANDLERS
from anabranch.protocol.registry import INTERNAL_APIS


def modules_of(package: object) -> set[str]:
    return {module.name for module in iter_modules(package.__path__) if not module.ispkg}  # type: ignore[attr-defined]


def test_every_message_module_has_a_handler_and_the_other_way_round() -> None:
    handlers = {
        name
        for name in modules_of(anabranch.broker.api.handlers)
        if hasattr(import_module(f"anabranch.broker.api.handlers.{name}"), "handle")
    }
    assert handlers == modules_of(anabranch.protocol.messages)
    assert {handler.api.module_name for handler in HANDLERS.values()} == handlers


def test_a_message_module_without_a_handler_fails_the_import() -> None:
    [unserved] = [api for api in INTERNAL_APIS.values() if api.name == "HandOver"]
    with pytest.raises(ModuleNotFoundError, match=r"broker\.api\.handlers\.hand_over"):
        anabranch.broker.api.handlers.handler_of(unserved)
