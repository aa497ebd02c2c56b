"""Writes the dashboards of deploy/grafana: `python -m scripts.dashboards`. A test compares them.

A dashboard in Grafana's format has twenty lines for each panel, nearly all of them the same. Here a panel is its title,
unit and queries.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "deploy" / "grafana"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
NODE: Final = 'job=~"$job",instance=~"$instance"'
"""Selects nodes by the variables of a dashboard."""
CLUSTER: Final = 'job=~"$job"'
RATE: Final = "[$__rate_interval]"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3


class Query(NamedTuple):
    """A query, and the name of its series."""

    expression: str
    legend: str = "{{instance}}"


class Panel(NamedTuple):
    """A graph. `unit` is Grafana's name of a unit."""

    title: str
    unit: str
    queries: Sequence[Query]


class Dashboard(NamedTuple):
    """A page of panels, three in a row."""

    uid: str
    title: str
    panels: Sequence[Panel]


def rate(name: str, legend: str = "{{instance}}", by: str = "instance") -> Query:
    """Return the growth of a counter in a second, added up by labels."""
    return Query(f"sum by ({by}) (rate({name}{{{NODE}}}{RATE}))", legend)


def value(name: str, legend: str = "{{instance}}") -> Query:
    """Return the value of a gauge."""
    return Query(f"{name}{{{NODE}}}", legend)


def quantile(part: float, name: str, by: str, legend: str) -> Query:
    """Return a quantile of a histogram over all selected nodes."""
    inner = f"sum by (le, {by}) (rate({name}_bucket{{{NODE}}}{RATE}))"
    return Query(f"histogram_quantile({part}, {inner})", legend)


