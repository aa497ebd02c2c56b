"""The node of all components, and what answers the requests of clients, of other nodes and of the node itself."""

import asyncio
from functools import cache, partial
from typing import TYPE_CHECKING

from anabranch.broker.api.declaration import audited, guarded
from anabranch.broker.api.handlers import HANDLERS, advertised_apis
from anabranch.broker.api.handlers.dispatch import Dispatcher
from anabranch.broker.api.handlers.follow_tail import FOLLOW_TAIL, INVITE_FOLLOWER
from anabranch.broker.api.handlers.internal import (
    DESCRIBE_SHARES,
    InternalPort,
    internal_handlers,
    relayed,
)
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.api.handlers.produce_lane import make_lane
from anabranch.broker.api.handlers.tables import table_handlers
from anabranch.broker.api.releases import feature_levels, served_handlers
from anabranch.broker.app.cluster import (
    make_commands,
    make_links,
    make_membership,
    make_orders,
    make_reach,
    make_takeovers,
    make_target,
)
from anabranch.broker.app.kafka import (
    make_coordinators,
    make_dead_letters,
    make_persister,
    make_quotas,
    make_share_partitions,
    registry_maker,
)
from anabranch.broker.app.ports import NodeTls, make_ports
from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.app.upkeep import make_upkeep
from anabranch.broker.cluster.figures import ProcessFigures
from anabranch.broker.cluster.membership.drain import Drain
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.cluster.usage import describe_usage
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.fetch_sessions import FetchSessions
from anabranch.broker.kafka.quotas.metering import Metering
from anabranch.broker.kafka.telemetry.clients import ClientMetrics
from anabranch.broker.kafka.topics.followers import Followers
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.replicas import Replicas
from anabranch.broker.kafka.topics.tails import Tails
from anabranch.broker.node.logging.audit import AuditLog
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.peers.members import Members
from anabranch.protocol.messages.internal.describe_balance import DescribeBalanceRequest
from anabranch.protocol.messages.internal.describe_loads import DescribeLoadsRequest
from anabranch.protocol.messages.internal.describe_metrics import DescribeMetricsRequest
from anabranch.protocol.messages.internal.describe_node import DescribeNodeRequest
from anabranch.protocol.messages.internal.describe_usage import DescribeUsageRequest
from anabranch.protocol.messages.internal.describe_zones import DescribeZonesRequest
from anabranch.protocol.messages.internal.stop_node import StopNodeRequest, StopNodeResponse

if TYPE_CHECKING:
    from anabranch.broker.operator.admin.metrics.siblings import MetricsOfNode


def make_node(
    basis: Basis,
    opened: OpenStorage,
    members: Members,
    topics: TopicManager,
    *,
    broker_configs: BrokerConfigs,
    log_levels: LogLevels,
    tls: NodeTls,
    admin_port: int,
    tasks: NodeTasks,
) -> Node:
    """Build the node. Nothing runs yet. `admin_port` is 0 if there is none."""
    environment, settings, info, shared = basis.environment, basis.settings, opened.info, opened.shared
    links = make_links(basis, opened, members, tasks, tls.nodes)
    coordinators = make_coordinators(basis, opened, topics, links, tasks)
    membership = make_membership(basis, opened, members, topics, coordinators.groups)
    commands = make_commands(basis, opened, members, topics, membership)
    takeovers = make_takeovers(basis, opened, topics, membership, links, defaults=broker_configs, tasks=tasks)
    quotas = make_quotas(basis, opened, tasks)
    ports = make_ports(settings, basis.memory.sizes, tls, quotas)
    persister = make_persister(opened, topics, commands.internal_topics, coordinators.share_states, links, tasks)
    release = settings.compatibility.kafka
    features = Features(shared.configs, info.node_id, feature_levels(release), opened.catalog)
    dead_letters = make_dead_letters(
        basis,
        topics,
        commands.topics,
        links,
        group_configs=coordinators.group_configs,
        broker_configs=broker_configs,
        features=features,
    )
    serving = Serving(
        settings=settings,
        node_id=info.node_id,
        now_ms=environment.now_ms,
        catalog=opened.catalog,
        storage=opened.storage,
        ownership=membership.ownership,
        members=members,
        membership=membership,
        operations=takeovers.operations,
        links=links,
        reach=make_reach(opened, members, links),
        target=make_target(opened, topics, membership, tasks),
        parking=topics.parking,
        topics=topics,
        topic_commands=commands.topics,
        internal_topics=commands.internal_topics,
        move_requests=commands.move_requests,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        markers=coordinators.markers,
        verifier=coordinators.verifier,
        producer_ids=coordinators.producer_ids,
        share_states=coordinators.share_states,
        share_persister=persister,
        share_partitions=make_share_partitions(
            basis, topics, persister, coordinators.group_configs, dead_letters, tasks
        ),
        schemas=registry_maker(basis, topics, commands.topics, membership.ownership),
        replicas=Replicas(
            opened.catalog,
            opened.storage,
            topics,
            members,
            info.identity,
            tails=Tails(links, members, info.node_id, tasks.spawn),
            followers=Followers(links, info.node_id, tasks.spawn),
        ),
        fetch_sessions=FetchSessions(settings.fetch.sessions_max, settings.fetch.session_idle_ms, environment.random()),
        audit=AuditLog(asyncio.get_running_loop().time, environment.now_ms),
        acls=shared.acls,
        scram=shared.scram,
        delegation_tokens=shared.tokens,
        cluster_configs=shared.configs,
        broker_configs=broker_configs,
        group_configs=coordinators.group_configs,
        quota_table=quotas.table,
        features=features,
        telemetry=ClientMetrics(
            shared.configs, settings.telemetry, environment.now_ms, lambda: environment.new_uuid().bytes
        ),
        log_levels=log_levels,
        # The admin port exposes the metrics that clients push, so telemetry needs it.
        advertised_apis=advertised_apis(
            served_handlers(release), telemetry=settings.telemetry.enabled and settings.admin.is_wanted
        ),
        listener_ports=ports.clients.ports,
        admin_port=admin_port,
    )
    upkeep = make_upkeep(
        basis,
        opened,
        serving,
        ports.clients.traffic,
        failover=takeovers.failover,
        drain=Drain(commands.move_requests, topics, members),
        orders=make_orders(opened, topics, membership, links, tasks),
    )
    return Node(
        serving=serving,
        upkeep=upkeep,
        ports=ports,
        memory=basis.memory,
        cautious_now_ms=basis.cautious.now_ms,
        wal=opened.wal,
        stores=opened.stores,
        moves=commands.moves,
        tracing=None if basis.tracer is None else basis.tracer.stats,
        tasks=tasks,
        failure=basis.failure,
    )


