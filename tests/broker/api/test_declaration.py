"""APIs and their facts: every served API has a guard, which is in force only with an authorizer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Verdict, open_to_all
from anabranch.broker.api.declaration import declare, guarded
from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.handlers import list_groups as list_groups_handler
from anabranch.protocol.messages import (
    api_versions,
    delete_groups,
    expire_delegation_token,
    fetch,
    get_telemetry_subscriptions,
    list_groups,
    list_transactions,
    produce,
    push_telemetry,
    read_share_group_state,
    read_share_group_state_summary,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
)
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from tests.support.node import running_node
from tests.support.raw_client import raw_client


def test_few_apis_are_open_to_all() -> None:
    unguarded = {key for key, handler in HANDLERS.items() if handler.guard is open_to_all}
    assert unguarded == {
        api_versions.KEY,
        sasl_handshake.KEY,
        sasl_authenticate.KEY,
        fetch.KEY,
        share_fetch.KEY,
        share_acknowledge.KEY,
        get_telemetry_subscriptions.KEY,
        push_telemetry.KEY,
        renew_delegation_token.KEY,
        expire_delegation_token.KEY,
    }


def test_an_api_without_a_guard_fails_the_import() -> None:
    declaration: Any = declare
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'guard'"):
        declaration(ListGroupsRequest, list_groups_handler.handle)


def test_what_a_request_waits_for_is_read() -> None:
    assert all(handler.reads for handler in HANDLERS.values() if handler.waits_for is not None)
    assert {key for key, handler in HANDLERS.items() if handler.reads and handler.waits_for is None} == {
        fetch.KEY,
        list_groups.KEY,
        list_transactions.KEY,
        read_share_group_state.KEY,
        read_share_group_state_summary.KEY,
        share_acknowledge.KEY,
        share_fetch.KEY,
    }


@pytest.mark.parametrize("enabled", [False, True])
async def test_handlers_are_behind_guards_only_with_an_authorizer(tmp_path: Path, *, enabled: bool) -> None:
    async with running_node(tmp_path, authorizer_enabled=enabled) as node:
        handlers = node.ports.clients.dispatch.__self__.handlers  # type: ignore[attr-defined]
        assert (handlers[produce.KEY] is HANDLERS[produce.KEY]) is not enabled
        assert (node.serving.acls is None) is not enabled


@pytest.mark.parametrize("fails", ["guard", "amend"])
async def test_a_bug_in_a_guard_closes_one_connection_only(tmp_path: Path, fails: str) -> None:
    def broken(_: object) -> object:
        raise LookupError("a bug")

    def guard(caller: Caller, request: object) -> Verdict:
        return Passed(request, broken) if fails == "amend" else Passed(broken(caller))

    async with running_node(tmp_path, authorizer_enabled=True) as node:
        dispatcher = node.ports.clients.dispatch.__self__  # type: ignore[attr-defined]
        buggy = {key: replace(HANDLERS[key], guard=guard) for key in (list_groups.KEY, delete_groups.KEY)}
        dispatcher.handlers = guarded({**HANDLERS, **buggy})
        for request in (ListGroupsRequest(), DeleteGroupsRequest(groups_names=[])):
            async with raw_client(node.bootstrap) as client, raw_client(node.bootstrap) as other:
                client.send(request)
                assert await client.closed()
                assert (await other.call(MetadataRequest(topics=()), 12)).brokers
        assert node.serving.request_failures == 2


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"authorizer_enabled": True}, True),
        ({"authorizer_enabled": True, "authorizer_super_users": "User:a"}, False),
        ({}, False),
    ],
)
async def test_a_node_that_nobody_may_use_warns(tmp_path: Path, settings: Mapping[str, Any], *, warns: bool) -> None:
    with capture_logs() as logs:
        async with running_node(tmp_path, **settings):
            pass
    assert any(each.get("setting") == "authorizer.super_users" for each in logs) is warns
