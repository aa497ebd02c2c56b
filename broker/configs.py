"""Topic and broker configs under Kafka's names: type, default, validation, documentation, and the parsed form.

`TOPIC_CONFIGS` is the one table that CreateTopics and AlterConfigs validate by and DescribeConfigs answers from. What
Kafka has and means nothing here is accepted (tools set it), and its documentation says that it has no effect.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from broker.settings import Settings
from broker.stores import store_names
from protocol.compression import Compression
from protocol.errors import ErrorCode, KafkaError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """Kafka's type codes in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Kafka's source codes in DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config: `broker_name` is the broker-wide synonym, `setting` the node's setting that gives its default."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    broker_name: str = ""
    setting: tuple[str, str] | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    has_effect: bool = True
    also: int | None = None
    """A value outside the range that is allowed, too."""
    items: str = ""
    """What each item of a list looks like, if it is not a lone `*`."""

    def check(self, value: str) -> None:
        """Raise INVALID_CONFIG with Kafka's wording when `value` is not allowed."""
        parse = _PARSERS[self.type]
        try:
            parsed = parse(value)
        except ValueError:
            raise _invalid(f"Invalid value {value} for configuration {self.name}: {_EXPECTED[self.type]}") from None
        if self.choices:
            items = parsed if isinstance(parsed, list) else [parsed]
            for item in items:
                if item not in self.choices:
                    raise _invalid(
                        f"Invalid value {item} for configuration {self.name}: "
                        f"String must be one of: {', '.join(self.choices)}"
                    )
        if isinstance(parsed, int | float):
            self._check_range(parsed)
        elif isinstance(parsed, list) and self.items:
            self._check_items(parsed)

    def _check_items(self, items: list[str]) -> None:
        if items != ["*"] and not all(re.fullmatch(self.items, item) for item in items):
            raise _invalid(
                f"Invalid value [{', '.join(items)}] for configuration {self.name}: {self.name} must be the literal "
                "'*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )

    def _check_range(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        rule = ""
        if self.also is not None:
            assert low is not None
            assert high is not None
            if value != self.also and not low <= value <= high:
                rule = f"between {low} and {high} or equal to {self.also}"
        elif low is not None and value < low:
            rule = f"at least {low:.10g}"
        elif high is not None and value > high:
            rule = f"no more than {high:.10g}"
        if rule:
            raise _invalid(f"Invalid value {value} for configuration {self.name}: Value must be {rule}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def _parse_bool(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in {"true", "false"}:
        raise ValueError(value)
    return lowered == "true"


def _parse_int(bits: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value.strip())
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise ValueError(value)
        return number

    return parse


def _parse_list(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


_PARSERS: Mapping[ConfigType, Callable[[str], bool | int | float | str | list[str]]] = {
    ConfigType.BOOLEAN: _parse_bool,
    ConfigType.STRING: str.strip,
    ConfigType.INT: _parse_int(32),
    ConfigType.SHORT: _parse_int(16),
    ConfigType.LONG: _parse_int(64),
    ConfigType.DOUBLE: float,
    ConfigType.LIST: _parse_list,
}
_EXPECTED = {
    ConfigType.BOOLEAN: "Expected value to be either true or false",
    ConfigType.STRING: "Expected value to be a string",
    ConfigType.INT: "Not a number of type INT",
    ConfigType.SHORT: "Not a number of type SHORT",
    ConfigType.LONG: "Not a number of type LONG",
    ConfigType.DOUBLE: "Not a number of type DOUBLE",
    ConfigType.LIST: "Expected a comma separated list",
}
_NO_EFFECT = " Accepted for compatibility; it has no effect here: "
_SEGMENTS = _NO_EFFECT + "data is kept in objects, not in segment files."
_ONE_COPY = _NO_EFFECT + "a partition has one replica, its durability comes from the log device and the object store."
_NO_TIERS = _NO_EFFECT + "all data is in object storage."


def _def(  # a table row: positional on purpose
    name: str,
    kind: ConfigType,
    default: str,
    documentation: str,
    *,
    broker: str = "",
    setting: tuple[str, str] | None = None,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> ConfigDef:
    effect = _NO_EFFECT not in documentation
    return ConfigDef(name, kind, default, documentation, broker, setting, choices, low, high, effect)


_REPLICA = r"\d+:\d+"
_B, _S, _I, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

_TOPIC_DEFS = (
    _def(
        "cleanup.policy",
        _LIST,
        "delete",
        "What becomes of old records. On a topic with `compact` every record needs a key.",
        broker="log.cleanup.policy",
        choices=("compact", "delete"),
    ),
    _def(
        "compression.type",
        _S,
        "producer",
        "Codec batches are kept in; `producer` keeps what the producer chose, any other has the node recompress.",
        broker="compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    replace(
        _def("compression.gzip.level", _I, "-1", "Level where the type is gzip; -1: gzip's own.", low=1, high=9),
        also=-1,
    ),
    _def("compression.lz4.level", _I, "9", "Level where the type is lz4.", low=1, high=17),
    _def(
        "compression.zstd.level",
        _I,
        "3",
        "Level where the type is zstd.",
        low=-131072,
        high=22,
    ),
    _def(
        "delete.retention.ms",
        _L,
        "86400000",
        "How long delete markers of a compacted topic stay.",
        broker="log.cleaner.delete.retention.ms",
        low=0,
    ),
    _def(
        "file.delete.delay.ms",
        _L,
        "60000",
        "Time before a file is deleted." + _SEGMENTS,
        broker="log.segment.delete.delay.ms",
        low=0,
    ),
    _def(
        "flush.messages",
        _L,
        str(LONG_MAX),
        "Records between flushes." + _NO_EFFECT + "every acknowledged record is flushed.",
        broker="log.flush.interval.messages",
        low=1,
    ),
    _def(
        "flush.ms",
        _L,
        str(LONG_MAX),
        "Time between flushes." + _NO_EFFECT + "every acknowledged record is flushed.",
        broker="log.flush.interval.ms",
        low=0,
    ),
    replace(
        _def("follower.replication.throttled.replicas", _LIST, "", "Throttled replicas." + _ONE_COPY), items=_REPLICA
    ),
    _def(
        "index.interval.bytes",
        _I,
        "4096",
        "Bytes between index entries." + _SEGMENTS,
        broker="log.index.interval.bytes",
        low=0,
    ),
    replace(
        _def("leader.replication.throttled.replicas", _LIST, "", "Throttled replicas." + _ONE_COPY), items=_REPLICA
    ),
    _def(
        "local.retention.bytes",
        _L,
        "-2",
        "Bytes kept locally." + _NO_TIERS,
        broker="log.local.retention.bytes",
        low=-2,
    ),
    _def("local.retention.ms", _L, "-2", "Time kept locally." + _NO_TIERS, broker="log.local.retention.ms", low=-2),
    _def(
        "max.compaction.lag.ms",
        _L,
        str(LONG_MAX),
        "Longest time a record stays uncompacted.",
        broker="log.cleaner.max.compaction.lag.ms",
        low=1,
    ),
    _def(
        "max.message.bytes",
        _I,
        "1048588",
        "The largest record batch size allowed (after compression if compression is enabled).",
        broker="message.max.bytes",
        setting=("topic", "max_message_bytes"),
        low=0,
    ),
    _def(
        "message.timestamp.after.max.ms",
        _L,
        "3600000",
        "How far a record's timestamp may lie after the broker's time; ignored with LogAppendTime.",
        broker="log.message.timestamp.after.max.ms",
        setting=("topic", "message_timestamp_after_max_ms"),
        low=0,
    ),
    _def(
        "message.timestamp.before.max.ms",
        _L,
        str(LONG_MAX),
        "How far a record's timestamp may lie before the broker's time; ignored with LogAppendTime.",
        broker="log.message.timestamp.before.max.ms",
        setting=("topic", "message_timestamp_before_max_ms"),
        low=0,
    ),
    _def(
        "message.timestamp.type",
        _S,
        "CreateTime",
        "Whether the timestamp of a record is its creation time or the time of the append.",
        broker="log.message.timestamp.type",
        setting=("topic", "message_timestamp_type"),
        choices=("CreateTime", "LogAppendTime"),
    ),
    _def(
        "min.cleanable.dirty.ratio",
        _D,
        "0.5",
        "How much of the log may be uncompacted.",
        broker="log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    ),
    _def(
        "min.compaction.lag.ms",
        _L,
        "0",
        "Least time a record stays uncompacted.",
        broker="log.cleaner.min.compaction.lag.ms",
        low=0,
    ),
    _def(
        "min.insync.replicas",
        _I,
        "1",
        "Replicas that must acknowledge a write." + _ONE_COPY,
        broker="min.insync.replicas",
        low=1,
    ),
    _def("preallocate", _B, "false", "Preallocate segment files." + _SEGMENTS, broker="log.preallocate"),
    _def("remote.log.copy.disable", _B, "false", "Stop copying to remote storage." + _NO_TIERS),
    _def("remote.log.delete.on.disable", _B, "false", "Delete remote data when it is disabled." + _NO_TIERS),
    _def("remote.storage.enable", _B, "false", "Tiered storage." + _NO_TIERS),
    _def(
        "retention.bytes",
        _L,
        "-1",
        "How many bytes of a partition are kept; -1: no limit. Whole blocks of batches (about 512 KiB) go, from the "
        "start on, as long as what stays is not below the limit; what is not in objects yet counts, and stays.",
        broker="log.retention.bytes",
        setting=("topic", "retention_bytes"),
    ),
    _def(
        "retention.ms",
        _L,
        "604800000",
        "How long records are kept, by their timestamps; -1 keeps them for ever. Whole batches go, from the start on.",
        broker="log.retention.ms",
        setting=("topic", "retention_ms"),
        low=-1,
    ),
    _def(
        "segment.bytes", _I, "1073741824", "Size of segment files." + _SEGMENTS, broker="log.segment.bytes", low=1 << 20
    ),
    _def(
        "segment.index.bytes",
        _I,
        "10485760",
        "Size of index files." + _SEGMENTS,
        broker="log.index.size.max.bytes",
        low=4,
    ),
    _def("segment.jitter.ms", _L, "0", "Jitter of segment rolls." + _SEGMENTS, broker="log.roll.jitter.ms", low=0),
    _def("segment.ms", _L, "604800000", "Age of segment rolls." + _SEGMENTS, broker="log.roll.ms", low=1),
    _def(
        "storage.policy",
        _S,
        "local",
        "Name of the object store that this topic's data goes to: `local` or `s3`, as the node's settings `objects` "
        "say, or one of its `stores`. What is in objects already stays where it is until compaction rewrites it.",
        broker="log.storage.policy",
        setting=("objects", "store"),
    ),
    _def(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Let an out-of-date replica lead." + _ONE_COPY,
        broker="unclean.leader.election.enable",
    ),
)
TOPIC_CONFIGS: Mapping[str, ConfigDef] = {row.name: row for row in _TOPIC_DEFS}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs of a topic that the broker acts on, parsed."""

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression: Compression | None
    """Codec batches are kept in; None: as they come."""
    compression_level: int | None
    compacted: bool
    retention_ms: int
    """How long records are kept; -1: for ever."""
    retention_bytes: int
    """How much of a partition is kept; -1: all."""
    deletable: bool
    """Whether `cleanup.policy` has `delete`: only then may records be deleted on request."""
    store: str
    """Name of the object store that new data goes to."""


def default_value(row: ConfigDef, settings: Settings) -> str:
    """A topic config's value where the topic does not set it."""
    if row.setting is None:
        return row.default
    return str(getattr(getattr(settings, row.setting[0]), row.setting[1]))


def check_topic_configs(
    configs: Mapping[str, str | None], settings: Settings, *, beside: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Validate the configs a client gives for a topic that keeps those `beside` them. Raises INVALID_CONFIG."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        row = TOPIC_CONFIGS.get(name)
        if row is None:
            raise _invalid(f"Unknown topic config name: {name}")
        if value is None:
            raise _invalid(f"Null value not supported for topic configs: {name}")
        row.check(value)
        checked[name] = value
    policy = checked.get("storage.policy", settings.objects.store)
    if policy not in store_names(settings):
        raise _invalid(
            f"Invalid value {policy} for configuration storage.policy: "
            f"String must be one of: {', '.join(store_names(settings))}"
        )
    _check_together({**(beside or {}), **checked})
    return checked


def _check_together(configs: Mapping[str, str]) -> None:
    """What no config can tell by itself."""

    def number(name: str) -> int:
        return int(configs.get(name) or TOPIC_CONFIGS[name].default)

    least, most = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if least > most:
        raise _invalid(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if configs.get("remote.storage.enable", "").strip().lower() == "true":
        raise _invalid(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


_CODECS: Mapping[str, Compression | None] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def _level(value: Callable[[str], str]) -> int | None:
    """The level that goes with the codec, or None for the codec's own."""
    name = f"compression.{value('compression.type')}.level"
    if name not in TOPIC_CONFIGS or value(name) == "-1":
        return None
    return int(value(name))


def parse_topic_config(configs: Mapping[str, str], settings: Settings) -> TopicConfig:
    """The parsed form of a topic's configs over the defaults."""

    def value(name: str) -> str:
        return configs.get(name) or default_value(TOPIC_CONFIGS[name], settings)

    return TopicConfig(
        max_message_bytes=int(value("max.message.bytes")),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        compression=_CODECS[value("compression.type")],
        compression_level=_level(value),
        compacted="compact" in _parse_list(value("cleanup.policy")),
        retention_ms=int(value("retention.ms")),
        retention_bytes=int(value("retention.bytes")),
        deletable="delete" in _parse_list(value("cleanup.policy")),
        store=value("storage.policy"),
    )


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
