"""Serving: the components that requests are answered from. Handlers, guards and resources receive no others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.broker.cluster.handover.target import PartitionTarget
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.operations import NodeOperations
from anabranch.broker.cluster.membership.ownership import Ownership
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.configs.group import GroupConfigs
from anabranch.broker.kafka.coordination.internal_topics import InternalTopics
from anabranch.broker.kafka.fetch_sessions import FetchSessions
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.sasl.credentials import ScramCredentials
from anabranch.broker.kafka.sasl.delegation_tokens import DelegationTokens
from anabranch.broker.kafka.share.interface import SharePersister
from anabranch.broker.kafka.share.partitions import SharePartitions
from anabranch.broker.kafka.share.state.coordinator import ShareCoordinator
from anabranch.broker.kafka.telemetry.clients import ClientMetrics
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.kafka.topics.replicas import Replicas
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.producer_ids import ProducerIds
from anabranch.broker.kafka.transactions.verifier import TransactionVerifier
from anabranch.broker.node.logging.audit import AuditLog
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.peers.links import Links
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.peers.reach import Reach
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.messages.api_versions import ApiVersion
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.engine import S3Stream

if TYPE_CHECKING:
    from anabranch.broker.kafka.schemas.registry import SchemaRegistry


@dataclass(slots=True, kw_only=True, eq=False)
class Serving:
    """Components that requests are answered from. They are set once, at the start; counters grow."""

    settings: Settings
    node_id: int
    now_ms: Callable[[], int]
    catalog: Catalog
    storage: S3Stream

    ownership: Ownership
    """Proof that reads may be answered."""
    members: Members
    membership: Membership
    operations: NodeOperations
    links: Links
    """Connections to other nodes."""
    reach: Reach
    """Knowledge whether connections to and from other nodes work."""
    target: PartitionTarget
    """Partitions that are received from other nodes."""

    parking: Parking
    """Requests that wait for partitions, groups and transactions that this node is about to serve."""
    topics: TopicManager
    topic_commands: TopicCommands
    internal_topics: InternalTopics
    move_requests: MoveRequests
    """Orders to move partitions, of any node, asked for through this one."""
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: MarkerWriter
    verifier: TransactionVerifier
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    replicas: Replicas
    """Partitions that other nodes lead, which this one serves from objects."""
    share_states: ShareCoordinator
    """States of share partitions that this node keeps."""
    share_persister: SharePersister
    """States of all share partitions, whichever nodes keep them."""
    share_partitions: SharePartitions
    """Share partitions that this node leads, and the sessions of their members."""
    schemas: "Callable[[], SchemaRegistry]"
    """Returns the schema registry, on the node that leads its log. It is imported by the first call."""

    audit: AuditLog
    acls: ClusterAcls | None
    """ACLs of the cluster; None: clients may do everything, since there is no authorizer."""
    scram: ScramCredentials
    """Credentials of users by SCRAM."""
    delegation_tokens: DelegationTokens | None
    """None: there is no secret key for them, so they are off."""
    cluster_configs: ClusterConfigs
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    quota_table: QuotaTable
    features: Features
    telemetry: ClientMetrics
    log_levels: LogLevels

    advertised_apis: Sequence[ApiVersion]
    """APIs and versions in the answer to ApiVersions."""
    listener_ports: Mapping[str, int]
    """Ports that the listeners are bound to, by their names. Empty until the node listens."""
    admin_port: int
    """Port that the admin port is bound to; 0: there is none."""

    requests: dict[int, int] = field(default_factory=dict)
    """Number of requests received, by API key."""
    request_failures: int = 0
    """Requests whose handler raised an unexpected error."""
    damaged_requests: int = 0
    """Requests answered with an error because an object is corrupt or missing."""
    table_requests: dict[str, int] = field(default_factory=dict)
    """Number of requests to the catalog of tables, by what they asked for."""
    fetched_bytes: int = 0
    """Bytes of records that Fetch has answered with since the start. To count each response would cost 3% and more."""
