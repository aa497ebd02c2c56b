"""The state of the node that is asked, in detail. Monitoring reads `broker.operator.admin.metrics`."""

from collections import Counter
from dataclasses import asdict, fields
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from anabranch.addresses import host_port
from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.node.net.server import Server
from anabranch.broker.operator.admin.api.compaction import CompactionWithLast, compaction_with_last
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model
from anabranch.broker.operator.admin.api.storage import ObjectCount, Wal, count_objects, store_calls, wal_state
from anabranch.native import native_part
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.registry import APIS
from anabranch.s3stream.maintain.manifest_keeper import ManifestStats
from anabranch.s3stream.outages import Outage

if TYPE_CHECKING:  # it needs an extra that the console works without
    from anabranch.broker.node.net.tls import Tls

PRINCIPALS_MAX: Final = 20
"""Principals with the most connections that the status names."""
THROTTLED_MAX: Final = 20
"""Clients that the status names, for each quota: those that were throttled for longest."""


class NodeIdentity(Model):
    """A node, and whether it can write."""

    id: int
    epoch: int
    cluster: str
    address: str
    data_dir: str
    native: str
    """Version of the native part in use, or why none is."""
    writable: bool
    obstacles: list[str]
    """Reasons for which it cannot write."""
    error: str | None
    """Error that has stopped its storage."""


class OpenPartition(Model):
    """A partition that the node leads."""

    start_offset: int
    committed_offset: int
    """End of what is in committed objects."""
    high_watermark: int
    error: str | None


class TopicState(Model):
    """A topic, as the node sees it."""

    id: str
    partitions: list[OpenPartition | None]
    """Null: the node does not lead it."""


class DamagedObject(Model):
    """Damage that a read has found."""

    store: str
    key: str
    object_id: int
    position: int | None
    """Null: the object as a whole."""
    expected: str
    found: str
    reason: str
    since_ms: int
    last_ms: int
    times: int
    partitions: list[str]
    """Partitions whose reads found it."""
    advice: str


class CleanedTopic(Model):
    """Bytes of a compacted topic, in the partitions examined since the node's start."""

    partitions: int
    clean_bytes: int
    dirty_bytes: int
    cleaned_ms: int
    """Time of the last cleaning; -1: none."""


class CompactionWithTopics(CompactionWithLast):
    """Compaction, with the topics that are compacted by key."""

    by_key: dict[str, CleanedTopic]


class RequestTimes(Model):
    """Requests of an API."""

    count: int
    p50_us: int
    p99_us: int


class ThrottledClient(Model):
    """A client's use of a quota."""

    user: str
    client_id: str
    limit: float
    used: float
    """Rate per second (of topics' changes: the credit that is left)."""
    throttles: int
    throttled_ms: int


class QuotaUse(Model):
    """Use of a quota."""

    clients: int
    throttled: list[ThrottledClient]


class ListenerState(Model):
    """A listener."""

    name: str
    protocol: str
    address: str
    advertised: str
    connections: int


class TlsState(Model):
    """A certificate that the node shows."""

    certificate: str
    """Its subject."""
    expires_ms: int
    reloads: int
    reload_failures: int


class NodeStatus(Model):
    """The state of a node."""

    node: NodeIdentity
    outages: list[Outage]
    topics: dict[str, TopicState]
    wal: Wal
    memory: dict[str, int | str]
    """Available memory, its source, and the sizes that it is divided into."""
    log_cache_bytes: int
    uncommitted_bytes: int
    block_cache_bytes: int
    objects: dict[str, ObjectCount] | None
    """By kind and state; null if the catalog has not answered."""
    damaged_objects: list[DamagedObject]
    manifest: ManifestStats
    store_calls: dict[str, int]
    storage: dict[str, int]
    """Counters of the storage since the node's start."""
    compaction: CompactionWithTopics
    requests: dict[str, RequestTimes]
    """By API."""
    quotas: dict[str, QuotaUse]
    connections: int
    listeners: list[ListenerState]
    principals: dict[str, int]
    """Those with the most connections."""
    tls: TlsState | None
    internal_tls: TlsState | None


