"""Configs of other brokers and of all, features, and the registration of brokers."""

from collections.abc import Sequence

from anabranch.protocol.messages import incremental_alter_configs as incremental
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from anabranch.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.differential.cluster_script import NODES, ClusterScript
from tests.differential.scripts.configs import BROKER, BROKER_LOGGER, DELETE, SET, TOPIC

NAME = "message.max.bytes"


def _describe(name: str, *keys: str, kind: int = BROKER, synonyms: bool = False) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms)


def _change(
    name: str, value: str | None, *, key: str = NAME, kind: int = BROKER, validate_only: bool = False
) -> incremental.IncrementalAlterConfigsRequest:
    config = incremental.AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def _settled(script: ClusterScript, name: str, value: str, *, on: str, key: str = NAME, kind: int = BROKER) -> None:
    request = _describe(name, key, kind=kind)
    script.until(request, 4, lambda answer: [config.value for config in answer.results[0].configs] == [value], on=on)


def _synonyms(answer: DescribeConfigsResponse) -> Sequence[str | None]:
    """The values of the first config, with those that its own hides: those of other sources may come later."""
    return [synonym.value for config in answer.results[0].configs for synonym in config.synonyms]


def configs_of_brokers(script: ClusterScript) -> None:
    default = "1048588"
    for node_id in NODES:
        script.call_each(f"of {node_id}", _describe(str(node_id), "broker.id", NAME), 1, 4)
    script.call_each("of an unknown broker", _describe("4", "broker.id"), 4)
    script.call_each("of all", _describe("", NAME), 4)
    two = [
        DescribeConfigsResource(resource_type=BROKER, resource_name=name, configuration_keys=[NAME]) for name in "12"
    ]
    script.call_each("of two", DescribeConfigsRequest(resources=two), 4)
    script.call("set for 2, at 2", _change("2", "2000000"), 0, 1, on="2")
    _settled(script, "2", "2000000", on="2")
    for node_id in (1, 3):
        script.call(f"set for 2, at {node_id}", _change("2", "3000000", validate_only=True), 0, 1, on=str(node_id))
    script.call("set for all, at 3", _change("", "4000000"), 1, on="3")
    for node_id, value in ((1, "4000000"), (2, "2000000"), (3, "4000000")):
        _settled(script, str(node_id), value, on=str(node_id))
        request = _describe(str(node_id), NAME, synonyms=True)
        script.until(request, 4, lambda answer: "4000000" in _synonyms(answer), on=str(node_id))
        script.call(f"what holds at {node_id}", request, 4, on=str(node_id))
    script.call_each("what holds for all", _describe("", NAME), 4)
    script.call_each("set for an unknown broker", _change("4", "2000000", validate_only=True), 1)
    script.call_each("set for no number", _change("x", "2000000", validate_only=True), 1)
    script.ask(_change("2", None), 1, on="2")
    script.ask(_change("", None), 1, on="1")
    for node_id in NODES:
        _settled(script, str(node_id), default, on=str(node_id))
    script.call_each("brokers", ListConfigResourcesRequest(resource_types=[BROKER]), 1)


def loggers_of_brokers(script: ClusterScript) -> None:
    for node_id in NODES:
        script.call_each(f"of {node_id}", _describe(str(node_id), "no.such.logger", kind=BROKER_LOGGER), 4)
        request = _change(str(node_id), "DEBUG", key="no.such.logger", kind=BROKER_LOGGER, validate_only=True)
        script.call_each(f"set for {node_id}", request, 1)


def configs_of_topics(script: ClusterScript) -> None:
    script.place("kt-a", 1, 2)
    for node_id in NODES:
        value = str(5000 + node_id)
        request = _change("kt-a", value, key="retention.ms", kind=TOPIC)
        script.call(f"set at {node_id}", request, 1, on=str(node_id))
        for other in NODES:
            _settled(script, "kt-a", value, on=str(other), key="retention.ms", kind=TOPIC)
        described = _describe("kt-a", "retention.ms", kind=TOPIC, synonyms=True)
        script.call_each(f"as set at {node_id}", described, 1, 4)
    script.call_each("of an unknown topic", _describe("kt-x", kind=TOPIC), 4)
    script.call_each("set for an unknown topic", _change("kt-x", "1", key="retention.ms", kind=TOPIC), 1)


def registration(script: ClusterScript) -> None:
    script.call_each("an unknown broker", UnregisterBrokerRequest(broker_id=99), 0)
    script.call_each("a negative broker", UnregisterBrokerRequest(broker_id=-1), 0)


def log_dirs_moved(script: ClusterScript) -> None:
    script.place("kl-a", 1, 2, 3)
    for node_id in NODES:
        own = script.ask(DescribeLogDirsRequest(topics=None), 5, on=str(node_id)).results[0].log_dir
        topics = [AlterReplicaLogDirTopic(name="kl-a", partitions=[0, 1, 2])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=own, topics=topics)])
        script.call(f"moved to where it is, at {node_id}", request, 1, 2, on=str(node_id))


SCRIPTS = (configs_of_brokers, loggers_of_brokers, configs_of_topics, registration, log_dirs_moved)
