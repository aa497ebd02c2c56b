"""The session of a user, and the cluster with its nodes."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Final, Literal

from pydantic import Field

from anabranch.broker.api.handlers.leadership import NO_LEADER, leadership_of
from anabranch.broker.cluster.membership.overview import NodeState, state_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.broker.operator.admin.api.topics import is_internal
from anabranch.extras import is_installed
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.outages import Outage

VERSION: Final = version("anabranch")
CATALOG_TIMEOUT_S: Final = 2.0
GROUPS_TIMEOUT_S: Final = 2.0
"""Time for the number of groups: pages show with this answer which nodes are down, and must not wait for those."""
_STATES: Final[dict[NodeState, Literal["up", "down", "draining", "stopped"]]] = {
    NodeState.UP: "up",
    NodeState.DRAINING: "draining",
    NodeState.FAILED: "down",
    NodeState.LEFT: "stopped",
}


class Session(Model):
    """The user of a request, and the node that is asked."""

    principal: str
    role: Literal["reader", "operator"]
    authentication: bool
    may_read_records: bool
    has_connect: bool
    """True if the settings name Kafka Connect clusters."""
    has_schema_registry: bool
    """True if the node serves the schema registry."""
    has_tables: bool
    """True if the node has the packages that make tables of topics."""
    version: str
    cluster_id: str
    node_id: int


class ClusterNode(Model):
    """A registered node."""

    id: int
    state: Literal["up", "down", "draining", "stopped"]
    epoch: int
    host: str
    port: int
    rack: str
    leaders: int
    """Number of partitions that it leads."""
    is_self: Annotated[bool, Field(serialization_alias="self")]


class Cluster(Model):
    """The cluster, as the node that is asked sees it."""

    cluster_id: str
    node_id: int
    version: str
    now_ms: int
    nodes: list[ClusterNode]
    topics: int
    """Topics of users."""
    partitions: int
    """Partitions of these topics."""
    internal_topics: int
    """Topics that the nodes keep for groups, transactions and schemas."""
    internal_partitions: int
    leaderless: int
    groups: int
    writable: bool
    obstacles: list[str]
    outages: list[Outage]
    unreachable: list[int]


class ClusterEndpoints:
    """Endpoints of session and cluster."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        self.endpoints = [
            Endpoint("GET", "/session", "Who asks, and what they may do.", self._session, Session),
            Endpoint("GET", "/cluster", "The nodes of the cluster, and its state.", self._cluster, Cluster),
        ]

    async def _session(self, call: Call) -> Session:
        settings = self._serving.settings.admin
        return Session(
            principal=call.user.principal,
            role="operator" if call.may_operate else "reader",
            authentication=not settings.is_open,
            may_read_records=may_read_records(self._serving, call),
            has_connect=bool(settings.connect_clusters),
            has_schema_registry=self._serving.settings.schema_registry.enabled,
            has_tables=is_installed("tables"),
            version=VERSION,
            cluster_id=self._serving.settings.node.cluster,
            node_id=self._serving.node_id,
        )

    async def _cluster(self, call: Call) -> Cluster:
        serving = self._serving
        leaders = Counter(
            NO_LEADER if (leader := leadership_of(serving, topic, index).leader) is None else leader.node_id
            for topic in serving.topics
            for index in range(len(topic.info.partitions))
        )
        internal = [len(topic.info.partitions) for topic in serving.topics if is_internal(serving, topic)]
        groups, unreachable = 0, list[int]()
        if serving.topics.get(OFFSETS_TOPIC) is not None:
            answers, unreachable = await self._calls.call_each(
                self._calls.living(), lambda _: ListGroupsRequest(), call.user, GROUPS_TIMEOUT_S
            )
            groups = sum(len(answer.groups) for answer in answers.values())
        storage = serving.storage
        return Cluster(
            cluster_id=serving.settings.node.cluster,
            node_id=serving.node_id,
            version=VERSION,
            now_ms=serving.now_ms(),
            nodes=await self._nodes(leaders),
            topics=len(serving.topics) - len(internal),
            partitions=leaders.total() - sum(internal),
            internal_topics=len(internal),
            internal_partitions=sum(internal),
            leaderless=leaders[NO_LEADER],
            groups=groups,
            writable=storage.writable,
            obstacles=[str(each) for each in storage.obstacles()],
            outages=list(storage.outages.current()),
            unreachable=unreachable,
        )

    async def _nodes(self, leaders: Mapping[int, int]) -> list[ClusterNode]:
        """Describe the registered nodes; those that live, as far as this node knows, while the catalog is away."""
        own, catalog, members = self._serving.node_id, self._serving.catalog, self._serving.members
        living = {member.node_id: member for member in members.living()}
        try:
            async with asyncio.timeout(CATALOG_TIMEOUT_S):
                nodes, logs = await catalog.list_nodes(), await catalog.list_all_wals()
        except (StorageError, TimeoutError):
            return [
                ClusterNode(
                    id=member.node_id,
                    state="draining" if member.node_id in members.draining else "up",
                    epoch=member.epoch,
                    host=member.listeners[0].host,
                    port=member.listeners[0].port,
                    rack=member.rack,
                    leaders=leaders[member.node_id],
                    is_self=member.node_id == own,
                )
                for member in living.values()
            ]
        logs = sorted(logs, key=lambda log: (log.node_epoch, log.wal_id))
        found = []
        for each in nodes:
            its_logs = [log for log in logs if log.node_id == each.node_id]
            found.append(
                ClusterNode(
                    id=each.node_id,
                    state=_STATES[state_of(each, its_logs, lives=each.node_id in living)],
                    epoch=each.epoch,
                    host=each.host,
                    port=each.port,
                    rack=each.rack,
                    leaders=leaders[each.node_id],
                    is_self=each.node_id == own,
                )
            )
        return found


def may_read_records(serving: Serving, call: Call) -> bool:
    """Return whether the user of a request may see what records contain."""
    return {"nobody": False, "operators": call.may_operate, "readers": True}[serving.settings.admin.records]