class StatusEndpoints:
    """Endpoint of the status."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.endpoints = [Endpoint("GET", "/status", "The state of this node.", self._status, NodeStatus)]

    async def _status(self, _: Call) -> NodeStatus:
        return await node_status(self._node)


async def node_status(node: Node) -> NodeStatus:
    """Describe the node: identity, topics, log, memory, objects, store calls, requests."""
    serving, server, storage = node.serving, node.ports.clients, node.serving.storage
    objects = await count_objects(node)
    return NodeStatus(
        node=NodeIdentity(
            id=serving.node_id,
            epoch=serving.members.own.epoch,
            cluster=serving.settings.node.cluster,
            address=node.bootstrap,
            data_dir=str(serving.settings.node.data_dir.resolve()),
            native=native_part().description,
            writable=storage.writable,
            obstacles=list(storage.obstacles()),
            error=None if storage.error is None else str(storage.error),
        ),
        outages=list(storage.outages.current()),
        topics={
            topic.name: TopicState(
                id=uuid_text(topic.topic_id),
                partitions=[
                    None
                    if partition is None
                    else OpenPartition(
                        start_offset=partition.log_start_offset,
                        committed_offset=partition.stream.committed_offset,
                        high_watermark=partition.high_watermark,
                        error=None if partition.stream.error is None else str(partition.stream.error),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in serving.topics
        },
        wal=wal_state(node),
        memory=dict(node.memory.describe()),
        log_cache_bytes=storage.log_cache_bytes,
        uncommitted_bytes=storage.uncommitted_bytes,
        block_cache_bytes=storage.block_cache_bytes,
        objects=objects,
        damaged_objects=[DamagedObject(**damage.as_json()) for damage in storage.damaged.entries()],
        manifest=node.upkeep.manifests.stats,
        store_calls=store_calls(node),
        storage={
            each.name: value
            for each in fields(storage.stats)
            if isinstance(value := getattr(storage.stats, each.name), int)
        },
        compaction=CompactionWithTopics(**dict(compaction_with_last(node)), by_key=_compacted_by_key(node)),
        requests={
            APIS[key].name if key in APIS else str(key): RequestTimes(
                count=latency.count, p50_us=latency.quantile_us(0.5), p99_us=latency.quantile_us(0.99)
            )
            for key, latency in sorted(server.latency.items())
        },
        quotas=_quotas(node.ports.client_quotas),
        connections=len(server.connections),
        listeners=_listeners(serving, server),
        principals=dict(Counter(each.principal for each in server.connections).most_common(PRINCIPALS_MAX)),
        tls=None if node.ports.clients_tls is None else _tls(node.ports.clients_tls),
        internal_tls=None if node.ports.nodes_tls is None else _tls(node.ports.nodes_tls),
    )


def _compacted_by_key(node: Node) -> dict[str, CleanedTopic]:
    found = {}
    for topic in node.serving.topics:
        if topic.config.compacted:
            states = [node.upkeep.cleaning.states.get(stream.stream_id) for stream in topic.streams]
            needs = [state.need for state in states if state is not None]
            found[topic.name] = CleanedTopic(
                partitions=len(needs),
                clean_bytes=sum(each.clean_bytes for each in needs),
                dirty_bytes=sum(each.dirty_bytes for each in needs),
                cleaned_ms=max((each.cleaned_ms for each in needs), default=-1),
            )
    return found


def _quotas(quotas: ClientQuotas) -> dict[str, QuotaUse]:
    """Describe which clients are throttled most, by quota."""
    quotas.drop_idle()
    return {
        quota: QuotaUse(
            clients=len(table),
            throttled=[
                ThrottledClient(user=client.user, client_id=client.client_id, **asdict(used))
                for client, used in nlargest(
                    THROTTLED_MAX,
                    (each for each in quotas.describe(quota) if each[1].throttles),
                    key=lambda each: each[1].throttled_ms,
                )
            ],
        )
        for quota, table in quotas.tables.items()
        if table.limits
    }


def _listeners(serving: Serving, server: Server) -> list[ListenerState]:
    connections = Counter(each.listener for each in server.connections)
    return [
        ListenerState(
            name=listener.name,
            protocol=listener.protocol,
            address=host_port(listener.host, server.ports[listener.name]),
            advertised=host_port(announced.host, announced.port),
            connections=connections[listener.name],
        )
        for listener, announced in zip(serving.settings.listeners, serving.members.own.listeners, strict=True)
        if listener.name in server.ports
    ]


def _tls(tls: "Tls") -> TlsState:
    return TlsState(
        certificate=tls.files.subject,
        expires_ms=tls.files.expires_ms,
        reloads=tls.reloads,
        reload_failures=tls.reload_failures,
    )
