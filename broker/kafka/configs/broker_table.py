"""Definitions of the broker configs that have an effect here, under Kafka's names.

`BROKER_CONFIGS` get their values from the settings of the node. `DYNAMIC` names those that can be changed while nodes
run, for one node or for all. As in Apache Kafka, each default of a topic config is a broker config.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from anabranch.broker.kafka.configs.definitions import INT_MAX, LONG_MAX, ConfigDef, ConfigType
from anabranch.broker.kafka.configs.group import GROUP_CONFIGS, OFFLOADED
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.node.settings.area import definitions
from anabranch.broker.node.settings.names import area_models

AUTO_CREATE: Final = "auto.create.topics.enable"
BALANCER: Final = "balancer.enable"
BALANCER_ZONE: Final = "balancer.zone"
CONNECTIONS_MAX: Final = "max.connections"
CONNECTIONS_PER_ADDRESS_MAX: Final = "max.connections.per.ip"
DEAD_LETTER_AUTO_CREATE: Final = "errors.deadletterqueue.auto.create.topics.enable"
DEAD_LETTER_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
PRODUCER_ID_EXPIRATION: Final = "producer.id.expiration.ms"
STORAGE_POLICY: Final = "log.storage.policy"
_B, _S, _I, _L, _D = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_STATIC_ROWS = (
    ("connections.max.idle.ms", _L, "600000", ("network", "idle_timeout_ms")),
    ("connection.failed.authentication.delay.ms", _I, "100", ("sasl", "failed_authentication_delay_ms")),
    ("connections.max.reauth.ms", _L, "0", ("sasl", "max_reauth_ms")),
    ("delegation.token.expiry.check.interval.ms", _L, "3600000", ("delegation_token", "expiry_check_interval_ms")),
    ("delegation.token.expiry.time.ms", _L, "86400000", ("delegation_token", "expiry_time_ms")),
    ("delegation.token.max.lifetime.ms", _L, "604800000", ("delegation_token", "max_lifetime_ms")),
    ("fetch.max.bytes", _I, "57671680", ("fetch", "response_bytes_max")),
    ("controller.quota.window.num", _I, "11", ("quota", "controller_window_num")),
    ("controller.quota.window.size.seconds", _I, "1", ("quota", "controller_window_size_seconds")),
    ("group.consumer.assignment.interval.ms", _I, "1000", ("group", "consumer_assignment_interval_ms")),
    ("group.consumer.heartbeat.interval.ms", _I, "5000", ("group", "consumer_heartbeat_interval_ms")),
    ("group.consumer.max.assignment.interval.ms", _I, "15000", ("group", "consumer_assignment_interval_max_ms")),
    ("group.consumer.max.heartbeat.interval.ms", _I, "15000", ("group", "consumer_heartbeat_interval_max_ms")),
    ("group.consumer.max.size", _I, str(INT_MAX), ("group", "members_max")),
    ("group.consumer.max.session.timeout.ms", _I, "60000", ("group", "consumer_session_timeout_max_ms")),
    ("group.consumer.migration.policy", _S, "bidirectional", ("group", "consumer_migration_policy")),
    ("group.consumer.min.assignment.interval.ms", _I, "0", ("group", "consumer_assignment_interval_min_ms")),
    ("group.consumer.min.heartbeat.interval.ms", _I, "5000", ("group", "consumer_heartbeat_interval_min_ms")),
    ("group.consumer.min.session.timeout.ms", _I, "45000", ("group", "consumer_session_timeout_min_ms")),
    ("group.consumer.session.timeout.ms", _I, "45000", ("group", "consumer_session_timeout_ms")),
    ("group.initial.rebalance.delay.ms", _I, "3000", ("group", "initial_rebalance_delay_ms")),
    ("group.max.session.timeout.ms", _I, "1800000", ("group", "session_timeout_max_ms")),
    ("group.max.size", _I, str(INT_MAX), ("group", "members_max")),
    ("group.min.session.timeout.ms", _I, "6000", ("group", "session_timeout_min_ms")),
    ("group.share.assignment.interval.ms", _I, "1000", ("group", "share_assignment_interval_ms")),
    ("group.share.delivery.count.limit", _I, "5", ("group", "share_delivery_count_limit")),
    ("group.share.heartbeat.interval.ms", _I, "5000", ("group", "share_heartbeat_interval_ms")),
    ("group.share.initialize.retry.interval.ms", _I, "30000", ("group", "share_initialize_retry_interval_ms")),
    ("group.share.max.assignment.interval.ms", _I, "15000", ("group", "share_assignment_interval_max_ms")),
    ("group.share.max.delivery.count.limit", _I, "10", ("group", "share_delivery_count_limit_max")),
    ("group.share.max.heartbeat.interval.ms", _I, "15000", ("group", "share_heartbeat_interval_max_ms")),
    ("group.share.max.partition.max.record.locks", _I, "4000", ("group", "share_partition_record_locks_most")),
    ("group.share.max.record.lock.duration.ms", _I, "60000", ("group", "share_record_lock_duration_max_ms")),
    ("group.share.max.session.timeout.ms", _I, "60000", ("group", "share_session_timeout_max_ms")),
    ("group.share.max.share.sessions", _I, "2000", ("group", "share_sessions_max")),
    ("group.share.max.size", _I, "200", ("group", "share_members_max")),
    ("group.share.min.assignment.interval.ms", _I, "0", ("group", "share_assignment_interval_min_ms")),
    ("group.share.min.delivery.count.limit", _I, "2", ("group", "share_delivery_count_limit_min")),
    ("group.share.min.heartbeat.interval.ms", _I, "5000", ("group", "share_heartbeat_interval_min_ms")),
    ("group.share.min.partition.max.record.locks", _I, "100", ("group", "share_partition_record_locks_least")),
    ("group.share.min.record.lock.duration.ms", _I, "15000", ("group", "share_record_lock_duration_min_ms")),
    ("group.share.min.session.timeout.ms", _I, "45000", ("group", "share_session_timeout_min_ms")),
    ("group.share.partition.max.record.locks", _I, "2000", ("group", "share_partition_record_locks_max")),
    ("group.share.record.lock.duration.ms", _I, "30000", ("group", "share_record_lock_duration_ms")),
    ("group.share.session.timeout.ms", _I, "45000", ("group", "share_session_timeout_ms")),
    ("group.streams.acceptable.recovery.lag", _L, "10000", ("group", "streams_acceptable_recovery_lag")),
    ("group.streams.assignment.interval.ms", _I, "1000", ("group", "streams_assignment_interval_ms")),
    ("group.streams.heartbeat.interval.ms", _I, "5000", ("group", "streams_heartbeat_interval_ms")),
    ("group.streams.initial.rebalance.delay.ms", _I, "3000", ("group", "streams_initial_rebalance_delay_ms")),
    ("group.streams.max.assignment.interval.ms", _I, "15000", ("group", "streams_assignment_interval_max_ms")),
    ("group.streams.max.heartbeat.interval.ms", _I, "15000", ("group", "streams_heartbeat_interval_max_ms")),
    ("group.streams.max.session.timeout.ms", _I, "60000", ("group", "streams_session_timeout_max_ms")),
    ("group.streams.max.size", _I, str(INT_MAX), ("group", "streams_members_max")),
    ("group.streams.max.standby.replicas", _I, "2", ("group", "streams_standby_replicas_max")),
    ("group.streams.min.assignment.interval.ms", _I, "0", ("group", "streams_assignment_interval_min_ms")),
    ("group.streams.min.heartbeat.interval.ms", _I, "5000", ("group", "streams_heartbeat_interval_min_ms")),
    ("group.streams.min.session.timeout.ms", _I, "45000", ("group", "streams_session_timeout_min_ms")),
    ("group.streams.min.task.offset.interval.ms", _I, "15000", ("group", "streams_task_offset_interval_min_ms")),
    ("group.streams.num.standby.replicas", _I, "0", ("group", "streams_standby_replicas")),
    ("group.streams.rack.aware.assignment.tags", ConfigType.LIST, "", ("group", "streams_rack_aware_assignment_tags")),
    ("group.streams.session.timeout.ms", _I, "45000", ("group", "streams_session_timeout_ms")),
    ("group.streams.task.offset.interval.ms", _I, "60000", ("group", "streams_task_offset_interval_ms")),
    ("log.retention.check.interval.ms", _L, "300000", ("topic", "retention_check_interval_ms")),
    ("max.incremental.fetch.session.cache.slots", _I, "1000", ("fetch", "sessions_max")),
    ("num.partitions", _I, "1", ("topic", "num_partitions")),
    ("offset.metadata.max.bytes", _I, "4096", ("group", "offset_metadata_bytes_max")),
    ("offsets.retention.check.interval.ms", _L, "600000", ("group", "offsets_check_interval_ms")),
    ("offsets.topic.num.partitions", _I, "50", ("group", "offsets_partitions")),
    ("quota.window.num", _I, "11", ("quota", "window_num")),
    ("quota.window.size.seconds", _I, "1", ("quota", "window_size_seconds")),
    ("queued.max.request.bytes", _L, "-1", ("network", "node_bytes_max")),
    ("sasl.server.max.receive.size", _I, "524288", ("sasl", "server_max_receive_bytes")),
    (
        "share.coordinator.snapshot.update.records.per.snapshot",
        _I,
        "500",
        ("share", "updates_per_snapshot"),
    ),
    ("share.coordinator.state.topic.num.partitions", _I, "50", ("share", "state_partitions")),
    ("telemetry.max.bytes", _I, "1048576", ("telemetry", "push_bytes_max")),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", _I, "10000", ("transaction", "abort_interval_ms")),
    ("transaction.max.timeout.ms", _I, "900000", ("transaction", "timeout_max_ms")),
    (
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _I,
        "3600000",
        ("transaction", "expire_interval_ms"),
    ),
    ("transaction.state.log.num.partitions", _I, "50", ("transaction", "state_partitions")),
    ("transactional.id.expiration.ms", _I, "604800000", ("transaction", "id_expiration_ms")),
    ("socket.request.max.bytes", _I, "104857600", ("network", "request_bytes_max")),
)
_INTERNAL = frozenset(
    {
        "group.share.initialize.retry.interval.ms",
        "group.streams.acceptable.recovery.lag",
        "group.streams.min.task.offset.interval.ms",
        "group.streams.task.offset.interval.ms",
    }
)
_DYNAMIC_ROWS = (
    (AUTO_CREATE, _B, "true", ("topic", "auto_create"), None),
    (BALANCER, _B, "true", ("cluster", "balancer"), None),
    (CONNECTIONS_MAX, _I, str(INT_MAX), ("network", "connections_max"), 1),
    (CONNECTIONS_PER_ADDRESS_MAX, _I, str(INT_MAX), ("network", "connections_per_address_max"), 1),
    (DEAD_LETTER_AUTO_CREATE, _B, "false", ("group", "dead_letter_topic_auto_create"), None),
    (DEAD_LETTER_PREFIX, _S, "dlq.", ("group", "dead_letter_topic_prefix"), None),
    (PRODUCER_ID_EXPIRATION, _I, "86400000", ("topic", "producer_id_expiration_ms"), 1),
)
_CLEANER = "compaction has a thread of its own, and takes turns with uploads."
_COORDINATORS = "a coordinator keeps no buffers for writes."
_THREADS = "a node has one event loop."
_WITHOUT_EFFECT = (
    ("background.threads", _I, "10", 1, _THREADS),
    ("group.coordinator.cached.buffer.max.bytes", _I, "1048588", 524288, _COORDINATORS),
    ("log.cleaner.backoff.ms", _L, "15000", 0, _CLEANER),
    ("log.cleaner.dedupe.buffer.size", _L, "134217728", None, _CLEANER),
    ("log.cleaner.io.buffer.load.factor", _D, "0.9", None, _CLEANER),
    ("log.cleaner.io.buffer.size", _I, "524288", 0, _CLEANER),
    ("log.cleaner.io.max.bytes.per.second", _D, "1.7976931348623157E308", None, _CLEANER),
    ("log.cleaner.threads", _I, "1", 1, _CLEANER),
    ("num.io.threads", _I, "8", 1, _THREADS),
    ("num.network.threads", _I, "3", 1, _THREADS),
    ("num.recovery.threads.per.data.dir", _I, "2", 1, _THREADS),
    ("num.replica.fetchers", _I, "1", 1, "replicas have no copies."),
    ("share.coordinator.cached.buffer.max.bytes", _I, "1048588", 524288, _COORDINATORS),
    ("transaction.partition.verification.enable", _B, "true", None, "partitions are always verified."),
)
"""Configs that Kafka's operators tune while brokers run: threads and buffers of another design."""
_THROTTLES: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Rates that Kafka's tool for reassignments sets. Kafka has no definitions of them, and describes what is set."""
_THROTTLE_TEXT: Final = (
    "Bytes per second of a reassignment. Accepted for compatibility; it has no effect here: a move hands over only "
    "what is not in the object store yet."
)


