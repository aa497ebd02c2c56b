"""What a handler is given: the components of the running node, put together by `broker.app`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.membership.other_nodes import ElsewhereNotice
from broker.settings.model import Settings
from protocol.messages.api_versions import ApiVersion
from s3stream.catalog.catalog import Catalog
from s3stream.engine import S3Stream

if TYPE_CHECKING:
    from broker.configs.broker import BrokerConfigs
    from broker.configs.cluster import ClusterConfigs
    from broker.configs.features import Features
    from broker.configs.group import GroupConfigs
    from broker.fetch_sessions import FetchSessions
    from broker.groups.coordinator import GroupCoordinator
    from broker.logging.levels import LogLevels
    from broker.net.server import Server
    from broker.settings.producer_ids import ProducerIds
    from broker.telemetry.clients import ClientMetrics
    from broker.topics.manager import TopicManager
    from broker.transactions.coordinator import TransactionCoordinator
    from broker.transactions.markers import MarkerWriter


@dataclass(slots=True)
class Address:
    """Where clients reach the node."""

    host: str
    port: int


@dataclass(slots=True)
class Node:
    """One running node. Fields are set once, at the start, but for the counter."""

    settings: Settings
    node_id: int
    cluster_id: str
    node_epoch: int
    catalog: Catalog
    storage: S3Stream
    topics: "TopicManager"
    groups: "GroupCoordinator"
    transactions: "TransactionCoordinator"
    markers: "MarkerWriter"
    fetch_sessions: "FetchSessions"
    producer_ids: "ProducerIds"
    server: "Server"
    cluster_configs: "ClusterConfigs"
    broker_configs: "BrokerConfigs"
    group_configs: "GroupConfigs"
    features: "Features"
    telemetry: "ClientMetrics"
    log_levels: "LogLevels"
    now_ms: Callable[[], int]
    advertised_apis: Sequence[ApiVersion] = ()
    """What ApiVersions answers."""
    damaged_requests: int = 0
    """Requests answered with an error because an object is corrupt or missing."""
    advertised: Address = field(default_factory=lambda: Address("", 0))
    elsewhere: ElsewhereNotice = field(default_factory=ElsewhereNotice)
