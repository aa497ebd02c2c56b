"""Areas of settings about what clients use: connections, topics, reading, groups, transactions, client metrics."""

from typing import Literal

from pydantic import Field

from broker.settings.area import KIB, MIB, Area, Bytes, Port


class ListenerSettings(Area):
    """Where Kafka clients connect."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=9092, description="Port to listen on; 0 takes a free one.")
    advertised_host: str = Field(
        default="", description="Host name that clients are told to connect to; empty: the address listened on."
    )
    advertised_port: Port = Field(
        default=0, description="Port that clients are told to connect to; 0: the port listened on."
    )
    rack: str = Field(default="", description="Rack (or zone) of the node as clients see it.")


class NetworkSettings(Area):
    """Limits on connections and requests."""

    request_bytes_max: Bytes = Field(
        default=100 * MIB,
        ge=1024,
        le=2**31 - 1,
        description="Largest request accepted (Kafka: socket.request.max.bytes); a larger one closes its connection.",
    )
    requests_in_flight_max: int = Field(
        default=256, ge=1, description="Requests of one connection under way; its socket is not read beyond."
    )
    connection_bytes_max: Bytes = Field(
        default=64 * MIB, ge=1024, description="Bytes of requests of one connection under way; not read beyond."
    )
    node_bytes_max: Bytes | None = Field(
        default=None,
        ge=1024,
        description=(
            "Bytes of requests of all connections under way, those included that have only begun to come (Kafka: "
            "queued.max.request.bytes). Who finds no room waits, in order; an eighth is for requests of up to 64 KiB. "
            "What leaves less than request_bytes_max beside that is raised. Unset: 512MiB, or what memory allows."
        ),
    )
    frame_timeout_ms: int = Field(
        default=5_000,
        ge=10,
        description=(
            "While others wait for memory, a connection is closed that for this long has not sent a tenth of the "
            "request it is in the middle of, or read a tenth of the answers that hold it up. While nobody waits it "
            "may take its time. Who is being closed has so long to read some of what is left."
        ),
    )
    connections_max: int = Field(default=10_000, ge=1, description="Connections in all (Kafka: max.connections).")
    connections_per_address_max: int = Field(
        default=10_000, ge=1, description="Connections from one address (Kafka: max.connections.per.ip)."
    )
    idle_timeout_ms: int = Field(
        default=600_000, ge=10, description="An idle connection is closed after this (Kafka: connections.max.idle.ms)."
    )
    slab_pool_bytes: Bytes | None = Field(
        default=None,
        ge=4 * MIB,
        description=(
            "Memory kept for receiving after it was freed, to be used again. Unset: 256MiB, or what memory allows."
        ),
    )


class TopicSettings(Area):
    """Defaults for topics. A topic's own configs go before them, and so do broker configs set while nodes run."""

    auto_create: bool = Field(
        default=True,
        description="Create a topic when a client asks for its metadata (Kafka: auto.create.topics.enable).",
    )
    num_partitions: int = Field(
        default=1, ge=1, le=100_000, description="Partitions of a topic that does not say (Kafka: num.partitions)."
    )
    partitions_max: int = Field(default=10_000, ge=1, description="Partitions of all topics together.")
    max_message_bytes: Bytes = Field(
        default=1_048_588, ge=0, le=2**31 - 1, description="Largest record batch (Kafka: message.max.bytes)."
    )
    decompressed_bytes_max: Bytes | None = Field(
        default=None,
        ge=64 * KIB,
        le=2**31 - 1,
        description=(
            "What a record batch may unfold to where the node must look into it: in compacted topics, and those with a "
            "`compression.type` of their own. A batch that unfolds to more is refused with "
            "MESSAGE_TOO_LARGE. Unset: 64MiB, or what memory allows."
        ),
    )
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        default="CreateTime", description="Who sets the timestamp of records (Kafka: log.message.timestamp.type)."
    )
    message_timestamp_after_max_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="How far a timestamp may lie in the future (Kafka: log.message.timestamp.after.max.ms).",
    )
    message_timestamp_before_max_ms: int = Field(
        default=2**63 - 1,
        ge=0,
        description="How far a timestamp may lie in the past (Kafka: log.message.timestamp.before.max.ms).",
    )
    retention_ms: int = Field(
        default=-1,
        ge=-1,
        description="How long records are kept, by their timestamps; -1: for ever (Kafka: log.retention.ms).",
    )
    retention_bytes: int = Field(
        default=-1,
        ge=-1,
        description="How many bytes of each partition are kept; -1: no limit (Kafka: log.retention.bytes).",
    )
    retention_check_interval_ms: int = Field(
        default=300_000,
        ge=10,
        description="How often partitions are looked over for it (Kafka: log.retention.check.interval.ms).",
    )
    producer_id_expiration_ms: int = Field(
        default=86_400_000,
        ge=1000,
        description="An idle producer's sequence is forgotten after this (Kafka: producer.id.expiration.ms).",
    )


