"""Configs of a topic: validation of what a client sets, and the parsed form that the broker uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.kafka.configs.definitions import ConfigDef, invalid_config, parse_list
from anabranch.broker.kafka.configs.table import check_table_configs
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import store_names
from anabranch.compaction.interface import CleanPolicy
from anabranch.compaction.settings import CompactionSettings
from anabranch.protocol.compression import Compression
from anabranch.protocol.encoder import STRING_BYTES_MAX
from anabranch.protocol.record_scan import RECORD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Parsed configs of a topic."""

    max_message_bytes: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression: Compression | None
    """Codec of stored batches; None: the producer's."""
    compression_level: int | None
    cleaning: CleanPolicy | None
    """Rules of compaction by key; None: the topic is not compacted."""
    retention_ms: int
    """Time for which records are kept; -1: forever."""
    retention_bytes: int
    """Bytes of a partition that are kept; -1: all."""
    deletable: bool
    """True if `cleanup.policy` has `delete`: only then may records be deleted by retention or on request."""
    store: str
    """Name of the object store for new data."""
    record_bytes_max: int
    """Largest body of a record in a compressed batch."""

    @property
    def limits_records(self) -> bool:
        """True if the records of compressed batches must be measured."""
        return self.record_bytes_max < RECORD_BYTES_MAX

    @property
    def has_common_rules(self) -> bool:
        """True if no rule of the topic asks for more than a look at the header of a batch; the native part asks."""
        changes = self.compression is not None or self.log_append_time
        return not (changes or self.compacted or self.limits_records)

    @property
    def compacted(self) -> bool:
        """True if `cleanup.policy` has `compact`."""
        return self.cleaning is not None

    @property
    def uploads_alone(self) -> bool:
        """True if data should go to stream objects at once, where it can be compacted by key."""
        return self.cleaning is not None and self.cleaning.cleanable_age_ms < CompactionSettings().force_split_ms


def check_topic_configs(
    configs: Mapping[str, str | None],
    settings: Settings,
    *,
    kept: Mapping[str, str] | None = None,
    internal: bool = False,
) -> dict[str, str]:
    """Validate configs that a client sets for a topic, which keeps `kept` as well. Raises INVALID_CONFIG."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        row = TOPIC_CONFIGS.get(name)
        if row is None:
            raise invalid_config(f"Unknown topic config name: {name}")
        if value is None:
            raise invalid_config(f"Null value not supported for topic configs: {name}")
        if (size := len(value.encode("utf-8", "surrogatepass"))) > STRING_BYTES_MAX:
            # No answer of DescribeConfigs could hold it.
            raise invalid_config(
                f"Invalid value for configuration {name}: {size} bytes, where Kafka's protocol has room for "
                f"{STRING_BYTES_MAX}"
            )
        checked[name] = row.normalize(value)
    policy = checked.get("storage.policy", settings.objects.store)
    if policy not in store_names(settings):
        raise invalid_config(
            f"Invalid value {policy} for configuration storage.policy: "
            f"String must be one of: {', '.join(store_names(settings))}"
        )
    catalog = checked.get("table.publish")
    if catalog and catalog not in settings.table_catalogs:
        known = f"String must be one of: {', '.join(settings.table_catalogs)}"
        none = "the settings of this node have no table_catalogs"
        raise invalid_config(
            f"Invalid value {catalog} for configuration table.publish: {known if settings.table_catalogs else none}"
        )
    together = {**(kept or {}), **checked}
    _check_together(together)
    check_table_configs(together, settings, internal=internal)
    return checked


def _check_together(configs: Mapping[str, str]) -> None:
    """Check configs against each other."""

    def number(name: str) -> int:
        return int(configs.get(name) or TOPIC_CONFIGS[name].default)

    least, most = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if least > most:
        raise invalid_config(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if configs.get("remote.storage.enable", "").strip().lower() == "true":
        raise invalid_config(
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
    """Return the level of the codec, or None for the codec's default."""
    name = f"compression.{value('compression.type')}.level"
    if name not in TOPIC_CONFIGS or value(name) == "-1":
        return None
    return int(value(name))


def _clean_policy(value: Callable[[str], str]) -> CleanPolicy:
    return CleanPolicy(
        dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
        lag_ms_min=int(value("min.compaction.lag.ms")),
        lag_ms_max=int(value("max.compaction.lag.ms")),
        delete_retention_ms=int(value("delete.retention.ms")),
        segment_ms=int(value("segment.ms")),
    )


class TopicDefaults(Protocol):
    """Provider of values for configs that a topic does not set."""

    def topic_default(self, row: ConfigDef) -> str:
        """Return the value of one config."""
        ...


def parse_topic_config(configs: Mapping[str, str], defaults: TopicDefaults) -> TopicConfig:
    """Parse a topic's configs, with defaults for those that it does not set."""

    def value(name: str) -> str:
        return (configs[name] if name in configs else defaults.topic_default(TOPIC_CONFIGS[name])).strip()

    return TopicConfig(
        max_message_bytes=int(value("max.message.bytes")),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        compression=_CODECS[value("compression.type")],
        compression_level=_level(value),
        cleaning=_clean_policy(value) if "compact" in parse_list(value("cleanup.policy")) else None,
        retention_ms=int(value("retention.ms")),
        retention_bytes=int(value("retention.bytes")),
        deletable="delete" in parse_list(value("cleanup.policy")),
        store=value("storage.policy"),
        record_bytes_max=int(value("max.decompressed.message.bytes")),
    )