DASHBOARDS: Final = (
    Dashboard(
        "anabranch-cluster",
        "Anabranch: cluster",
        (
            Panel(
                "Nodes",
                "short",
                [Query(f"max by (state) (anabranch_cluster_nodes{{{CLUSTER}}})", "{{state}}")],
            ),
            Panel(
                "Partitions",
                "short",
                [
                    Query(f"max(anabranch_partitions{{{CLUSTER}}})", "all"),
                    Query(f"max(anabranch_partitions_leaderless{{{CLUSTER}}})", "without a leader"),
                    value("anabranch_partitions_led", "led by {{instance}}"),
                ],
            ),
            Panel(
                "Outages, and nodes that accept no records",
                "short",
                [
                    value("anabranch_outage", "{{instance}}: {{where}}"),
                    Query(f"1 - anabranch_writable{{{NODE}}}", "{{instance}}: not writable"),
                ],
            ),
            Panel(
                "Load of the partitions, in cores",
                "short",
                [
                    value("anabranch_balancer_load_cores"),
                    Query(f"max(anabranch_balancer_spread{{{CLUSTER}}})", "highest load / mean"),
                ],
            ),
            Panel("Moves that balance", "short", [rate("anabranch_balancer_moves_total", "{{rule}}", "rule")]),
            Panel(
                "Bytes of replicas",
                "Bps",
                [
                    rate("anabranch_replica_sent_bytes_total", "to consumers, from {{source}}", "source"),
                    rate("anabranch_follower_sent_bytes_total", "to replicas that follow", "job"),
                ],
            ),
            Panel(
                "Partitions that replicas follow, and have lost a second",
                "short",
                [
                    value("anabranch_replica_followed_partitions"),
                    rate("anabranch_replica_tails_lost_total", "{{instance}}: lost"),
                ],
            ),
            Panel("Lag of replicas that follow", "s", [value("anabranch_replica_lag_seconds")]),
            Panel(
                "Consumers sent to replicas, and back",
                "ops",
                [
                    rate("anabranch_replica_readers_sent_total", "to replicas", "job"),
                    rate("anabranch_replica_readers_returned_total", "back to leaders", "job"),
                ],
            ),
            Panel("Bytes from clients", "Bps", [rate("anabranch_network_received_bytes_total")]),
            Panel(
                "Records appended, by topic",
                "short",
                [
                    Query(
                        f"topk(10, sum by (topic) (rate(kafka_topic_partition_current_offset{{{NODE}}}{RATE})))",
                        "{{topic}}",
                    )
                ],
            ),
            Panel(
                "Bytes appended, by topic",
                "Bps",
                [
                    Query(
                        f"topk(10, sum by (topic) (rate(anabranch_partition_appended_bytes_total{{{NODE}}}{RATE})))",
                        "{{topic}}",
                    )
                ],
            ),
            Panel("Requests", "reqps", [rate("anabranch_requests_total", "{{api}}", "api")]),
            Panel("Time of requests, 99 %", "s", [quantile(0.99, "anabranch_request_seconds", "api", "{{api}}")]),
            Panel("Requests that failed", "reqps", [rate("anabranch_request_failures_total")]),
            Panel("CPU", "percentunit", [rate("process_cpu_seconds_total")]),
            Panel("Memory", "bytes", [value("process_resident_memory_bytes")]),
            Panel("Age of the catalog's last answer", "s", [value("anabranch_catalog_pulse_age_seconds")]),
        ),
    ),
    Dashboard(
        "anabranch-storage",
        "Anabranch: storage",
        (
            Panel(
                "Time until a record is durable",
                "s",
                [
                    quantile(0.5, "anabranch_wal_append_seconds", "instance", "{{instance}} 50 %"),
                    quantile(0.99, "anabranch_wal_append_seconds", "instance", "{{instance}} 99 %"),
                ],
            ),
            Panel("Bytes written to the log", "Bps", [rate("anabranch_wal_block_bytes_total")]),
            Panel(
                "Log in use",
                "percentunit",
                [Query(f"anabranch_wal_used_bytes{{{NODE}}} / anabranch_wal_capacity_bytes{{{NODE}}}")],
            ),
            Panel(
                "Acknowledged, not uploaded yet",
                "bytes",
                [
                    value("anabranch_uncommitted_bytes"),
                    value("anabranch_upload_threshold_bytes", "{{instance}}: an upload begins"),
                ],
            ),
            Panel("Bytes uploaded", "Bps", [rate("anabranch_storage_upload_bytes_total")]),
            Panel("Uploads repeated", "ops", [rate("anabranch_storage_upload_retries_total")]),
            Panel(
                "Calls to the stores",
                "ops",
                [rate("anabranch_store_calls_total", "{{store}} {{kind}}", "store, kind")],
            ),
            Panel(
                "Calls that failed or were repeated",
                "ops",
                [
                    rate("anabranch_store_errors_total", "{{store}} failed", "store"),
                    rate("anabranch_store_retries_total", "{{store}} repeated", "store"),
                ],
            ),
            Panel(
                "Bytes of the stores",
                "Bps",
                [
                    rate("anabranch_store_read_bytes_total", "{{store}} read", "store"),
                    rate("anabranch_store_written_bytes_total", "{{store}} written", "store"),
                ],
            ),
            Panel(
                "Caches",
                "bytes",
                [
                    value("anabranch_log_cache_bytes", "{{instance}} log cache"),
                    value("anabranch_block_cache_bytes", "{{instance}} block cache"),
                ],
            ),
            Panel(
                "Reads",
                "ops",
                [
                    rate("anabranch_storage_log_cache_hits_total", "from the log cache", "job"),
                    rate("anabranch_storage_cold_reads_total", "from objects", "job"),
                    rate("anabranch_storage_block_cache_hits_total", "blocks cached", "job"),
                    rate("anabranch_storage_block_cache_misses_total", "blocks read", "job"),
                ],
            ),
            Panel(
                "Damage",
                "short",
                [
                    value("anabranch_damaged_objects", "{{instance}}: objects"),
                    value("anabranch_stopped_streams", "{{instance}}: stopped partitions"),
                ],
            ),
            Panel(
                "Compaction",
                "Bps",
                [
                    rate("anabranch_compaction_read_bytes_total", "read", "job"),
                    rate("anabranch_compaction_written_bytes_total", "written", "job"),
                    rate("anabranch_compaction_copied_bytes_total", "copied in the store", "job"),
                ],
            ),
            Panel(
                "Compacted topics",
                "bytes",
                [
                    value("anabranch_compaction_dirty_bytes", "{{instance}} not cleaned yet"),
                    value("anabranch_compaction_clean_bytes", "{{instance}} cleaned"),
                ],
            ),
            Panel(
                "Objects deleted, and failures",
                "ops",
                [
                    rate("anabranch_gc_deleted_total", "deleted", "job"),
                    rate("anabranch_gc_failures_total", "deletions failed", "job"),
                    rate("anabranch_compaction_runs_failed_total", "runs of compaction failed", "job"),
                    rate("anabranch_manifest_failures_total", "manifests failed", "job"),
                ],
            ),
            Panel("Tables: lag", "s", [value("anabranch_table_lag_seconds", "{{table}}")]),
            Panel(
                "Tables: rows",
                "ops",
                [
                    rate("anabranch_tables_rows_total", "appended", "job"),
                    rate("anabranch_tables_error_rows_total", "of these with an error", "job"),
                ],
            ),
            Panel(
                "Tables: work",
                "short",
                [
                    rate("anabranch_tables_worker_cpu_seconds_total", "{{instance}}: cores of the process of columns"),
                    rate("anabranch_tables_rounds_failed_total", "{{instance}}: rounds failed a second"),
                ],
            ),
        ),
    ),
    Dashboard(
        "anabranch-clients",
        "Anabranch: clients and groups",
        (
            Panel(
                "Lag of groups (recorded by anabranch-rules.yml)",
                "short",
                [
                    Query(
                        f"topk(20, sum by (consumergroup, topic) (anabranch:consumergroup_lag{{{CLUSTER}}}))",
                        "{{consumergroup}} {{topic}}",
                    )
                ],
            ),
            Panel(
                "Members of groups",
                "short",
                [Query(f"topk(20, kafka_consumergroup_members{{{NODE}}})", "{{consumergroup}}")],
            ),
            Panel(
                "Groups",
                "short",
                [
                    value("anabranch_groups", "{{instance}}: {{type}}, {{state}}"),
                    value("anabranch_group_shards_loading", "{{instance}}: partitions of offsets not loaded"),
                ],
            ),
            Panel(
                "Lag of share groups",
                "short",
                [Query(f"topk(20, sum by (group, topic) (anabranch_share_lag{{{NODE}}}))", "{{group}} {{topic}}")],
            ),
            Panel(
                "Records that members of share groups have, or that wait for dead letters",
                "short",
                [
                    Query(f"topk(20, sum by (group) (anabranch_share_acquired{{{NODE}}}))", "{{group}}"),
                    Query(f"topk(20, sum by (group) (anabranch_share_archiving{{{NODE}}}))", "{{group}}: waiting"),
                ],
            ),
            Panel(
                "States of share groups written",
                "ops",
                [
                    rate("anabranch_share_state_writes_total", "{{record}}", "record"),
                    rate("anabranch_share_state_write_failures_total", "failed", "job"),
                ],
            ),
            Panel("Connections", "short", [value("anabranch_connections")]),
            Panel(
                "Connections accepted and refused",
                "ops",
                [
                    rate("anabranch_network_accepted_total", "accepted", "job"),
                    rate("anabranch_network_refused_limit_total", "refused by a limit", "job"),
                    rate("anabranch_network_closed_bad_input_total", "closed for invalid input", "job"),
                    rate("anabranch_network_failed_handshakes_total", "TLS failed", "job"),
                    rate("anabranch_network_failed_authentications_total", "SASL failed", "job"),
                ],
            ),
            Panel(
                "Memory for requests",
                "bytes",
                [value("anabranch_request_held_bytes")],
            ),
            Panel(
                "Requests waiting for memory",
                "short",
                [value("anabranch_requests_waiting_for_memory")],
            ),
            Panel("Fetch sessions", "short", [value("anabranch_fetch_sessions")]),
            Panel(
                "Clients slowed down by quotas",
                "s",
                [
                    Query(
                        "topk(10, sum by (quota, user, client_id) "
                        f"(rate(anabranch_quota_throttle_seconds_total{{{NODE}}}{RATE})))",
                        "{{quota}} {{user}} {{client_id}}",
                    )
                ],
            ),
        ),
    ),
)


def variable(name: str, query: str) -> Mapping[str, Any]:
    """Return a variable whose values are those of a label, several at once."""
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def panel(index: int, wanted: Panel) -> Mapping[str, Any]:
    """Return a panel in Grafana's format."""
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": wanted.title,
        "datasource": SOURCE,
        "gridPos": {"x": index % COLUMNS * WIDTH, "y": index // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": wanted.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for at, query in enumerate(wanted.queries)
        ],
    }


def grafana(dashboard: Dashboard) -> str:
    """Return a dashboard as a file that Grafana imports."""
    made = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["anabranch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                variable("job", "label_values(anabranch_node_info, job)"),
                variable("instance", f"label_values(anabranch_node_info{{{CLUSTER}}}, instance)"),
            ]
        },
        "panels": [panel(index, each) for index, each in enumerate(dashboard.panels)],
    }
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each.uid}.json").write_text(grafana(each), encoding="utf-8")
