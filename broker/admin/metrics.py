"""Metrics of the node in Prometheus' text format, and its status as plain values.

Nothing is collected here. Every number is a counter of some component, read at the time of the request.
"""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Any

from broker.net.tls import Tls
from broker.node import Node
from broker.settings.listeners import bracketed
from protocol.registry import APIS
from s3stream.errors import CatalogError
from s3stream.outages import CATALOG

Sample = tuple[str, dict[str, str], float]
"""Name without prefix, labels, value."""
WAL_GAUGES = frozenset(
    {"in_flight", "queued_bytes", "used_bytes", "capacity_bytes", "unwritten_bytes", "write_position"}
)
"""Numbers of the log that are gauges; the others are counters."""

CATALOG_TIMEOUT_S = 2
"""Limit of the status's query of the catalog: the rest of the status matters most while the catalog is away."""

PRINCIPALS_MAX = 20
"""Principals with the most connections that the status names."""
QUOTA_CLIENTS_MAX = 100
"""Clients with a quota that the metrics name, for each quota: those that have used it last."""
THROTTLED_MAX = 20
"""Clients that the status names, for each quota: those that were throttled for longest."""


def prometheus_text(node: Node) -> str:
    """Return all samples, grouped by name. Names that end in `_total` are counters, the others gauges."""
    families: dict[str, list[str]] = {}
    for name, labels, value in _samples(node):
        inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
        shown = f"{int(value)}" if value == int(value) else f"{value:.9g}"
        sample = f"anabranch_{name}{{{inside}}} {shown}" if inside else f"anabranch_{name} {shown}"
        families.setdefault(name, []).append(sample)
    lines: list[str] = []
    for name, samples in families.items():
        lines += (f"# TYPE anabranch_{name} {'counter' if name.endswith('_total') else 'gauge'}", *samples)
    return "\n".join(lines) + "\n"


def _samples(node: Node) -> Iterator[Sample]:
    for key, count in sorted(node.requests.items()):
        yield "requests_total", {"api": _api_name(key)}, count
    for key, latency in sorted(node.server.latency.items()):
        yield "request_seconds_total", {"api": _api_name(key)}, latency.seconds
    for key, latency in sorted(node.server.latency.items()):
        for quantile in (0.5, 0.99):
            labels = {"api": _api_name(key), "quantile": str(quantile)}
            yield "request_seconds", labels, latency.quantile_us(quantile) / 1e6
    yield "request_failures_total", {}, node.request_failures + node.damaged_requests
    yield "connections", {}, len(node.server.connections)
    yield from _tls_samples(node)
    yield "request_bytes_held", {}, node.server.bytes_held
    yield "requests_waiting_for_memory", {}, node.server.budget.waiting
    yield "network_bytes_in_total", {}, node.server.bytes_in
    yield "slabs_mapped_total", {}, node.server.slabs.slabs_mapped
    yield "fetch_sessions", {}, len(node.fetch_sessions)
    yield "topics", {}, len(node.topics)
    yield "partitions", {}, node.topics.partition_count
    yield from _storage_samples(node)
    wal = node.wal.snapshot()
    for name, value in _numbers(wal):
        yield f"wal_{name}" if name in WAL_GAUGES else f"wal_{name}_total", {}, value
    for quantile in (0.5, 0.99):
        yield "wal_append_seconds", {"quantile": str(quantile)}, wal.latency_us(quantile) / 1e6
    for area, stats in (("network", node.server.stats), ("storage", node.storage.stats)):
        for name, value in _numbers(stats):
            yield f"{area}_{name}_total", {}, value
    yield from _internal_samples(node)
    yield from _client_samples(node)
    yield from _quota_samples(node)
    for name, value in _numbers(node.compaction.stats):
        yield f"compaction_{name}_total", {}, value
    needs = [state.need for state in node.cleaning.states.values()]
    yield "compaction_dirty_bytes", {}, sum(each.dirty_bytes for each in needs)
    yield "compaction_clean_bytes", {}, sum(each.clean_bytes for each in needs)
    manifests = node.manifests.stats
    yield "manifests_written_total", {}, manifests.writes
    yield "manifest_failures_total", {}, manifests.failures
    yield "manifest_current", {}, manifests.error is None
    for store in node.stores.values():
        for name, value in _numbers(store.calls):
            yield "store_calls_total", {"store": store.name, "kind": name}, value


