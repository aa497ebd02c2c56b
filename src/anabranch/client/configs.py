"""Configs of topics, nodes and groups. Every failure is a ClientError."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection, error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

RESOURCES: Final = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
"""Kafka's codes of the types of resources that have configs."""
SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "settings",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
"""Places of values, by Kafka's codes of sources."""
OWN_SOURCES: Final = {"topic": {1}, "broker": {2, 3}, "broker-logger": {6}, "client-metrics": {7}, "group": {8}}
"""Sources of values that were set on purpose, by kind of resource."""
SET, DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class Resource:
    """Owner of configs. `name` of brokers: the id, or empty for all."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"all {self.kind}s"


@dataclass(frozen=True, slots=True)
class Config:
    """A config with its value; None: it is not shown."""

    name: str
    value: str | None
    source: str
    is_own: bool
    is_read_only: bool
    documentation: str | None


def describe_configs(cluster: Cluster, resource: Resource, *, documentation: bool = False) -> Sequence[Config]:
    """Return all configs of a resource, ordered by name."""
    asked = DescribeConfigsResource(
        resource_type=RESOURCES[resource.kind], resource_name=resource.name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[asked], include_documentation=documentation)
    answer: DescribeConfigsResponse = _node_of(cluster, resource).call(request)
    found = answer.results[0]
    _check(found.error_code, found.error_message, resource)
    return sorted(
        (
            Config(
                each.name,
                each.value,
                SOURCES.get(each.config_source, "unknown"),
                each.config_source in OWN_SOURCES[resource.kind],
                each.read_only,
                each.documentation,
            )
            for each in found.configs
        ),
        key=lambda each: each.name,
    )


def alter_configs(
    cluster: Cluster, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Set configs; None removes a value, so that the default applies."""
    altered = AlterConfigsResource(
        resource_type=RESOURCES[resource.kind],
        resource_name=resource.name,
        configs=[
            AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
            for name, value in changes.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only)
    answer: IncrementalAlterConfigsResponse = _node_of(cluster, resource).call(request)
    _check(answer.responses[0].error_code, answer.responses[0].error_message, resource)


def _node_of(cluster: Cluster, resource: Resource) -> Connection:
    """Return the node that answers: configs of one node are its own."""
    if resource.kind in {"broker", "broker-logger"} and resource.name:
        if not resource.name.isdecimal():
            raise ClientError(f"{resource}: expected the id of a node, such as 0")
        return cluster.node(int(resource.name))
    return cluster.first


def _check(code: int, message: str | None, resource: Resource) -> None:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise ClientError(f"{resource} does not exist")
    if code:
        raise ClientError(f"{resource}: {error_text(code, message)}")
