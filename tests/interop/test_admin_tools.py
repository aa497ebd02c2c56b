"""Apache Kafka's tools for administrators: log directories, reassignments, quorum, features, configs of all kinds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.test_java import refused, run
from tests.support.kafka_tools import TOOLS, TOPICS
from tests.support.node import NodeProcess

pytestmark = pytest.mark.interop

CONFIGS = "org.apache.kafka.tools.ConfigCommand"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("admin-tools")) as node:
        run(node.bootstrap, TOPICS, "--create", "--topic", "t", "--partitions", "2")
        yield node.bootstrap
        assert node.terminate() == 0


def test_log_dirs_are_described(servers: str) -> None:
    described = run(servers, f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "t")
    (broker,) = json.loads(described.splitlines()[-1])["brokers"]
    (found,) = broker["logDirs"]
    assert {each["partition"]: each["size"] for each in found["partitions"]} == {"t-0": 0, "t-1": 0}


def test_a_reassignment_to_where_it_is_is_executed_and_verified(servers: str, tmp_path: Path) -> None:
    partitions = [{"topic": "t", "partition": index, "replicas": [1]} for index in range(2)]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tool = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    assert "Successfully started" in run(servers, tool, "--reassignment-json-file", str(plan), "--execute")
    verified = run(servers, tool, "--reassignment-json-file", str(plan), "--verify")
    assert "Reassignment of partition t-1 is completed" in verified


def test_the_quorum_and_the_features_are_described(servers: str) -> None:
    status = run(servers, f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId:               1" in status
    lowered = run(servers, f"{TOOLS}.FeatureCommand", "downgrade", "--feature", "group.version=0", "--dry-run")
    assert "can be downgraded to 0" in lowered
    described = run(servers, f"{TOOLS}.FeatureCommand", "describe")
    assert "group.version" in described
    (metadata,) = [line.split() for line in described.splitlines() if "metadata.version" in line]
    assert metadata[:7:2] == ["Feature:", "SupportedMinVersion:", "SupportedMaxVersion:", "FinalizedVersionLevel:"]
    assert metadata[1:8:2] == ["metadata.version", "4.4-IV2", "4.4-IV2", "4.4-IV2"]
    assert "33" in run(servers, f"{TOOLS}.FeatureCommand", "upgrade", "--metadata", "4.4-IV2", "--dry-run")
    lower = refused(servers, f"{TOOLS}.FeatureCommand", "downgrade", "--metadata", "4.3-IV0")
    assert "Local controller 1 only supports versions 33-33" in lower


def test_configs_of_groups_and_levels_of_loggers_are_changed(servers: str) -> None:
    for entity, name, config in (
        ("groups", "g", "consumer.session.timeout.ms=50000"),
        ("broker-loggers", "1", "network=DEBUG"),
    ):
        run(servers, CONFIGS, "--alter", "--entity-type", entity, "--entity-name", name, "--add-config", config)
        assert config in run(servers, CONFIGS, "--describe", "--entity-type", entity, "--entity-name", name)


def test_configs_of_brokers_are_changed_for_one_and_for_all(servers: str) -> None:
    def configs(*arguments: str) -> str:
        return run(servers, CONFIGS, *arguments, "--entity-type", "brokers")

    everyone, one = ["--entity-default"], ["--entity-name", "1"]
    configs("--alter", *everyone, "--add-config", "log.retention.ms=5000,message.max.bytes=2000000")
    configs("--alter", *one, "--add-config", "message.max.bytes=3000000,log.cleanup.policy=[compact,delete]")
    described = configs("--describe", *one)
    assert "message.max.bytes=3000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:message.max.bytes=3000000, " in (
        described
    )
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2000000" in described
    assert "log.retention.ms=5000" in configs("--describe", *everyone)
    topic = run(servers, CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "t", "--all")
    assert "max.message.bytes=3000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:" in topic
    assert "retention.ms=5000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:" in topic
    assert "cleanup.policy=compact,delete" in topic
    of_the_start = ["--alter", "--entity-type", "brokers", *one, "--add-config", "num.partitions=3"]
    assert "Cannot update these configs dynamically: [num.partitions]" in refused(servers, CONFIGS, *of_the_start)
    configs("--alter", *one, "--delete-config", "message.max.bytes,log.cleanup.policy")
    configs("--alter", *everyone, "--delete-config", "message.max.bytes,log.retention.ms")
    assert "message.max.bytes" not in configs("--describe", *one) + configs("--describe", *everyone)


def test_quotas_are_changed_and_described(servers: str) -> None:
    def configs(*arguments: str) -> str:
        return run(servers, CONFIGS, *arguments)

    both = ["--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default"]
    configs("--alter", *both, "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    described = configs("--describe", *both)
    assert "Quota configs for user-principal 'alice', the default client-id are" in described
    assert "producer_byte_rate=1048576.0" in described
    assert "request_percentage=12.5" in described
    configs("--alter", "--entity-type", "ips", "--entity-default", "--add-config", "connection_creation_rate=1000")
    assert "connection_creation_rate=1000.0" in configs("--describe", "--entity-type", "ips", "--entity-default")
    configs("--alter", "--entity-type", "clients", "--entity-name", "c", "--add-config", "consumer_byte_rate=1048576")
    configs("--alter", "--entity-type", "users", "--entity-name", "bob", "--add-config", "controller_mutation_rate=10")
    assert "consumer_byte_rate=1048576.0" in configs("--describe", "--entity-type", "clients")
    assert "controller_mutation_rate=10.0" in configs("--describe", "--entity-type", "users", "--entity-name", "bob")
    refusal = refused(servers, CONFIGS, "--alter", *both, "--add-config", "producer_byte_rate=0")
    assert "Quota producer_byte_rate must be greater than 0" in refusal
    configs("--alter", *both, "--delete-config", "producer_byte_rate,request_percentage")
    assert "producer_byte_rate" not in configs("--describe", *both)
