"""Metrics of the node itself and of its clients: requests, connections, TLS, quotas, and metrics that clients push."""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from prometheus_client import Metric

from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.ports import Ports
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.clients import ClientQuotas
from anabranch.broker.node.net.server import NetworkStats
from anabranch.broker.node.tracing.stats import TracingStats
from anabranch.broker.operator.admin.metrics.definitions import (
    Definition,
    counter,
    definitions_in,
    gauge,
    histogram,
    of_stats,
)
from anabranch.protocol.registry import APIS

QUOTA_CLIENTS_MAX: Final = 100
"""Clients with a quota that the metrics name, for each quota: those that have used it last."""
VERSION: Final = version("anabranch")
CLIENT_HELP: Final = "Pushed by clients (KIP-714)."

INFO = gauge("anabranch_node_info", "Always 1; the labels say which node this is.", "cluster", "node_id", "version")
EPOCH = gauge("anabranch_node_epoch", "Epoch of the node in the catalog. It grows with each start.")
STOPPING = gauge("anabranch_node_stopping", "1 while the node stops.")

REQUESTS = counter("anabranch_requests_total", "Requests received, by API.", "api")
REQUEST_SECONDS = histogram(
    "anabranch_request_seconds",
    "Time of requests from the last byte received to the response, with the wait of a Fetch, by API.",
    "api",
)
REQUEST_FAILURES = counter(
    "anabranch_request_failures_total", "Requests that failed because of a bug, or of a damaged object."
)
CONNECTIONS = gauge("anabranch_connections", "Connections of clients.")
HELD_BYTES = gauge("anabranch_request_held_bytes", "Memory reserved for requests in progress.")
WAITING = gauge("anabranch_requests_waiting_for_memory", "Requests that wait for memory before they are read.")
RECEIVED_BYTES = counter("anabranch_network_received_bytes_total", "Bytes received from clients.")
CLIENT_RECEIVED_BYTES = counter(
    "anabranch_client_received_bytes_total",
    "Bytes of record batches received, by the rack of clients: `client.rack`, or `rack=ID` in the client id. Empty: "
    "unknown.",
    "rack",
)
CLIENT_SENT_BYTES = counter(
    "anabranch_client_sent_bytes_total", "Bytes of record batches sent to consumers, by their rack.", "rack"
)
PEER_BYTES = counter(
    "anabranch_internal_exchanged_bytes_total",
    "Bytes of requests to another node, and of its responses, by that node's id.",
    "peer",
)
SLABS = counter("anabranch_slabs_mapped_total", "Receive buffers mapped, which were not in the pool.")
FETCH_SESSIONS = gauge("anabranch_fetch_sessions", "Fetch sessions of clients.")


def _network(prefix: str, where: str) -> Mapping[str, Definition]:
    """Return the table of `NetworkStats` for one port."""

    def count(name: str, text: str) -> Definition:
        return counter(f"anabranch_{prefix}_{name}_total", f"{where}: {text}.")

    return {
        "accepted": count("accepted", "connections accepted"),
        "refused_limit": count("refused_limit", "connections refused by a limit"),
        "throttled": count("throttled", "connections held and closed because of a quota of their address"),
        "closed_idle": count("closed_idle", "connections closed because they were idle"),
        "closed_bad_input": count("closed_bad_input", "connections closed for invalid input"),
        "failed_handshakes": count("failed_handshakes", "TLS handshakes that failed"),
        "authenticated": count("authenticated", "authentications by SASL that succeeded"),
        "failed_authentications": count("failed_authentications", "authentications by SASL that failed"),
        "expired_sessions": count("expired_sessions", "connections closed because SASL was not repeated in time"),
        "closed_stalled": count("closed_stalled", "connections closed because they stalled while others waited"),
    }


TABLE_REQUESTS = counter(
    "anabranch_table_requests_total", "Requests of engines to the catalog of tables, by what they asked for.", "request"
)

NETWORK = _network("network", "Listeners")
INTERNAL_CONNECTIONS = gauge("anabranch_internal_connections", "Connections of other nodes to the internal port.")
INTERNAL = _network("internal", "Internal port")

HANDSHAKES = gauge("anabranch_tls_handshakes", "TLS handshakes under way.")
EXPIRY = gauge("anabranch_tls_certificate_expiry_timestamp_seconds", "When the certificate of the listeners expires.")
RELOADS = counter("anabranch_tls_reloads_total", "Times that changed TLS files were taken into use.")
RELOAD_FAILURES = counter(
    "anabranch_tls_reload_failures_total", "Times that changed TLS files could not be used, so that the old ones stay."
)
INTERNAL_EXPIRY = gauge(
    "anabranch_internal_tls_certificate_expiry_timestamp_seconds",
    "When the certificate that this node shows to other nodes expires.",
)
INTERNAL_RELOAD_FAILURES = counter(
    "anabranch_internal_tls_reload_failures_total", "The same failures of the files for TLS between nodes."
)

QUOTA_CLIENTS = gauge("anabranch_quota_clients", "Clients whose use of a quota is measured.", "quota")
QUOTA = ("quota", "user", "client_id")
QUOTA_LIMIT = gauge("anabranch_quota_limit", "Limit of a client: bytes, per cent or changes a second.", *QUOTA)
QUOTA_USED = gauge("anabranch_quota_used", "Rate of a client; for changes of topics, the credit that is left.", *QUOTA)
QUOTA_THROTTLES = counter("anabranch_quota_throttles_total", "Answers with a throttle time.", *QUOTA)
QUOTA_SECONDS = counter("anabranch_quota_throttle_seconds_total", "Sum of these throttle times.", *QUOTA)