def _tls_samples(node: Node) -> Iterator[Sample]:
    """Samples of TLS: of the listeners and between nodes, where it is used."""
    if node.tls is not None:
        yield "tls_handshakes", {}, node.server.handshakes
        yield "tls_certificate_expiry_seconds", {}, node.tls.files.expires_ms // 1000
        yield "tls_reloads_total", {}, node.tls.reloads
        yield "tls_reload_failures_total", {}, node.tls.reload_failures
    if node.internal_tls is not None:
        yield "internal_tls_certificate_expiry_seconds", {}, node.internal_tls.files.expires_ms // 1000
        yield "internal_tls_reload_failures_total", {}, node.internal_tls.reload_failures


def _storage_samples(node: Node) -> Iterator[Sample]:
    """Samples of the storage: its contents and its outages."""
    storage = node.storage
    yield "writable", {}, storage.writable
    for outage in storage.outages.current():
        yield "outage_since_seconds", {"where": outage.where}, outage.since_ms // 1000
    yield "stopped_streams", {}, len(storage.stopped_streams)
    yield "damaged_objects", {}, len(storage.damaged)
    yield "damaged_reads_total", {}, storage.damaged.reads
    yield "log_cache_bytes", {}, storage.log_cache_bytes
    yield "uncommitted_bytes", {}, storage.uncommitted_bytes
    yield "block_cache_bytes", {}, storage.block_cache_bytes


def _internal_samples(node: Node) -> Iterator[Sample]:
    """Samples of the internal port, if there is one."""
    if node.internal is not None:
        yield "internal_connections", {}, len(node.internal.connections)
        for name, value in _numbers(node.internal.stats):
            yield f"internal_{name}_total", {}, value


def _client_samples(node: Node) -> Iterator[Sample]:
    """Samples of the metrics that clients push (KIP-714)."""
    telemetry = node.telemetry
    yield "telemetry_clients", {}, len(telemetry)
    yield "telemetry_series", {}, len(telemetry.series)
    yield "telemetry_throttled_total", {}, telemetry.throttled
    for name, value in _numbers(telemetry.series.stats):
        yield f"telemetry_{name}_total", {}, value
    yield from telemetry.series.samples(node.now_ms())


def _quota_samples(node: Node) -> Iterator[Sample]:
    """Samples of what clients with quotas have used, for a limited number of them."""
    quotas = node.quotas
    quotas.drop_idle()
    for quota, table in quotas.tables.items():
        if table.limits or len(table):
            yield "quota_clients", {"quota": quota}, len(table)
        for client, used in islice(reversed(quotas.describe(quota)), QUOTA_CLIENTS_MAX):
            labels = {"quota": quota, "user": _escaped(client.user), "client_id": _escaped(client.client_id)}
            yield "quota_limit", labels, used.limit
            yield "quota_used", labels, used.used
            yield "quota_throttles_total", labels, used.throttles
            yield "quota_throttle_seconds_total", labels, used.throttled_ms / 1000


