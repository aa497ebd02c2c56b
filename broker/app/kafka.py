"""Components of Kafka's semantics: topics, coordinators, configs and quotas."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.cluster.membership.ownership import Ownership
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.configs.group import GroupConfigs
from anabranch.broker.kafka.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_TOPIC,
    CoordinatorTopic,
    InternalTopics,
)
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageSource
from anabranch.broker.kafka.quotas.addresses import AddressQuotas
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.share.dead_letters.writer import DeadLetterWriter
from anabranch.broker.kafka.share.interface import SharePersister
from anabranch.broker.kafka.share.partitions import SharePartitions
from anabranch.broker.kafka.share.persister import ClusterPersister
from anabranch.broker.kafka.share.state.coordinator import ShareCoordinator
from anabranch.broker.kafka.share.state.topics import ClusterTopics
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.marker_router import MarkerRouter
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.producer_ids import ProducerIds
from anabranch.broker.kafka.transactions.verifier import TransactionVerifier
from anabranch.broker.node.net.ports import resolve
from anabranch.broker.node.peers.links import Links
from anabranch.broker.node.peers.members import Members

if TYPE_CHECKING:
    from anabranch.broker.kafka.schemas.registry import SchemaRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """Coordinators, and what transactions need on the nodes of their partitions."""

    group_configs: GroupConfigs
    groups: GroupCoordinator
    producer_ids: ProducerIds
    markers: MarkerWriter
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    share_states: ShareCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Quotas as they are set, and what clients and addresses have used of them."""

    table: QuotaTable
    clients: ClientQuotas
    addresses: AddressQuotas


def make_topics(basis: Basis, opened: OpenStorage, members: Members, defaults: BrokerConfigs) -> TopicManager:
    """Build the topics of this node. None are loaded yet."""
    return TopicManager(
        catalog=opened.catalog,
        storage=opened.storage,
        settings=basis.settings,
        work=opened.work,
        defaults=defaults,
        members=members,
        now_ms=basis.environment.now_ms,
    )


def make_coordinators(
    basis: Basis, opened: OpenStorage, topics: TopicManager, links: Links, tasks: NodeTasks
) -> Coordinators:
    """Build the coordinators. They coordinate nothing before their `start`."""
    environment, settings, info = basis.environment, basis.settings, opened.info
    group_configs = GroupConfigs(opened.shared.configs, settings.group)
    groups = GroupCoordinator(
        CoordinatorTopic(topics, OFFSETS_TOPIC, environment.now_ms),
        settings.group,
        now_ms=environment.now_ms,
        steady_ms=environment.steady_ms,
        new_id=lambda: str(environment.new_uuid()),
        topics=TopicImageSource(topics),
        consumer_times=group_configs.consumer_times,
        share_times=group_configs.share_times,
        streams_configs=group_configs.streams,
        expiry_now_ms=basis.cautious.now_ms,
        read_topic_names=topics.read_names,
        parking=topics.parking,
    )
    markers = MarkerWriter(topics, groups)
    producer_ids = ProducerIds(opened.catalog)
    transactions = TransactionCoordinator(
        CoordinatorTopic(topics, TRANSACTION_TOPIC, environment.now_ms),
        MarkerRouter(markers, topics, links, node_id=info.node_id, node_epoch=info.epoch, spawn=tasks.spawn),
        settings.transaction,
        now_ms=environment.now_ms,
        next_producer_id=producer_ids.next,
        parking=topics.parking,
    )
    share_states = ShareCoordinator(
        CoordinatorTopic(topics, SHARE_STATE_TOPIC, environment.now_ms),
        ClusterTopics(topics),
        settings.share,
        now_ms=environment.now_ms,
        parking=topics.parking,
    )
    return Coordinators(
        group_configs=group_configs,
        groups=groups,
        producer_ids=producer_ids,
        markers=markers,
        transactions=transactions,
        verifier=TransactionVerifier(transactions, topics, links, node_id=info.node_id),
        share_states=share_states,
    )


def make_persister(
    opened: OpenStorage,
    topics: TopicManager,
    internal_topics: InternalTopics,
    share_states: ShareCoordinator,
    links: Links,
    tasks: NodeTasks,
) -> ClusterPersister:
    """Build the persister of share partitions."""
    return ClusterPersister(
        share_states,
        topics,
        links,
        node_id=opened.info.node_id,
        create_topic=lambda: internal_topics.ensure(SHARE_STATE_TOPIC),
        spawn=tasks.spawn,
    )


def make_dead_letters(
    basis: Basis,
    topics: TopicManager,
    commands: TopicCommands,
    links: Links,
    *,
    group_configs: GroupConfigs,
    broker_configs: BrokerConfigs,
    features: Features,
) -> DeadLetterWriter:
    """Build what writes the dead letters of share groups."""
    settings = basis.settings
    return DeadLetterWriter(
        topics,
        commands,
        links,
        node_id=settings.node.node_id,
        partitions=settings.topic.num_partitions,
        group_configs=group_configs,
        broker_configs=broker_configs,
        features=features,
    )


def make_share_partitions(
    basis: Basis,
    topics: TopicManager,
    persister: SharePersister,
    configs: GroupConfigs,
    dead_letters: DeadLetterWriter,
    tasks: NodeTasks,
) -> SharePartitions:
    """Build the share partitions of this node. None are loaded yet."""
    return SharePartitions(
        topics,
        persister,
        configs,
        dead_letters,
        sessions_max=basis.settings.group.share_sessions_max,
        now_ms=basis.environment.now_ms,
        steady_ms=basis.environment.steady_ms,
        spawn=tasks.spawn,
    )


def make_quotas(basis: Basis, opened: OpenStorage, tasks: NodeTasks) -> Quotas:
    """Build the quotas. They do not follow the configs yet."""
    table, area, steady_ms = QuotaTable(opened.shared.configs), basis.settings.quota, basis.environment.steady_ms
    return Quotas(
        table=table,
        clients=ClientQuotas(table, area, steady_ms),
        addresses=AddressQuotas(table, area, steady_ms, resolve=resolve, spawn=tasks.spawn),
    )


def registry_maker(
    basis: Basis, topics: TopicManager, commands: TopicCommands, ownership: Ownership
) -> "Callable[[], SchemaRegistry]":
    """Return what makes the schema registry when it is first asked for: a node without schemas does not import it."""

    @cache
    def make() -> "SchemaRegistry":
        from anabranch.broker.app.schemas import make_schemas

        return make_schemas(basis, topics, commands, lambda: ownership.is_proved)

    return make