def answer_requests(basis: Basis, opened: OpenStorage, node: Node) -> LocalRequests:
    """Let the node's ports answer requests once they listen. Returns the node's requests to itself."""
    serving, ports = node.serving, node.ports
    tables = node.upkeep.tables
    metrics, figures = cache(partial(_make_metrics, node)), ProcessFigures(node)
    own = [
        relayed(DescribeNodeRequest, lambda _: figures.describe()),
        relayed(StopNodeRequest, lambda _: StopNodeResponse(failure=node.end_if_drained())),
        relayed(DescribeLoadsRequest, lambda _: node.upkeep.meter.describe()),
        relayed(DescribeUsageRequest, lambda _: describe_usage(node)),
        relayed(DescribeZonesRequest, lambda _: node.upkeep.meter.describe_zones()),
        relayed(DescribeBalanceRequest, node.upkeep.balancer.describe),
        relayed(DescribeMetricsRequest, lambda request: metrics().describe(request)),
        DESCRIBE_SHARES,
        FOLLOW_TAIL,
        INVITE_FOLLOWER,
        *table_handlers(statuses=tables.statuses, hurry=tables.hurry),
    ]
    handlers = audited({**HANDLERS, **{each.api.key: each for each in own}})
    local = LocalRequests(serving, handlers, is_stopping=lambda: node.stopping)
    _answer_clients(basis, node)
    internal = InternalPort(
        ports.nodes,
        serving.members,
        cluster=basis.settings.node.cluster,
        secret=opened.shared.secret,
        random_bytes=basis.environment.random_bytes,
        hear=serving.reach.hear,
        serve=Dispatcher(serving, spawn=node.tasks.spawn, handlers=internal_handlers(local)).dispatch,
    )
    node.tasks.spawn(internal.run())
    ports.limit_connections(serving.broker_configs)
    return local


def _make_metrics(node: Node) -> "MetricsOfNode":
    """Return what writes the node's metrics. It is loaded when another node asks for them."""
    from anabranch.broker.operator.admin.metrics.siblings import MetricsOfNode

    return MetricsOfNode(node)


def _answer_clients(basis: Basis, node: Node) -> None:
    serving, ports = node.serving, node.ports
    handlers = served_handlers(serving.settings.compatibility.kafka)
    handlers = basis.environment.wrap_handlers(audited(handlers if serving.acls is None else guarded(handlers)))
    if basis.tracer is not None:
        from anabranch.broker.api.handlers.traced import traced  # it loads OpenTelemetry, which may be missing

        handlers = traced(handlers, basis.tracer)
    metering = Metering(
        ports.clients,
        ports.client_quotas,
        {key: handler.metered for key, handler in HANDLERS.items()},
        lambda spawn: Dispatcher(serving, spawn=spawn, handlers=handlers).dispatch,
        spawn=node.tasks.spawn,
        take=make_lane(serving, node.wal, handlers),
    )
    ports.client_quotas.watch(serving.cluster_configs, metering.update)
    ports.address_quotas.watch(serving.cluster_configs)
    ports.clients.connection_delay_s = ports.address_quotas.delay_s
