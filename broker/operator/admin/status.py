"""Status of the node as plain values, for people and scripts. Monitoring reads `broker.operator.admin.metrics`."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from typing import Any

from anabranch.addresses import host_port
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.tls import Tls
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.registry import APIS
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.outages import CATALOG

CATALOG_TIMEOUT_S = 2
"""Limit of the status's query of the catalog: the rest of the status matters most while the catalog is away."""

PRINCIPALS_MAX = 20
"""Principals with the most connections that the status names."""
THROTTLED_MAX = 20
"""Clients that the status names, for each quota: those that were throttled for longest."""


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
                "id": uuid_text(topic.topic_id),
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
            "address": host_port(listener.host, node.server.ports[listener.name]),
            "advertised": host_port(announced.host, announced.port),
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
