"""Two object stores at once, of which a topic chooses one by `storage.policy`."""

from pathlib import Path

from broker.app import RunningNode
from protocol.errors import ErrorCode
from protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.records import iterate_batches
from s3stream.model import ObjectState
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client


async def create(client: RawClient, name: str, policy: str | None) -> ErrorCode:
    configs = [] if policy is None else [CreatableTopicConfig(name="storage.policy", value=policy)]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    return ErrorCode((await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code)


async def stores_of(node: RunningNode) -> dict[str, int]:
    """Committed objects by store."""
    found: dict[str, int] = {}
    for item in await node.node.catalog.list_objects(after=0, limit=100):
        assert item.state is ObjectState.COMMITTED
        found[item.store] = found.get(item.store, 0) + 1
    return found


async def read(client: RawClient, topic: str) -> list[int]:
    """Base offsets of the batches."""
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=10_000, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    data = (await client.call(request, 12)).responses[0].partitions[0]
    assert data.error_code == ErrorCode.NONE
    return [header.base_offset for header, _ in iterate_batches(data.records)]


async def test_each_topic_goes_to_its_store_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    stores = ("cold.type=local", f"cold.path={tmp_path / 'cold'}")
    async with running_node(tmp_path, stores=stores) as node, raw_client(node.bootstrap) as client:
        assert await create(client, "here", None) is ErrorCode.NONE
        assert await create(client, "there", "cold") is ErrorCode.NONE
        assert await create(client, "nowhere", "absent") is ErrorCode.INVALID_CONFIG
        for topic in ("here", "there"):
            for at in range(3):
                await client.produce(topic, [batch_of(b"%d" % at)])
        await node.node.storage.flush()
        assert await stores_of(node) == {"local": 1, "cold": 1}, "one upload, an object in each store"
        await node.node.topics.alter("there", set_configs={"storage.policy": "local"}, unset=())
        await client.produce("there", [batch_of(b"3")])
        await node.node.storage.flush()
        assert await stores_of(node) == {"local": 2, "cold": 1}, "what is new goes where the config says now"
    async with running_node(tmp_path, stores=stores) as node, raw_client(node.bootstrap) as client:
        assert await read(client, "here") == [0, 1, 2]
        found = await read(client, "there")
        assert found == list(range(len(found)))
        assert found
    assert any(path.is_file() for path in (tmp_path / "cold").rglob("*"))