def _escaped(text: str) -> str:
    """Return a text that a client has chosen as the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _api_name(key: int) -> str:
    return APIS[key].name if key in APIS else str(key)


def _numbers(stats: Any) -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(stats):
        value = getattr(stats, field.name)
        if isinstance(value, int):
            yield field.name, value


def _store_calls(node: Node) -> dict[str, int]:
    """Sum the calls to all stores by kind, including kinds without calls."""
    calls: Counter[str] = Counter()
    for store in node.stores.values():
        calls.update(dict(_numbers(store.calls)))  # the sum of counters would leave out what is zero
    return dict(calls)


async def _count_objects(node: Node) -> dict[str, dict[str, int]] | None:
    """Count objects by kind and state; return None, and note an outage, when the catalog does not answer."""
    try:
        async with asyncio.timeout(CATALOG_TIMEOUT_S):
            found = await node.catalog.count_objects()
    except CatalogError as error:
        node.storage.outages.note(CATALOG, error)
        return None
    except TimeoutError:
        if all(outage.where != CATALOG for outage in node.storage.outages.current()):  # noted with a better reason
            node.storage.outages.note(CATALOG, TimeoutError(f"no answer within {CATALOG_TIMEOUT_S} s"))
        return None
    return {kind: {"count": count, "bytes": size} for kind, (count, size) in found.items()}


def _compacted_by_key(node: Node) -> dict[str, Any]:
    """Cleaned and dirty bytes of compacted topics, for the partitions examined since the start."""
    found: dict[str, Any] = {}
    for topic in node.topics:
        if topic.config.compacted:
            states = [node.cleaning.states.get(stream.stream_id) for stream in topic.streams]
            needs = [state.need for state in states if state is not None]
            found[topic.name] = {
                "partitions": len(needs),
                "clean_bytes": sum(each.clean_bytes for each in needs),
                "dirty_bytes": sum(each.dirty_bytes for each in needs),
                "cleaned_ms": max((each.cleaned_ms for each in needs), default=-1),
            }
    return found


async def status(node: Node) -> dict[str, Any]:
    """Return the state of the node: identity, topics, log, memory, objects, store calls, requests."""
    storage, wal = node.storage, node.wal
    objects = await _count_objects(node)
    return {
        "node": {
            "id": node.node_id,
            "epoch": node.node_epoch,
            "cluster": node.cluster_id,
            "address": node.bootstrap,
            "data_dir": str(node.settings.node.data_dir.resolve()),
            "writable": storage.writable,
            "obstacles": storage.obstacles(),
            "error": None if storage.error is None else str(storage.error),
        },
        "outages": [dataclasses.asdict(outage) for outage in storage.outages.current()],
        "topics": {
            topic.name: {
                "id": topic.topic_id.hex(),
                "partitions": [
                    None
                    if partition is None
                    else {
                        "start_offset": partition.log_start_offset,
                        "committed_offset": partition.stream.committed_offset,
                        "high_watermark": partition.high_watermark,
                        "error": None if partition.stream.error is None else str(partition.stream.error),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in node.topics
        },
        "wal": {
            "description": wal.description,
            "used_bytes": wal.used_bytes,
            "capacity_bytes": wal.capacity_bytes,
            "append_latency_p50_us": wal.stats.latency_us(0.5),
            "append_latency_p99_us": wal.stats.latency_us(0.99),
        },
        "memory": node.memory.describe(),
        "log_cache_bytes": storage.log_cache_bytes,
        "uncommitted_bytes": storage.uncommitted_bytes,
        "block_cache_bytes": storage.block_cache_bytes,
        "objects": objects,
        "damaged_objects": [damage.as_json() for damage in storage.damaged.entries()],
        "manifest": dataclasses.asdict(node.manifests.stats),
        "store_calls": _store_calls(node),
        "storage": dict(_numbers(storage.stats)),
        "compaction": {
            "running": node.compaction.is_running,
            "progress": None if node.compaction.progress is None else node.compaction.progress._asdict(),
            "last": None if node.compaction.last is None else node.compaction.last.as_json(),
            "by_key": _compacted_by_key(node),
        },
        "requests": {
            _api_name(key): {
                "count": latency.count,
                "p50_us": latency.quantile_us(0.5),
                "p99_us": latency.quantile_us(0.99),
            }
            for key, latency in sorted(node.server.latency.items())
        },
        "quotas": _quotas(node),
        "connections": len(node.server.connections),
        "listeners": _listeners(node),
        "principals": dict(Counter(each.principal for each in node.server.connections).most_common(PRINCIPALS_MAX)),
        "tls": None if node.tls is None else _tls(node.tls),
        "internal_tls": None if node.internal_tls is None else _tls(node.internal_tls),
    }


def _quotas(node: Node) -> dict[str, Any]:
    """Describe which clients are throttled most, by quota."""
    node.quotas.drop_idle()
    return {
        quota: {
            "clients": len(table),
            "throttled": [
                {"user": client.user, "client_id": client.client_id, **dataclasses.asdict(used)}
                for client, used in nlargest(
                    THROTTLED_MAX,
                    (each for each in node.quotas.describe(quota) if each[1].throttles),
                    key=lambda each: each[1].throttled_ms,
                )
            ],
        }
        for quota, table in node.quotas.tables.items()
        if table.limits
    }


def _listeners(node: Node) -> list[dict[str, Any]]:
    connections = Counter(each.listener for each in node.server.connections)
    return [
        {
            "name": listener.name,
            "protocol": listener.protocol,
            "address": f"{bracketed(listener.host)}:{node.server.ports[listener.name]}",
            "advertised": f"{bracketed(announced.host)}:{announced.port}",
            "connections": connections[listener.name],
        }
        for listener, announced in zip(node.settings.listeners, node.members.own.listeners, strict=True)
        if listener.name in node.server.ports
    ]


def _tls(tls: Tls) -> dict[str, Any]:
    return {
        "certificate": tls.files.subject,
        "expires_ms": tls.files.expires_ms,
        "reloads": tls.reloads,
        "reload_failures": tls.reload_failures,
    }
