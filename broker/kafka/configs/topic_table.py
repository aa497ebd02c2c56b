"""Definitions of the topic configs under Kafka's names: type, default, allowed values, documentation.

CreateTopics and AlterConfigs validate by this table, and DescribeConfigs answers from it. Configs of Kafka that have no
effect here are accepted, because tools set them. Their documentation notes it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from anabranch.broker.kafka.configs.definitions import LONG_MAX, ConfigDef, ConfigType
from anabranch.protocol.record_scan import RECORD_BYTES_MAX

DEAD_LETTER_ENABLE: Final = "errors.deadletterqueue.group.enable"
"""Config of a topic that share groups may write dead letters to."""
_NO_EFFECT = " Accepted for compatibility; it has no effect here: "
_SEGMENTS = _NO_EFFECT + "data is kept in objects, not in segment files."
_ONE_COPY = _NO_EFFECT + "replicas have no copies; durability comes from the log device and the object store."
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
    return ConfigDef(name, kind, default, documentation, broker, setting, choices, low, high)


_REPLICA = "[0-9]+:[0-9]+"
_B, _S, _I, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _table_part(part: str, records: str) -> tuple[ConfigDef, ...]:
    """Return the configs that say what the table's columns for keys or values are."""
    name = f"table.{part}"
    return (
        _def(
            name,
            _S,
            "raw",
            f"What {records} are, for the columns of the topic's table: `raw` bytes, `json`, `avro`, `protobuf`, or "
            "`auto`, the format of the subject's newest schema in the registry.",
            choices=("raw", "json", "avro", "protobuf", "auto"),
        ),
        _def(
            f"{name}.encodings",
            _S,
            "",
            f"What numbers and texts of some fields stand for, if {records} are JSON with a schema: an object by "
            'field, such as `{"at": "milliseconds", "day": "%d/%m/%Y"}`.',
        ),
        _def(
            f"{name}.framing",
            _S,
            "",
            f"Place of the id of the schema of {records}: `none`, `confluent` (before them), `confluent-header`, "
            "`apicurio-8-byte`, `apicurio-header` or `glue`. Empty: `confluent` if the schema is in the registry, else "
            "`none`.",
        ),
        _def(
            f"{name}.message",
            _S,
            "",
            f"Full name of the message, if {records} are protobuf; empty: the first one of the schema.",
        ),
        _def(
            f"{name}.schema",
            _S,
            "",
            f"Schema of {records}: the text of a JSON Schema or of an Avro schema; of protobuf, a descriptor set in "
            "base64. Empty: that of the registry, or for `json` without a subject, none.",
        ),
        _def(
            f"{name}.subject",
            _S,
            "",
            f"Subject of {records} in the schema registry; empty: the topic's name and `-{part}`.",
        ),
    )


