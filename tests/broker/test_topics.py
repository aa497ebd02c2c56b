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


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_deletion_whose_answer_is_lost_is_found_out(tmp_path: Path, deleted: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics, catalog = node.node.topics, node.node.catalog
        topic = await topics.create("t", partitions=2, configs={})
        await client.produce("t", [batch_of(b"a")])
        really = catalog.delete_topic

        async def answer_lost(name: str, *, now_ms: int, delete_after_ms: int) -> None:
            if deleted:
                await really(name, now_ms=now_ms, delete_after_ms=delete_after_ms)
            raise CatalogUnavailable("the connection broke off")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "delete_topic", answer_lost)
            with pytest.raises(CatalogUnavailable):
                await topics.delete("t")
        assert topics.get("t") is None, "nobody knows: it is not served"
        assert list(await topics.settle()) == (["t"] if deleted else [])
        assert list(await topics.settle()) == []
        if deleted:
            assert topics.get("t") is None
            with pytest.raises(KafkaError):
                await topics.delete("t")
            again = await topics.create("t", partitions=1, configs={})
            assert again.topic_id != topic.topic_id
        else:
            assert topics.get("t") is topic
            response = await client.produce("t", [batch_of(b"b")])
            assert response.responses[0].partition_responses[0].base_offset == 1
            await topics.delete("t")
            assert list(await catalog.list_topics()) == []
        await node.node.storage.flush()


async def test_the_next_change_finds_out_what_became_of_a_deletion(tmp_path: Path) -> None:
    async def away(name: str, **_: int) -> None:
        raise CatalogUnavailable(f"not now: {name}")

    async with running_node(tmp_path) as node:
        topics = node.node.topics
        await topics.create("t", partitions=1, configs={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.node.catalog, "delete_topic", away)
            with pytest.raises(CatalogUnavailable):
                await topics.delete("t")
        await topics.delete("t")
        assert topics.get("t") is None
        assert list(await node.node.catalog.list_topics()) == []
