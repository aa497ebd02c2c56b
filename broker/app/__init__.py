"""The composition root: creates the components of a node, and starts and stops them in order.

Clocks, random numbers and the ways to disk, catalog, stores and network come from an `Environment`.

Start: lock the data directory; reserve the ports; check that log, catalog and object stores belong together and to this
node; wait until no process holds the node's id; register, which fences the previous holder; recover the log; record in
the catalog that the log is in use; open the streams; load groups and transactions; listen.

Stop: move partitions to other nodes, if there are any; refuse new connections; answer requests under way, of clients
and then of other nodes; upload; trim; close the log; end the lease.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from anabranch.broker.api.handlers.authentication import make_gates
from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.api.releases import served_handlers
from anabranch.broker.app.kafka import make_topics
from anabranch.broker.app.node import answer_requests, make_node
from anabranch.broker.app.ports import NodeTls, listen_to_clients, listen_to_nodes, open_tls
from anabranch.broker.app.storage import Basis, open_storage
from anabranch.broker.cluster.membership.auto_id import choose_node
from anabranch.broker.cluster.membership.environment import DirectoryLock, Environment
from anabranch.broker.cluster.membership.join import announced_listeners, internal_address
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.node import Node, NodeFailure
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.sasl.delegation_tokens import read_key
from anabranch.broker.kafka.sasl.mechanisms import Mechanisms, SaslFiles, open_files
from anabranch.broker.node.logging.levels import LogLevels
from anabranch.broker.node.net.ports import ReservedPorts
from anabranch.broker.node.peers.members import Members, member_of
from anabranch.broker.node.settings.clock import CautiousClock
from anabranch.broker.node.settings.data_dir import DataDirError, DataDirInUse
from anabranch.broker.node.settings.memory import memory_for, with_sizes
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.tracing.start import open_tracer
from anabranch.broker.operator.admin.access import AdminAccess, open_access
from anabranch.broker.operator.admin.on_demand import AdminOnDemand
from anabranch.extras import MissingExtra, install_command, is_installed, needed
from anabranch.native import NativeError
from anabranch.s3stream.errors import NodeFenced, NodeInUse, StorageError
from anabranch.wal.interface import WalError

if TYPE_CHECKING:
    from anabranch.broker.operator.admin.http import AdminServer

    Admin = AdminServer | AdminOnDemand


class StartError(Exception):
    """The node cannot start. The text is the one line to show."""


@asynccontextmanager
async def run_node(
    settings: Settings, log_levels: LogLevels | None = None, environment: Environment | None = None
) -> AsyncIterator[Node]:
    """Start a node, serve while the body runs, then stop cleanly: requests answered, data uploaded, WAL trimmed.

    Raises StartError. When the body raises, the node stops as in a crash: no acked record is lost, nothing is uploaded.
    """
    async with AsyncExitStack() as stack:
        try:
            node, admin = await _start_as_some_node(
                settings, stack, log_levels or LogLevels(), environment or Environment()
            )
        except (DataDirError, MissingExtra, NativeError, StorageError, WalError, OSError) as error:
            raise StartError(str(error)) from error
        yield node
        await node.leave_partitions()
        await node.stop_accepting()
        if admin is not None:
            await admin.close()
        await node.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entrances:
    """Ports that are reserved, and the secrets and certificates that let clients, nodes and operators in."""

    ports: ReservedPorts
    tls: NodeTls
    sasl: SaslFiles
    access: AdminAccess | None
    """None: there is no admin port."""


async def _start_as_some_node(
    settings: Settings, stack: AsyncExitStack, log_levels: LogLevels, environment: Environment
) -> "tuple[Node, Admin | None]":
    """Start the node of the settings. If they leave its id open, another one is chosen as long as one is taken."""
    if not settings.has_auto_id:
        return await _start(settings, stack, log_levels, environment)
    taken: set[int] = set()
    while True:
        chosen = await choose_node(settings, environment, taken)
        node_id = chosen.node.node_id
        try:
            async with AsyncExitStack() as attempt:
                started = await _start(chosen, attempt, log_levels, environment)
                stack.push_async_exit(attempt.pop_all())
                return started
        except (DataDirInUse, NodeFenced, NodeInUse) as error:
            structlog.get_logger("node").info("another id is chosen", taken=node_id, reason=str(error))
            taken.add(node_id)


async def _start(
    settings: Settings, stack: AsyncExitStack, log_levels: LogLevels, environment: Environment
) -> "tuple[Node, Admin | None]":
    """Start all components, and push onto `stack` what stops them again."""
    began = time.perf_counter()
    basis, entrances = _prepare(settings, stack, environment)
    node, admin = await _compose(basis, entrances, log_levels)
    if admin is not None and entrances.ports.admin is not None and entrances.access is not None:
        await admin.start(entrances.ports.admin, entrances.access)
        node.ports.admin_address, node.ports.console_url = admin.address, admin.console_url
    await _listen(node, basis.settings, entrances)
    # No await from here on: a caller that reads "serving" in the log can stop the node cleanly at once.
    node.log_serving(time.perf_counter() - began)
    return node, admin


def _prepare(settings: Settings, stack: AsyncExitStack, environment: Environment) -> tuple[Basis, _Entrances]:
    """Take the data directory and the ports, and read secrets and certificates."""
    now_ms = environment.now_ms
    cautious = CautiousClock(now_ms, environment.steady_ms)
    memory = memory_for(settings)
    settings = with_sizes(settings, memory.sizes)
    lock = environment.lock_directory(settings.node.data_dir)
    stack.push(partial(_release, lock))
    with _unregistered(lock):
        ports = environment.reserve_ports(settings, stack)
        tls = open_tls(settings, now_ms)
        sasl = open_files(settings.sasl, environment.random_bytes)
        token_key = read_key(settings.delegation_token)
        access = None
        if ports.admin is not None:
            if not (settings.admin.on_demand and is_installed("console")):
                _admin_server()  # a missing extra is reported before anything is created
            access = open_access(settings, ports.admin, now_ms)
        elif settings.admin.enabled is None:
            structlog.get_logger("node").info(
                f"there is no admin port: {install_command('console')}, or set admin.enabled to false"
            )
    basis = Basis(
        environment=environment,
        settings=settings,
        memory=memory,
        cautious=cautious,
        failure=NodeFailure(),
        tracer=open_tracer(settings, stack, environment.random().random, environment.now_ns),
        stack=stack,
        lock_id=lock.lock_id,
        token_key=token_key,
    )
    return basis, _Entrances(ports=ports, tls=tls, sasl=sasl, access=access)


def _release(lock: DirectoryLock, _kind: object, error: BaseException | None, _trace: object) -> None:
    """Release the data directory; remove it if it is new, and another process has the node's id."""
    if isinstance(error, NodeInUse | NodeFenced):
        lock.release_unused()
    lock.release()


