"""A node that presents itself as an older release of Apache Kafka."""

from pathlib import Path

import pytest

from anabranch.broker.api.declaration import Handler
from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.releases import read_lines, served_handlers
from anabranch.broker.node.settings.known import KAFKA_RELEASES
from anabranch.protocol.codec import decode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import api_versions, consumer_group_heartbeat, fetch, metadata, produce
from anabranch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

ASK = ApiVersionsRequest(client_software_name="a", client_software_version="1")


def versions_of(answer: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


async def refusal(client: RawClient, version: int) -> ApiVersionsResponse:
    """Ask in a version that is not served."""
    client.send(ASK, version)
    response, _ = decode(ApiVersionsResponse, await client.receive_bytes(), 0, 4)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    return response


def test_every_release_has_lines_in_ascending_order() -> None:
    keys = [line.key for line in read_lines() if line.key is not None]
    assert keys == sorted(set(keys))
    assert {release for line in read_lines() for release in line.values} == set(KAFKA_RELEASES)


def test_a_release_serves_what_both_have() -> None:
    for release in KAFKA_RELEASES:
        released = {line.key: line.values[release] for line in read_lines() if release in line.values}
        served = served_handlers(release)
        for key, handler in HANDLERS.items():
            theirs = set[int]()
            if key in released:
                first, last = map(int, released[key].split("-"))
                theirs = set(range(first, last + 1))
            assert theirs & versions_in(handler) == versions_in(served.get(key)), (release, key)


def versions_in(handler: Handler | None) -> set[int]:
    return set() if handler is None else set(range(handler.min_version, handler.max_version + 1))


async def test_what_3_6_has(tmp_path: Path) -> None:
    async with running_node(tmp_path, compatibility_kafka="3.6") as node:
        async with raw_client(node.bootstrap) as client:
            assert versions_of(await refusal(client, 4)) == {api_versions.KEY: (0, 3)}
            answer = await client.call(ASK, 3)
            versions = versions_of(answer)
            assert versions[produce.KEY] == (0, 9)
            assert versions[fetch.KEY] == (4, 15)
            assert consumer_group_heartbeat.KEY not in versions
            assert [(each.name, each.min_version, each.max_version) for each in answer.supported_features] == [
                ("metadata.version", 14, 14)
            ]
            assert [(each.name, each.max_version_level) for each in answer.finalized_features] == [
                ("metadata.version", 14)
            ]
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), versions[metadata.KEY][1])
            produced = await client.produce("t", [batch_of(b"a")], version=9)
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        for request, version in ((MetadataRequest(topics=()), 13), (ConsumerGroupHeartbeatRequest(), 0)):
            async with raw_client(node.bootstrap) as client:
                client.send(request, version)
                assert await client.closed()


async def test_before_kip_511_a_refusal_names_no_versions(tmp_path: Path) -> None:
    async with running_node(tmp_path, compatibility_kafka="2.3") as node, raw_client(node.bootstrap) as client:
        assert versions_of(await refusal(client, 3)) == {}
        assert versions_of(await client.call(ASK, 2))[api_versions.KEY] == (0, 2)


async def test_with_zookeeper_there_are_no_features(tmp_path: Path) -> None:
    async with running_node(tmp_path, compatibility_kafka="2.8") as node, raw_client(node.bootstrap) as client:
        answer = await client.call(ASK, 3)
        assert not answer.supported_features
        assert not answer.finalized_features
        assert answer.finalized_features_epoch == -1


@pytest.mark.parametrize(("release", "refuses"), [("3.9", True), ("4.0", False)])
async def test_the_consumer_protocol_is_on_since_4_0(tmp_path: Path, release: str, refuses: bool) -> None:
    """Brokers before name it in ApiVersions, and refuse it in a new cluster."""
    async with running_node(tmp_path, compatibility_kafka=release) as node, raw_client(node.bootstrap) as client:
        assert consumer_group_heartbeat.KEY in versions_of(await client.call(ASK, 3))
        join = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert ((await client.call(join, 0)).error_code == ErrorCode.UNSUPPORTED_VERSION) is refuses
