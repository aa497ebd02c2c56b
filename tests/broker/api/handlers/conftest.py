"""Fixtures that the tests of handlers share. Each module defines a `node` with its own settings."""

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.raw_client import RawClient, raw_client


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    """A connection to the node, which has the topic `t`."""
    async with raw_client(node.bootstrap) as connected:
        await connected.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        yield connected
