"""Table of the types of resources that have configs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from anabranch.broker.api.resources.brokers import BrokerResource
from anabranch.broker.api.resources.client_metrics import ClientMetricsResource
from anabranch.broker.api.resources.groups import GroupResource
from anabranch.broker.api.resources.loggers import LoggerResource
from anabranch.broker.api.resources.topics import TopicResource
from anabranch.broker.api.resources.values import Resource, ResourceType

RESOURCES: Final[Mapping[int, Resource]] = MappingProxyType(
    {
        ResourceType.TOPIC: TopicResource(),
        ResourceType.BROKER: BrokerResource(),
        ResourceType.BROKER_LOGGER: LoggerResource(),
        ResourceType.CLIENT_METRICS: ClientMetricsResource(),
        ResourceType.GROUP: GroupResource(),
    }
)
"""Resource types by Kafka's type codes."""