def _documentation(setting: tuple[str, str]) -> str:
    area, field = setting
    return definitions(dict(area_models())[area])[field].description


def _static_definitions() -> Iterator[ConfigDef]:
    for name, kind, default, setting in _STATIC_ROWS:
        text, is_internal = _documentation(setting), name in _INTERNAL
        yield ConfigDef(name, kind, default, text, setting=setting, is_internal=is_internal)


def _dynamic_definitions() -> Iterator[ConfigDef]:
    for name, kind, default, setting, least in _DYNAMIC_ROWS:
        yield ConfigDef(name, kind, default, _documentation(setting), setting=setting, minimum=least)
    zone = ("cluster", "balancer_zone")
    yield ConfigDef(
        BALANCER_ZONE, _S, "prefer", _documentation(zone), setting=zone, choices=("off", "prefer", "strict")
    )
    for name, kind, default, least, reason in _WITHOUT_EFFECT:
        text = f"Accepted for compatibility; it has no effect here: {reason}"
        yield ConfigDef(name, kind, default, text, minimum=least)
    for name in _THROTTLES:
        yield ConfigDef(name, _L, str(LONG_MAX), _THROTTLE_TEXT, minimum=0, is_internal=True)
    for row in GROUP_CONFIGS.values():
        if row.name.endswith(OFFLOADED):
            yield replace(row, name=row.broker_name, broker_name="")
    for row in TOPIC_CONFIGS.values():
        if row.broker_name and row.broker_name != STORAGE_POLICY:
            yield replace(row, name=row.broker_name, broker_name="")


DYNAMIC: Final[AbstractSet[str]] = frozenset(row.name for row in _dynamic_definitions())
BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {row.name: row for row in (*_static_definitions(), *_dynamic_definitions())}
)