_TOPIC_DEFS = (
    _def(
        "cleanup.policy",
        _LIST,
        "delete",
        "How old records are removed: by age and size (`delete`) or by key (`compact`, which requires keys).",
        broker="log.cleanup.policy",
        choices=("compact", "delete"),
    ),
    _def(
        "compression.type",
        _S,
        "producer",
        "Codec of stored batches. `producer` keeps the producer's codec; with any other the node recompresses.",
        broker="compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    replace(
        _def(
            "compression.gzip.level",
            _I,
            "-1",
            "Level if the type is gzip; -1: gzip's default.",
            broker="compression.gzip.level",
            low=1,
            high=9,
        ),
        also_allowed=-1,
    ),
    _def(
        "compression.lz4.level",
        _I,
        "9",
        "Level if the type is lz4.",
        broker="compression.lz4.level",
        low=1,
        high=17,
    ),
    _def(
        "compression.zstd.level",
        _I,
        "3",
        "Level if the type is zstd.",
        broker="compression.zstd.level",
        low=-131072,
        high=22,
    ),
    _def(
        "delete.retention.ms",
        _L,
        "86400000",
        "Time for which delete markers of a compacted topic are kept.",
        broker="log.cleaner.delete.retention.ms",
        low=0,
    ),
    _def(
        DEAD_LETTER_ENABLE,
        _B,
        "false",
        "Let share groups write records to this topic that cannot be delivered.",
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
        _def("follower.replication.throttled.replicas", _LIST, "", "Throttled replicas." + _ONE_COPY),
        item_pattern=_REPLICA,
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
        _def("leader.replication.throttled.replicas", _LIST, "", "Throttled replicas." + _ONE_COPY),
        item_pattern=_REPLICA,
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
        "Age at which a record is compacted, whatever the dirty ratio; its data is uploaded early for this. No "
        "partition is compacted more often than every 15 seconds.",
        broker="log.cleaner.max.compaction.lag.ms",
        low=1,
    ),
    _def(
        "max.decompressed.message.bytes",
        _I,
        str(RECORD_BYTES_MAX),
        "The largest size of a record in a compressed batch, without its length. Below its default, compressed batches "
        "are decompressed when they arrive.",
        broker="max.decompressed.message.bytes",
        low=1,
        high=RECORD_BYTES_MAX,
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
        "Maximum by which a record's timestamp may be after the broker's time; ignored with LogAppendTime.",
        broker="log.message.timestamp.after.max.ms",
        setting=("topic", "message_timestamp_after_max_ms"),
        low=0,
    ),
    _def(
        "message.timestamp.before.max.ms",
        _L,
        str(LONG_MAX),
        "Maximum by which a record's timestamp may be before the broker's time; ignored with LogAppendTime.",
        broker="log.message.timestamp.before.max.ms",
        setting=("topic", "message_timestamp_before_max_ms"),
        low=0,
    ),
    _def(
        "message.timestamp.type",
        _S,
        "CreateTime",
        "Timestamp of a record: its creation time, or the time of the append.",
        broker="log.message.timestamp.type",
        setting=("topic", "message_timestamp_type"),
        choices=("CreateTime", "LogAppendTime"),
    ),
    _def(
        "min.cleanable.dirty.ratio",
        _D,
        "0.5",
        "Ratio of uncompacted data at which the log is compacted, within seconds. Data counts once it is in stream "
        "objects: after 8 MiB, after two hours, or after `segment.ms`, whichever is first.",
        broker="log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    ),
    _def(
        "min.compaction.lag.ms",
        _L,
        "0",
        "Minimum time for which a record stays uncompacted; an object waits until its newest record is this old.",
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
    _def(
        "remote.copy.lag.bytes",
        _L,
        "-1",
        "Newer bytes after which a segment is copied to remote storage." + _NO_TIERS,
        broker="log.remote.copy.lag.bytes",
        low=-1,
    ),
    _def(
        "remote.copy.lag.ms",
        _L,
        "0",
        "Age at which a segment is copied to remote storage." + _NO_TIERS,
        broker="log.remote.copy.lag.ms",
        low=-1,
    ),
    _def("remote.log.copy.disable", _B, "false", "Stop copying to remote storage." + _NO_TIERS),
    _def("remote.log.delete.on.disable", _B, "false", "Delete remote data when it is disabled." + _NO_TIERS),
    _def("remote.storage.enable", _B, "false", "Tiered storage." + _NO_TIERS),
    _def(
        "retention.bytes",
        _L,
        "-1",
        "Bytes of a partition that are kept; -1: no limit. Whole blocks of batches (about 512 KiB) are deleted from "
        "the start as long as the rest is not below the limit. Data that is not in objects yet counts, and is kept.",
        broker="log.retention.bytes",
        setting=("topic", "retention_bytes"),
    ),
    _def(
        "retention.ms",
        _L,
        "604800000",
        "Time for which records are kept, by their timestamps; -1: forever. Whole batches are deleted, from the start.",
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
    _def(
        "segment.ms",
        _L,
        "604800000",
        "Age of segment rolls. On a topic with `compact`: age at which data is uploaded to stream objects, where it "
        "can be compacted. No effect on other topics: data is kept in objects, not in segment files.",
        broker="log.roll.ms",
        low=1,
    ),
    _def(
        "storage.policy",
        _S,
        "local",
        "Name of the object store for this topic's data: `local` or `s3`, as set in the node's `objects`, or one of "
        "its `stores`. Data that is in objects already stays in its store until compaction rewrites it.",
        broker="log.storage.policy",
        setting=("objects", "store"),
    ),
    _def(
        "table.commit.interval.ms",
        _L,
        "60000",
        "Longest time for which a committed record waits until a snapshot of the topic's table has it.",
        low=1000,
    ),
    _def(
        "table.compression.type",
        _S,
        "zstd",
        "Compression of the table's data files. Files that are written already keep theirs until they are joined.",
        choices=("zstd", "lz4", "snappy", "gzip", "none"),
    ),
    _def(
        "table.enable",
        _B,
        "false",
        "Keep the topic's committed records as an Iceberg table of the same name, too. Needs anabranch[tables].",
    ),
    *_table_part("key", "keys"),
    _def(
        "table.publish",
        _S,
        "",
        "Catalog that shows the table, too: the name of one of the node's `table_catalogs`. Empty: none.",
    ),
    _def(
        "table.retention",
        _S,
        "topic",
        "What becomes of rows whose records the topic has left. With `keep` they stay, and the table outlives its "
        "topic. It counts when the table is created; a later change changes nothing.",
        choices=("topic", "keep"),
    ),
    _def(
        "table.snapshot.retention.ms",
        _L,
        "86400000",
        "Time for which a snapshot of the table can be read after another one has replaced it.",
        low=0,
    ),
    _def(
        "table.target.file.bytes",
        _L,
        "268435456",
        "Size that the table's data files are joined to.",
        low=1 << 20,
    ),
    *_table_part("value", "values"),
    _def(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Let an out-of-date replica lead." + _ONE_COPY,
        broker="unclean.leader.election.enable",
    ),
)
TOPIC_CONFIGS: Mapping[str, ConfigDef] = {row.name: row for row in _TOPIC_DEFS}
