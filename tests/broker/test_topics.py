"""The map of topics follows the catalog, also when the catalog goes away half way."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from s3stream.errors import CatalogUnavailable
from s3stream.stream import Stream
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client


async def test_a_topic_whose_creation_broke_off_can_be_used(tmp_path: Path) -> None:
    async def away(stream_ids: Sequence[int]) -> list[Stream]:
        raise CatalogUnavailable(f"not now: {stream_ids}")

    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics = node.node.topics
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.node.storage, "open_streams", away)
            with pytest.raises(CatalogUnavailable):
                await topics.create("t", partitions=2, configs={})
        assert topics.get("t") is None
        with pytest.raises(KafkaError) as caught:
            await topics.create("t", partitions=1, configs={})
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        topic = await topics.ensure("t", partitions=1, configs={})
        assert len(topic.partitions) == 2
        response = await client.produce("t", [batch_of(b"a")])
        assert response.responses[0].partition_responses[0].error_code == 0
