"""The node of all components, and what answers the requests of clients, of other nodes and of the node itself."""

import asyncio

from anabranch.broker.api.declaration import audited, guarded
from anabranch.broker.api.handlers import HANDLERS, PIPELINED, advertised_apis
from anabranch.broker.api.handlers.dispatch import Dispatcher
from anabranch.broker.api.handlers.internal import InternalPort, internal_handlers, internal_server
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.app.cluster import (
    make_commands,
    make_links,
    make_membership,
    make_orders,
    make_reach,
    make_takeovers,
    make_target,
)
from anabranch.broker.app.kafka import make_coordinators, make_quotas
from anabranch.broker.app.ports import NodeTls
from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.app.upkeep import make_upkeep
from anabranch.broker.cluster.membership.drain import Drain
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.features import Features
from anabranch.broker.kafka.fetch_sessions import FetchSessions
from anabranch.broker.kafka.quotas.metering import Metering
from anabranch.broker.kafka.telemetry.clients import ClientMetrics
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.node.logging.audit import AuditLog
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.peers.members import Members


def make_node(
    basis: Basis,
    opened: OpenStorage,
    members: Members,
    topics: TopicManager,
    *,
    broker_configs: BrokerConfigs,
    log_levels: LogLevels,
    tls: NodeTls,
    tasks: NodeTasks,
) -> Node:
    """Build the node. Nothing runs yet."""
    environment, settings, info, shared = basis.environment, basis.settings, opened.info, opened.shared
    links = make_links(basis, opened, members, tasks, tls.nodes)
    coordinators = make_coordinators(basis, opened, topics, links, tasks)
    membership = make_membership(basis, opened, members, topics, coordinators.groups)
    commands = make_commands(basis, opened, members, topics, membership)
    takeovers = make_takeovers(basis, opened, topics, membership, links, defaults=broker_configs, tasks=tasks)
    quotas = make_quotas(basis, opened, tasks)
    return Node(
        settings=settings,
        memory=basis.memory,
        node_id=info.node_id,
        cluster_name=settings.node.cluster,
        node_epoch=info.epoch,
        now_ms=environment.now_ms,
        cautious_now_ms=basis.cautious.now_ms,
        catalog=opened.catalog,
        wal=opened.wal,
        stores=opened.stores,
        storage=opened.storage,
        upkeep=make_upkeep(
            basis,
            opened,
            topics,
            failover=takeovers.failover,
            drain=Drain(commands.move_requests, topics, members),
            orders=make_orders(opened, topics, membership, links, tasks),
        ),
        ownership=membership.ownership,
        members=members,
        membership=membership,
        operations=takeovers.operations,
        parking=topics.parking,
        topics=topics,
        topic_commands=commands.topics,
        internal_topics=commands.internal_topics,
        moves=commands.moves,
        move_requests=commands.move_requests,
        target=make_target(opened, topics, membership, tasks),
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        markers=coordinators.markers,
        verifier=coordinators.verifier,
        links=links,
        reach=make_reach(opened, members, links),
        internal=internal_server(settings.network, basis.memory.sizes),
        producer_ids=coordinators.producer_ids,
        fetch_sessions=FetchSessions(settings.fetch.sessions_max, settings.fetch.session_idle_ms, environment.random()),
        server=Server(settings.network, basis.memory.sizes, pipelined=PIPELINED),
        tls=tls.clients,
        internal_tls=tls.nodes,
        audit=AuditLog(asyncio.get_running_loop().time),
        acls=shared.acls,
        cluster_configs=shared.configs,
        broker_configs=broker_configs,
        group_configs=coordinators.group_configs,
        quota_table=quotas.table,
        quotas=quotas.clients,
        address_quotas=quotas.addresses,
        features=Features(shared.configs, info.node_id),
        scram=shared.scram,
        delegation_tokens=shared.tokens,
        telemetry=ClientMetrics(
            shared.configs, settings.telemetry, environment.now_ms, lambda: environment.new_uuid().bytes
        ),
        tracing=None if basis.tracer is None else basis.tracer.stats,
        log_levels=log_levels,
        tasks=tasks,
        failure=basis.failure,
        # The admin port exposes the metrics that clients push, so telemetry needs it.
        advertised_apis=advertised_apis(telemetry=settings.telemetry.enabled and settings.admin.enabled),
    )


def answer_requests(basis: Basis, opened: OpenStorage, node: Node) -> LocalRequests:
    """Let the node's ports answer requests once they listen. Returns the node's requests to itself."""
    local = LocalRequests(node, audited(HANDLERS))
    _answer_clients(basis, node)
    internal = InternalPort(
        node.internal,
        node.members,
        cluster=basis.settings.node.cluster,
        secret=opened.shared.secret,
        random_bytes=basis.environment.random_bytes,
        hear=node.reach.hear,
        serve=Dispatcher(node, spawn=node.tasks.spawn, handlers=internal_handlers(local)).dispatch,
    )
    node.tasks.spawn(internal.run())
    node.limit_connections()
    node.broker_configs.watch(node.limit_connections)
    return local


def _answer_clients(basis: Basis, node: Node) -> None:
    handlers = basis.environment.wrap_handlers(audited(HANDLERS if node.acls is None else guarded(HANDLERS)))
    if basis.tracer is not None:
        from anabranch.broker.api.handlers.traced import traced  # it loads OpenTelemetry, which may be missing

        handlers = traced(handlers, basis.tracer)
    metering = Metering(
        node.server,
        node.quotas,
        {key: handler.metered for key, handler in HANDLERS.items()},
        lambda spawn: Dispatcher(node, spawn=spawn, handlers=handlers).dispatch,
        spawn=node.tasks.spawn,
    )
    node.quotas.watch(node.cluster_configs, metering.update)
    node.address_quotas.watch(node.cluster_configs)
    node.server.connection_delay_s = node.address_quotas.delay_s
