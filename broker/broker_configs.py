"""The broker configs under Kafka's names that have a meaning here, with the settings they show."""

from broker.config_defs import INT_MAX, LONG_MAX, ConfigDef, ConfigType
from broker.settings import Settings

_B, _S, _I, _L, _LIST = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_BROKER_SETTINGS = (
    ("auto.create.topics.enable", _B, "true", ("topic", "auto_create")),
    ("connections.max.idle.ms", _L, "600000", ("network", "idle_timeout_ms")),
    ("fetch.max.bytes", _I, "57671680", ("fetch", "response_bytes_max")),
    ("group.consumer.heartbeat.interval.ms", _I, "5000", ("group", "consumer_heartbeat_interval_ms")),
    ("group.consumer.max.heartbeat.interval.ms", _I, "15000", ("group", "consumer_heartbeat_interval_max_ms")),
    ("group.consumer.max.session.timeout.ms", _I, "60000", ("group", "consumer_session_timeout_max_ms")),
    ("group.consumer.migration.policy", _S, "bidirectional", ("group", "consumer_migration_policy")),
    ("group.consumer.min.heartbeat.interval.ms", _I, "5000", ("group", "consumer_heartbeat_interval_min_ms")),
    ("group.consumer.min.session.timeout.ms", _I, "45000", ("group", "consumer_session_timeout_min_ms")),
    ("group.consumer.session.timeout.ms", _I, "45000", ("group", "consumer_session_timeout_ms")),
    ("group.initial.rebalance.delay.ms", _I, "3000", ("group", "initial_rebalance_delay_ms")),
    ("group.max.session.timeout.ms", _I, "1800000", ("group", "session_timeout_max_ms")),
    ("group.max.size", _I, str(INT_MAX), ("group", "members_max")),
    ("group.min.session.timeout.ms", _I, "6000", ("group", "session_timeout_min_ms")),
    ("log.message.timestamp.after.max.ms", _L, "3600000", ("topic", "message_timestamp_after_max_ms")),
    ("log.message.timestamp.before.max.ms", _L, str(LONG_MAX), ("topic", "message_timestamp_before_max_ms")),
    ("log.message.timestamp.type", _S, "CreateTime", ("topic", "message_timestamp_type")),
    ("log.retention.bytes", _L, "-1", ("topic", "retention_bytes")),
    ("log.retention.check.interval.ms", _L, "300000", ("topic", "retention_check_interval_ms")),
    ("log.retention.ms", _L, "604800000", ("topic", "retention_ms")),
    ("max.connections", _I, str(INT_MAX), ("network", "connections_max")),
    ("max.connections.per.ip", _I, str(INT_MAX), ("network", "connections_per_address_max")),
    ("max.incremental.fetch.session.cache.slots", _I, "1000", ("fetch", "sessions_max")),
    ("message.max.bytes", _I, "1048588", ("topic", "max_message_bytes")),
    ("num.partitions", _I, "1", ("topic", "num_partitions")),
    ("offset.metadata.max.bytes", _I, "4096", ("group", "offset_metadata_bytes_max")),
    ("offsets.topic.num.partitions", _I, "50", ("group", "offsets_partitions")),
    ("producer.id.expiration.ms", _I, "86400000", ("topic", "producer_id_expiration_ms")),
    ("queued.max.request.bytes", _L, "-1", ("network", "node_bytes_max")),
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


def broker_configs(settings: Settings, host: str, port: int) -> list[tuple[ConfigDef, str]]:
    """The broker configs that have a meaning here, with their values. They are read only: set at the start."""
    rows = []
    for name, kind, default, (area, field) in _BROKER_SETTINGS:
        model = getattr(settings, area)
        value = getattr(model, field)
        text = str(value).lower() if kind == ConfigType.BOOLEAN else str(value)
        documentation = type(model).model_fields[field].description or ""
        rows.append((ConfigDef(name, kind, default, documentation), text))
    fixed = (
        ("advertised.listeners", _S, "", f"PLAINTEXT://{host}:{port}", "Where clients are told to connect."),
        ("broker.id", _I, "-1", str(settings.node.node_id), "Id of this node."),
        (
            "default.replication.factor",
            _I,
            "1",
            "1",
            "A partition has one replica, kept by the object store.",
        ),
        ("listeners", _S, "", f"PLAINTEXT://{settings.listener.host}:{port}", "Where this node listens."),
        (
            "log.storage.policy",
            _S,
            "local",
            settings.objects.store,
            "Object store of topics that choose none by `storage.policy`.",
        ),
        ("log.dirs", _LIST, "", str(settings.node.data_dir), "Directory of this node."),
        ("node.id", _I, "-1", str(settings.node.node_id), "Id of this node."),
        ("offsets.topic.replication.factor", _I, "3", "1", "A partition has one replica."),
    )
    rows += [(ConfigDef(name, kind, default, text), value) for name, kind, default, value, text in fixed]
    return sorted(rows, key=lambda row: row[0].name)