@contextmanager
def _unregistered(lock: DirectoryLock) -> Iterator[None]:
    """Do what comes before the id of the lock is in the catalog. If it fails, a new data directory is removed."""
    try:
        yield
    except BaseException:
        lock.release_unused()
        raise


async def _compose(basis: Basis, entrances: _Entrances, log_levels: LogLevels) -> "tuple[Node, Admin | None]":
    """Register and recover the node, build its components, and start its background work."""
    settings, environment, stack = basis.settings, basis.environment, basis.stack
    opened = await open_storage(
        basis,
        listeners=announced_listeners(settings, [int(bound.getsockname()[1]) for bound in entrances.ports.clients]),
        internal=internal_address(settings, entrances.ports.internal),
    )
    members = Members(member_of(opened.info))
    broker_configs = BrokerConfigs(opened.shared.configs, settings, opened.info.node_id)
    topics = make_topics(basis, opened, members, broker_configs)
    existing_topics = await topics.load()
    tasks = await stack.enter_async_context(NodeTasks())
    broker_configs.watch(topics.apply_defaults)
    node = make_node(
        basis,
        opened,
        members,
        topics,
        broker_configs=broker_configs,
        log_levels=log_levels,
        tls=entrances.tls,
        admin_port=0 if entrances.ports.admin is None else entrances.ports.admin.getsockname()[1],
        tasks=tasks,
    )
    local = answer_requests(basis, opened, node)
    mechanisms = Mechanisms(
        opened.shared.scram, opened.shared.tokens, entrances.sasl, environment.random_bytes, environment.now_ms
    )
    serving, clients = node.serving, node.ports.clients
    handlers = served_handlers(settings.compatibility.kafka)
    clients.gates.update(make_gates(serving, handlers, clients, mechanisms.begin, node.tasks.spawn))
    stack.push_async_callback(node.drop_clients)
    stack.push_async_callback(node.upkeep.tables.close)
    admin: Admin | None = None
    if entrances.access is not None:
        admin = _make_admin(node, local, environment)
        stack.push_async_callback(admin.close)
    serving.groups.start(existing_topics)
    serving.transactions.start()
    serving.share_states.start()
    await node.start_background_work()
    return node, admin


def _make_admin(node: Node, local: LocalRequests, environment: Environment) -> "Admin":
    """Return the server of the admin port, or what loads it when it is wanted."""
    if node.serving.settings.admin.on_demand:
        return AdminOnDemand(node, lambda: _admin_server()(node, local, environment.random_bytes))
    return _admin_server()(node, local, environment.random_bytes, environment.siblings)


def _admin_server() -> "type[AdminServer]":
    """Return the class of the admin port's server. Raises MissingExtra."""
    with needed("setting admin.enabled"):
        from anabranch.broker.operator.admin.http import AdminServer
    return AdminServer


async def _listen(node: Node, settings: Settings, entrances: _Entrances) -> None:
    """Accept connections: of other nodes first, of clients once it is known which nodes live."""
    await listen_to_nodes(node.ports, settings, entrances.ports.internal, node.tasks)
    await node.serving.membership.learn_who_lives()
    entrances.sasl.keep_current(node.tasks.spawn)
    await listen_to_clients(node.ports, settings, entrances.ports, node.tasks)
