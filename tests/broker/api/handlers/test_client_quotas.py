"""Quotas are set through any node, known to all of them at once, and kept over a restart."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from anabranch.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, raw_client
from tests.support.waiting import until

Names = Mapping[str, str | None]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def change(names: Names, quotas: Mapping[str, float | None]) -> AlterClientQuotasRequest:
    """The request that sets the quotas of an entity; None removes one."""
    entity = [EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()]
    ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    return AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)])


async def alter(client: RawClient, names: Names, **quotas: float | None) -> ErrorCode:
    """The error code of a change."""
    return ErrorCode((await client.call(change(names, quotas))).entries[0].error_code)


async def described(node: Node) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """All quotas as a node describes them."""
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(DescribeClientQuotasRequest())
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in answer.entries
    ]


async def test_every_node_knows_a_quota(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        async with raw_client(first.bootstrap) as client:
            assert await alter(client, {"user": "alice", "client-id": None}, producer_byte_rate=1e6) == ErrorCode.NONE
            assert await alter(client, {"ip": None}, connection_creation_rate=5) == ErrorCode.NONE
        quotas = [
            ({"client-id": None, "user": "alice"}, {"producer_byte_rate": 1e6}),
            ({"ip": None}, {"connection_creation_rate": 5}),
        ]
        assert await described(first) == quotas
        await until(lambda: len(second.serving.quota_table.all()) == 2)
        assert await described(second) == quotas
        async with raw_client(second.bootstrap) as client:
            assert await alter(client, {"ip": None}, connection_creation_rate=None) == ErrorCode.NONE
        await until(lambda: len(first.serving.quota_table.all()) == 1)


async def test_quotas_outlast_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await alter(client, {"client-id": "c"}, request_percentage=12.5) == ErrorCode.NONE
    async with running_node(tmp_path) as node:
        assert await described(node) == [({"client-id": "c"}, {"request_percentage": 12.5})]


async def test_a_catalog_that_is_away_is_an_error_of_each_entity(node: Node, client: RawClient) -> None:
    async def away(*_arguments: object, **_named: object) -> None:
        raise CatalogUnavailable("the catalog is away")

    node.serving.quota_table.alter = away  # type: ignore[method-assign]
    answer = await client.call(change({"user": "a"}, {"producer_byte_rate": 1.0}))
    assert (answer.entries[0].error_code, answer.entries[0].error_message) == (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "the catalog is away",
    )
