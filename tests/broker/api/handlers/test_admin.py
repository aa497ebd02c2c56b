"""Administrators' requests: log sizes, elections, reassignments, quorum, features, nodes, configs of all kinds."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.api.resources.values import Operation, ResourceType
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import alter_configs
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from anabranch.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from anabranch.protocol.messages.list_transactions import ListTransactionsRequest
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from anabranch.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from anabranch.s3stream.catalog.schema import NEWEST
from anabranch.s3stream.errors import StreamFenced
from anabranch.s3stream.model import NodeIdentity
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

SESSION = "consumer.session.timeout.ms"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, topic_num_partitions=2) as running:
        yield running


async def find_coordinator(client: RawClient, key: str, kind: int) -> None:
    answer = await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)
    assert answer.coordinators[0].error_code == ErrorCode.NONE


async def sizes(client: RawClient) -> dict[int, int]:
    request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[0, 1, 7])])
    (found,) = (await client.call(request, 5)).results
    return {each.partition_index: each.partition_size for topic in found.topics for each in topic.partitions}


async def test_log_dirs_tell_what_each_partition_takes(node: Node, client: RawClient) -> None:
    assert await sizes(client) == {0: 0, 1: 0}
    batch = batch_of(b"x" * 1000)
    for _ in range(3):
        await client.produce("t", [batch])
    assert await sizes(client) == {0: 3 * len(batch), 1: 0}, "in the log"
    await node.serving.storage.flush()
    await client.produce("t", [batch], partition=1)
    found = await sizes(client)
    assert found[0] >= 3 * len(batch), "in objects"
    assert found[1] == len(batch)
    (found,) = (await client.call(DescribeLogDirsRequest(topics=None), 4)).results
    assert found.log_dir == str(node.serving.settings.node.data_dir.resolve())
    assert found.total_bytes == shutil.disk_usage(node.serving.settings.objects_path).total
    assert 0 < found.usable_bytes < found.total_bytes
    folder = node.serving.settings.objects_path
    away = folder.rename(folder.with_name("away"))  # a disk that is not mounted
    (found,) = (await client.call(DescribeLogDirsRequest(topics=None), 4)).results
    assert (found.total_bytes, found.usable_bytes) == (-1, -1)
    away.rename(folder)


async def test_a_replica_stays_in_its_directory(node: Node, client: RawClient) -> None:
    async def move(path: str, topic: str, index: int) -> int:
        wanted = AlterReplicaLogDirTopic(name=topic, partitions=[index])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])
        return int((await client.call(request, 2)).results[0].partitions[0].error_code)

    own = str(node.serving.settings.node.data_dir.resolve())
    assert await move(own, "t", 1) == ErrorCode.NONE
    assert await move("/elsewhere", "t", 1) == ErrorCode.LOG_DIR_NOT_FOUND
    assert await move(own, "t", 2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await move(own, "u", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_only_a_replica_that_cannot_lead_is_named_in_an_election(node: Node, client: RawClient) -> None:
    every = ElectLeadersRequest(topic_partitions=None)
    (topic,) = (await client.call(every, 2)).replica_election_results
    assert list(topic.partition_result) == []
    node.serving.topics.partition("t", 1).stream.refuse(StreamFenced("test"))
    for kind, code in ((0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)):
        (topic,) = (
            await client.call(ElectLeadersRequest(election_type=kind, topic_partitions=None), 2)
        ).replica_election_results
        assert [(each.partition_id, each.error_code) for each in topic.partition_result] == [(1, code)]
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    (topic,) = (await client.call(ElectLeadersRequest(topic_partitions=wanted), 0)).replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


async def test_a_node_alone_moves_partitions_only_to_where_they_are(client: RawClient) -> None:
    async def move(index: int, replicas: list[int] | None) -> int:
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        topic = ReassignableTopic(name="t", partitions=[partition])
        answer = await client.call(AlterPartitionReassignmentsRequest(topics=[topic]), 1)
        return int(answer.responses[0].partitions[0].error_code)

    assert await move(0, [1]) == ErrorCode.NONE
    for replicas in ([], [2], [1, 1], [1, 2]):
        assert await move(0, replicas) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await move(0, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await move(2, [1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list((await client.call(ListPartitionReassignmentsRequest(), 0)).topics) == []


async def test_the_node_is_the_one_voter(node: Node, client: RawClient) -> None:
    topic = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])
    for version in range(3):
        answer = await client.call(DescribeQuorumRequest(topics=[topic]), version)
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.leader_epoch) == (1, node.serving.members.own.epoch)
        assert [voter.replica_id for voter in partition.current_voters] == [1]
        assert [each.node_id for each in answer.nodes] == ([1] if version == 2 else [])


async def test_clients_of_version_3_are_told_of_features_that_begin_above_0(client: RawClient) -> None:
    for version, expected in (
        (3, {"anabranch.version", "metadata.version"}),
        (
            4,
            {
                "anabranch.version",
                "group.version",
                "metadata.version",
                "share.version",
                "streams.version",
                "transaction.version",
            },
        ),
    ):
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        answer = await client.call(request, version)
        assert {each.name for each in answer.supported_features} == expected
        ranges = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        assert ranges["metadata.version"] == (33, 33)


async def test_a_lowered_group_version_turns_the_consumer_protocol_off_until_it_is_raised(tmp_path: Path) -> None:
    async def update(client: RawClient, level: int, kind: int) -> int:
        key = FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=kind)
        return int((await client.call(UpdateFeaturesRequest(feature_updates=[key]), 2)).error_code)

    async def features(client: RawClient) -> dict[str, int]:
        answer = await client.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
        return {each.name: each.max_version_level for each in answer.finalized_features}

    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await update(client, 0, 1) == ErrorCode.INVALID_UPDATE_VERSION
        assert await update(client, 0, 2) == ErrorCode.NONE
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await features(client) == {
            "anabranch.version": NEWEST,
            "metadata.version": 33,
            "share.version": 2,
            "streams.version": 1,
            "transaction.version": 2,
        }
        await find_coordinator(client, "g", 0)
        beat = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        assert (await client.call(beat, 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert await update(client, 1, 1) == ErrorCode.NONE
        assert (await features(client))["group.version"] == 1
        assert (await client.call(beat, 1)).error_code == ErrorCode.NONE


async def test_a_node_that_lives_is_not_unregistered_and_one_that_is_gone_is(node: Node, client: RawClient) -> None:
    async def unregister(node_id: int) -> tuple[int, str]:
        answer = await client.call(UnregisterBrokerRequest(broker_id=node_id), 0)
        return answer.error_code, answer.error_message or ""

    gone = await node.serving.catalog.register_node(7, "gone", 9092, now_ms=1, lease_ms=1)
    code, message = await unregister(7)
    assert (code, "Broker ID 7 cannot be unregistered: " in message) == (ErrorCode.INVALID_REQUEST, True), "not yet"
    await node.serving.catalog.stop_node(NodeIdentity(7, gone.epoch), drained_wal=None, now_ms=1)
    assert await unregister(7) == (ErrorCode.NONE, "")
    assert (await unregister(7))[0] == ErrorCode.BROKER_ID_NOT_REGISTERED
    code, message = await unregister(1)
    assert code == ErrorCode.INVALID_REQUEST
    assert "node 1 is alive" in message


async def test_transactions_are_listed_by_a_pattern_of_their_ids(client: RawClient) -> None:
    await find_coordinator(client, "orders-1", 1)
    for name in ("orders-1", "orders-2", "payments-\u00e4"):
        await client.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4)

    async def listed(pattern: str | None) -> set[str]:
        answer = await client.call(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
        assert answer.error_code == ErrorCode.NONE
        return {each.transactional_id for each in answer.transaction_states}

    assert await listed("orders-.") == {"orders-1", "orders-2"}
    assert await listed("orders") == set()
    assert await listed(".*-[^0-9]") == {"payments-\u00e4"}
    assert await listed("") == await listed(None) == {"orders-1", "orders-2", "payments-\u00e4"}
    answer = await client.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


# -- configs of other resources than topics


async def alter(client: RawClient, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return int(answer.responses[0].error_code)


async def described(client: RawClient, kind: int, name: str) -> dict[str, tuple[str, int]]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (result,) = (await client.call(DescribeConfigsRequest(resources=[resource]), 4)).results
    assert result.error_code == ErrorCode.NONE, result.error_message
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def listed(client: RawClient, kind: int) -> list[str]:
    answer = await client.call(ListConfigResourcesRequest(resource_types=[kind]), 1)
    return [each.resource_name for each in answer.config_resources]


async def test_configs_of_a_group_hold_at_once_and_over_a_restart(tmp_path: Path) -> None:
    group = ResourceType.GROUP
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert (await described(client, group, "g"))[SESSION] == ("45000", ConfigSource.DEFAULT_CONFIG)
        assert await alter(client, group, "g", (SESSION, Operation.SET, "50000")) == ErrorCode.NONE
        assert await alter(client, group, "g", (SESSION, Operation.SET, "1")) == ErrorCode.INVALID_CONFIG
        assert node.serving.group_configs.consumer_times("g").session_timeout_ms == 50_000
        assert node.serving.group_configs.consumer_times("other").session_timeout_ms == 45_000
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert (await described(client, group, "g"))[SESSION] == ("50000", ConfigSource.GROUP_CONFIG)
        assert await listed(client, group) == ["g"]
        beat_ms = "consumer.heartbeat.interval.ms"
        resource = alter_configs.AlterConfigsResource(
            resource_type=group,
            resource_name="g",
            configs=[alter_configs.AlterableConfig(name=beat_ms, value="6000")],
        )
        await client.call(alter_configs.AlterConfigsRequest(resources=[resource]), 2)
        assert node.serving.group_configs.consumer_times("g").session_timeout_ms == 45_000, "replaced as a whole"
        await find_coordinator(client, "g", 0)
        beat = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
        )
        assert (await client.call(beat, 1)).heartbeat_interval_ms == 6000
        assert await alter(client, group, "g", (beat_ms, Operation.DELETE, None)) == ErrorCode.NONE
        assert await listed(client, group) == []


async def test_levels_of_loggers_are_changed_and_forgotten(tmp_path: Path) -> None:
    loggers = ResourceType.BROKER_LOGGER
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        found = await described(client, loggers, "1")
        assert found["root"] == found["network"] == ("INFO", ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
        assert await alter(client, loggers, "1", ("network", Operation.SET, "DEBUG")) == ErrorCode.NONE
        assert node.serving.log_levels.level("network") == "DEBUG"
        both = (("node", Operation.SET, "ERROR"), ("nobody", Operation.SET, "INFO"))
        assert await alter(client, loggers, "1", *both) == ErrorCode.INVALID_CONFIG
        assert node.serving.log_levels.level("node") == "INFO", "all or none"
        assert await alter(client, loggers, "1", ("network", Operation.DELETE, None)) == ErrorCode.NONE
        assert node.serving.log_levels.level("network") == "INFO"
        assert await alter(client, loggers, "1", ("root", Operation.SET, "ERROR")) == ErrorCode.NONE
        assert (await described(client, loggers, "1"))["requests"][0] == "ERROR"
    async with running_node(tmp_path) as node:
        assert node.serving.log_levels.level("requests") == "INFO"


async def test_a_subscription_is_kept_and_listed(tmp_path: Path) -> None:
    kind = ResourceType.CLIENT_METRICS
    values: Any = (("interval.ms", Operation.SET, "5000"), ("metrics", Operation.SET, "*"))
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await alter(client, kind, "s", *values) == ErrorCode.NONE
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        found = await described(client, kind, "s")
        assert found["interval.ms"] == ("5000", ConfigSource.CLIENT_METRICS_CONFIG)
        assert found["match"] == ("", ConfigSource.DEFAULT_CONFIG)
        assert await listed(client, kind) == ["s"]
        assert [
            each.resource_name for each in (await client.call(ListConfigResourcesRequest(), 0)).config_resources
        ] == ["s"]
        await alter(client, kind, "s", *[(name, Operation.DELETE, None) for name, _, _ in values])
        assert await listed(client, kind) == []


async def test_without_the_admin_port_no_metrics_of_clients_are_taken(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_enabled=False) as node, raw_client(node.bootstrap) as client:
        answer = await client.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert not {71, 72} & {each.api_key for each in answer.api_keys}