class FetchSettings(Area):
    """Limits on reading."""

    response_bytes_max: Bytes = Field(
        default=55 * MIB, ge=1024, description="Most bytes of one Fetch response (Kafka: fetch.max.bytes)."
    )
    sessions_max: int = Field(
        default=1000,
        ge=0,
        description="Incremental fetch sessions kept (Kafka: max.incremental.fetch.session.cache.slots).",
    )
    session_idle_ms: int = Field(
        default=120_000, ge=0, description="A session used within this time is not evicted for a new one."
    )


class GroupSettings(Area):
    """Consumer groups and committed offsets."""

    session_timeout_min_ms: int = Field(
        default=6_000, ge=1, description="Shortest session timeout (Kafka: group.min.session.timeout.ms)."
    )
    session_timeout_max_ms: int = Field(
        default=1_800_000, ge=1, description="Longest session timeout (Kafka: group.max.session.timeout.ms)."
    )
    initial_rebalance_delay_ms: int = Field(
        default=3_000,
        ge=0,
        description="A new group waits this long for more members (Kafka: group.initial.rebalance.delay.ms).",
    )
    members_max: int = Field(default=10_000, ge=1, description="Members of one group (Kafka: group.max.size).")
    consumer_session_timeout_ms: int = Field(
        default=45_000,
        ge=1,
        description="A member of a consumer group that is silent for this long is removed (Kafka: "
        "group.consumer.session.timeout.ms).",
    )
    consumer_heartbeat_interval_ms: int = Field(
        default=5_000,
        ge=1,
        description="How often members of a consumer group are asked to say that they are there (Kafka: "
        "group.consumer.heartbeat.interval.ms).",
    )
    consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = Field(
        default="bidirectional",
        description="Which way groups with members may go between the classic protocol and the new one (Kafka: "
        "group.consumer.migration.policy).",
    )
    consumer_session_timeout_min_ms: int = Field(
        default=45_000,
        ge=1,
        description="Shortest session timeout that a consumer group may choose for itself (Kafka: "
        "group.consumer.min.session.timeout.ms).",
    )
    consumer_session_timeout_max_ms: int = Field(
        default=60_000,
        ge=1,
        description="Longest one (Kafka: group.consumer.max.session.timeout.ms).",
    )
    consumer_heartbeat_interval_min_ms: int = Field(
        default=5_000,
        ge=1,
        description="Shortest heartbeat interval that a consumer group may choose for itself (Kafka: "
        "group.consumer.min.heartbeat.interval.ms).",
    )
    consumer_heartbeat_interval_max_ms: int = Field(
        default=15_000,
        ge=1,
        description="Longest one (Kafka: group.consumer.max.heartbeat.interval.ms).",
    )
    offsets_retention_ms: int = Field(
        default=7 * 86_400_000,
        ge=1,
        description="Offsets of an empty group are dropped after this (Kafka: offsets.retention.minutes).",
    )
    offsets_check_interval_ms: int = Field(
        default=600_000,
        ge=1,
        description="How often offsets are looked over (Kafka: offsets.retention.check.interval.ms).",
    )
    offset_metadata_bytes_max: int = Field(
        default=4096, ge=0, description="Largest metadata of a commit (Kafka: offset.metadata.max.bytes)."
    )
    offsets_partitions: int = Field(
        default=50,
        ge=1,
        description="Partitions of `__consumer_offsets` when it is created (Kafka: offsets.topic.num.partitions). "
        "A group belongs to the partition its id hashes to, so it cannot change later; idle ones cost next to nothing.",
    )


class TransactionSettings(Area):
    """Transactions."""

    timeout_max_ms: int = Field(
        default=900_000,
        ge=1,
        description="Longest time a producer may ask for a transaction (Kafka: transaction.max.timeout.ms).",
    )
    id_expiration_ms: int = Field(
        default=7 * 86_400_000,
        ge=1,
        description="A transactional id not used for this long is forgotten (Kafka: transactional.id.expiration.ms).",
    )
    abort_interval_ms: int = Field(
        default=10_000,
        ge=1,
        description="How often transactions that have had their time are looked for "
        "(Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms).",
    )
    expire_interval_ms: int = Field(
        default=3_600_000,
        ge=1,
        description="How often unused transactional ids are looked for "
        "(Kafka: transaction.remove.expired.transaction.cleanup.interval.ms).",
    )
    ids_max: int = Field(default=1_000_000, ge=50, description="Transactional ids kept, all together.")
    state_partitions: int = Field(
        default=50,
        ge=1,
        description="Partitions of `__transaction_state` when it is created "
        "(Kafka: transaction.state.log.num.partitions). It cannot change later.",
    )


class TelemetrySettings(Area):
    """Metrics that clients push (KIP-714). They show beside the node's own, so `admin` must be on, too."""

    enabled: bool = Field(
        default=False,
        description="Ask clients for their metrics. Off as in Apache Kafka without a metrics plug-in: clients of "
        "librdkafka write a line about it at each start.",
    )
    push_bytes_max: Bytes = Field(
        default=MIB,
        ge=1,
        le=64 * MIB,
        description="Largest push, before and after it is decompressed (Kafka: telemetry.max.bytes).",
    )
    clients_max: int = Field(
        default=16_384, ge=1, description="Clients remembered; the one not heard of for longest is forgotten first."
    )
    series_max: int = Field(
        default=10_000, ge=1, description="Series of clients kept, all together; what is more is counted and dropped."
    )
