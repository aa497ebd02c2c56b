"""Every served API has a guard, and without an authorizer there are none."""

from pathlib import Path

import pytest

from broker.access.guard import guarded, open_to_all
from broker.access.table import GUARDS
from broker.handlers import HANDLERS
from protocol.messages import api_versions, fetch, get_telemetry_subscriptions, push_telemetry
from tests.support.node import running_node


def test_every_served_api_has_a_guard() -> None:
    assert GUARDS.keys() == HANDLERS.keys()


def test_few_apis_are_open_to_all() -> None:
    unguarded = {key for key, guard in GUARDS.items() if guard is open_to_all}
    assert unguarded == {api_versions.KEY, fetch.KEY, get_telemetry_subscriptions.KEY, push_telemetry.KEY}


def test_an_api_that_was_forgotten_stops_the_start() -> None:
    with pytest.raises(KeyError):
        guarded(HANDLERS, {key: guard for key, guard in GUARDS.items() if key != fetch.KEY})


@pytest.mark.parametrize("enabled", [False, True])
async def test_handlers_are_behind_guards_only_with_an_authorizer(tmp_path: Path, *, enabled: bool) -> None:
    async with running_node(tmp_path, authorizer_enabled=enabled) as node:
        handlers = node.server.dispatch.__self__.handlers  # type: ignore[attr-defined]
        assert (handlers is HANDLERS) is not enabled
        assert (node.acls is None) is not enabled