TELEMETRY_CLIENTS = gauge("anabranch_telemetry_clients", "Clients that have asked for their subscription (KIP-714).")
TELEMETRY_SERIES = gauge("anabranch_telemetry_series", "Series pushed by clients that are kept.")
TELEMETRY_THROTTLED = counter("anabranch_telemetry_throttled_total", "Requests of such clients that came too early.")
TELEMETRY: Mapping[str, Definition] = {
    "pushes": counter("anabranch_telemetry_pushes_total", "Pushes of metrics by clients."),
    "points": counter("anabranch_telemetry_points_total", "Points of these pushes that were kept."),
    "dropped_points": counter("anabranch_telemetry_dropped_points_total", "Points that were dropped."),
}

TRACING: Mapping[str, Definition] = {
    "spans": counter("anabranch_tracing_spans_total", "Spans of traces that have ended."),
    "overflowed": counter("anabranch_tracing_overflowed_spans_total", "Spans dropped because their queue was full."),
    "delivered": counter("anabranch_tracing_delivered_spans_total", "Spans that the collector has accepted."),
    "undelivered": counter(
        "anabranch_tracing_undelivered_spans_total", "Spans dropped because the collector did not accept them."
    ),
}

DEFINITIONS = definitions_in(globals())
OF_STATS = ((NETWORK, NetworkStats()), (TRACING, TracingStats()))
"""Tables of fields, with an example of the described object."""


def collect(node: Node) -> Iterator[Metric]:
    """Yield the metrics of this area."""
    serving, server, internal = node.serving, node.ports.clients, node.ports.nodes
    yield INFO.family([((serving.settings.node.cluster, str(serving.node_id), VERSION), 1)])
    yield EPOCH.single(serving.members.own.epoch)
    yield STOPPING.single(node.stopping)
    yield REQUESTS.family([((_api(key),), count) for key, count in sorted(serving.requests.items())])
    yield TABLE_REQUESTS.family([((name,), count) for name, count in sorted(serving.table_requests.items())])
    yield REQUEST_SECONDS.buckets(
        [((_api(key),), each.buckets, each.seconds) for key, each in sorted(server.latency.items())]
    )
    yield REQUEST_FAILURES.single(serving.request_failures + serving.damaged_requests)
    yield CONNECTIONS.single(len(server.connections))
    yield HELD_BYTES.single(server.bytes_held)
    yield WAITING.single(server.budget.waiting)
    yield RECEIVED_BYTES.single(server.bytes_in)
    racks = list(server.traffic.racks.items())
    yield CLIENT_RECEIVED_BYTES.family([((rack,), each.received_bytes) for rack, each in racks])
    yield CLIENT_SENT_BYTES.family([((rack,), each.sent_bytes) for rack, each in racks])
    yield PEER_BYTES.family([((str(key),), size) for key, size in sorted(serving.links.exchanged.items())])
    yield SLABS.single(server.slabs.slabs_mapped)
    yield FETCH_SESSIONS.single(len(serving.fetch_sessions))
    yield from of_stats(NETWORK, server.stats)
    yield INTERNAL_CONNECTIONS.single(len(internal.connections))
    yield from of_stats(INTERNAL, internal.stats)
    yield from _tls(node.ports)
    yield from _quotas(node.ports.client_quotas)
    yield from _telemetry(serving)
    if node.tracing is not None:
        yield from of_stats(TRACING, node.tracing)


def _api(key: int) -> str:
    return APIS[key].name if key in APIS else str(key)


def _tls(ports: Ports) -> Iterator[Metric]:
    """Yield the metrics of TLS: of the listeners and between nodes, where it is used."""
    if ports.clients_tls is not None:
        yield HANDSHAKES.single(ports.clients.handshakes)
        yield EXPIRY.single(ports.clients_tls.files.expires_ms // 1000)
        yield RELOADS.single(ports.clients_tls.reloads)
        yield RELOAD_FAILURES.single(ports.clients_tls.reload_failures)
    if ports.nodes_tls is not None:
        yield INTERNAL_EXPIRY.single(ports.nodes_tls.files.expires_ms // 1000)
        yield INTERNAL_RELOAD_FAILURES.single(ports.nodes_tls.reload_failures)


def _quotas(quotas: ClientQuotas) -> Iterator[Metric]:
    """Yield what clients with quotas have used, for a limited number of them."""
    quotas.drop_idle()
    yield QUOTA_CLIENTS.family(
        [((quota,), len(table)) for quota, table in quotas.tables.items() if table.limits or len(table)]
    )
    found = [
        ((quota, client.user, client.client_id), used)
        for quota in quotas.tables
        for client, used in islice(reversed(quotas.describe(quota)), QUOTA_CLIENTS_MAX)
    ]
    yield QUOTA_LIMIT.family([(labels, used.limit) for labels, used in found])
    yield QUOTA_USED.family([(labels, used.used) for labels, used in found])
    yield QUOTA_THROTTLES.family([(labels, used.throttles) for labels, used in found])
    yield QUOTA_SECONDS.family([(labels, used.throttled_ms / 1000) for labels, used in found])


def _telemetry(serving: Serving) -> Iterator[Metric]:
    """Yield the metrics that clients push. They have no type: a client's claims about its names are not trusted."""
    telemetry = serving.telemetry
    yield TELEMETRY_CLIENTS.single(len(telemetry))
    yield TELEMETRY_SERIES.single(len(telemetry.series))
    yield TELEMETRY_THROTTLED.single(telemetry.throttled)
    yield from of_stats(TELEMETRY, telemetry.series.stats)
    for name, samples in groupby(telemetry.series.samples(serving.now_ms()), key=itemgetter(0)):
        yield from Definition(f"anabranch_{name}", "unknown", CLIENT_HELP).labelled(
            (labels, value) for _, labels, value in samples
        )
