"""A node with a topic of two partitions, a client of its JSON API, and one of Kafka's protocol."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from tests.support.admin_api import ApiClient, api_client
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        await running.serving.topic_commands.create("t", partitions=2, configs={})
        yield running


@pytest.fixture
async def api(node: Node) -> AsyncIterator[ApiClient]:
    async with api_client(node) as client:
        yield client


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as client:
        yield client
