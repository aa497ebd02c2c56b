"""Areas of settings about what clients use: connections, topics, reading, groups, transactions, client metrics."""

from dataclasses import dataclass
from typing import Literal

from anabranch.broker.node.settings.area import KIB, MIB, Area, Bytes, Port, setting


@dataclass(frozen=True, kw_only=True)
class ListenerSettings(Area):
    """The addresses that Kafka clients connect to."""

    host: str = setting(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = setting(default=9092, description="Port to listen on; 0: any free port.")
    advertised_host: str = setting(
        default="", description="Host name announced to clients. Empty: the address to listen on."
    )
    advertised_port: Port = setting(default=0, description="Port announced to clients; 0: the port to listen on.")
    listeners: str = setting(
        default="",
        description=(
            "Named listeners, NAME://HOST:PORT, separated by commas (Kafka: listeners). Without a host: all "
            "addresses; port 0: any free port. Empty: one listener PLAINTEXT at `listener.host` and `listener.port`."
        ),
    )
    advertised_listeners: str = setting(
        default="",
        description=(
            "Addresses announced to clients, NAME://HOST:PORT, separated by commas (Kafka: "
            "advertised.listeners). A listener that is not named announces its own address; port 0: its own "
            "port."
        ),
    )
    security_protocol_map: str = setting(
        default="",
        description=(
            "Protocols of listeners, NAME:PROTOCOL, separated by commas (Kafka: "
            "listener.security.protocol.map): PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL. A listener that bears "
            "the name of a protocol needs no entry."
        ),
    )
    sasl_mechanisms: str = setting(
        default="",
        description=(
            "SASL mechanisms of single listeners, NAME:MECHANISM, separated by commas, an entry for each "
            "(Kafka: listener.name.NAME.sasl.enabled.mechanisms), in place of `sasl.enabled_mechanisms`."
        ),
    )
    rack: str = setting(default="", description="Rack (or zone) of the node, as reported to clients.")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Area):
    """Limits on connections and requests."""

    request_bytes_max: Bytes = setting(
        default=100 * MIB,
        ge=1024,
        le=2**31 - 1,
        description="Largest request (Kafka: socket.request.max.bytes). A larger one closes its connection.",
    )
    requests_in_flight_max: int = setting(
        default=256, ge=1, description="Requests in flight of one connection. At the limit, its socket is not read."
    )
    connection_bytes_max: Bytes = setting(
        default=64 * MIB,
        ge=1024,
        description="Bytes of requests in flight of one connection. At the limit, its socket is not read.",
    )
    node_bytes_max: Bytes | None = setting(
        default=None,
        ge=1024,
        description=(
            "Bytes of requests in flight of all connections (Kafka: queued.max.request.bytes). At the limit, "
            "connections wait in order; 1/8 is reserved for requests of up to 64 KiB. Raised if request_bytes_max "
            "does not fit. Unset: 512MiB, less if memory is short."
        ),
    )
    frame_timeout_ms: int = setting(
        default=5_000,
        ge=10,
        description=(
            "While others wait for memory, a connection is closed unless it sends 1/10 of its current request "
            "in this time, or reads 1/10 of the responses that block it."
        ),
    )
    connections_max: int = setting(default=10_000, ge=1, description="Connections in total (Kafka: max.connections).")
    connections_per_address_max: int = setting(
        default=10_000, ge=1, description="Connections from one address (Kafka: max.connections.per.ip)."
    )
    idle_timeout_ms: int = setting(
        default=600_000,
        ge=10,
        description="Time after which an idle connection is closed (Kafka: connections.max.idle.ms).",
    )
    slab_pool_bytes: Bytes | None = setting(
        default=None,
        ge=4 * MIB,
        description=("Freed receive buffers that are kept for reuse. Unset: 256MiB, less if memory is short."),
    )


@dataclass(frozen=True, kw_only=True)
class TopicSettings(Area):
    """Defaults for topics. Configs of a topic, and broker configs set at run time, take precedence."""

    auto_create: bool = setting(
        default=True,
        description="Create a topic when a client requests its metadata (Kafka: auto.create.topics.enable).",
    )
    num_partitions: int = setting(
        default=1,
        ge=1,
        le=100_000,
        description="Partitions of a topic created without a number (Kafka: num.partitions).",
    )
    partitions_max: int = setting(default=10_000, ge=1, description="Partitions of all topics in total.")
    replication_factor: int = setting(
        default=1,
        ge=1,
        le=1_000,
        description="Replicas of a topic created without a number (Kafka: default.replication.factor), at most one on "
        "each node. They serve reads; the object store keeps the data, whatever their number.",
    )
    any_replication_factor: bool = setting(
        default=False,
        description=(
            "Accept replication factors above the number of nodes, as `anabranch dev` does: each node is a "
            "replica then."
        ),
    )
    max_message_bytes: Bytes = setting(
        default=1_048_588, ge=0, le=2**31 - 1, description="Largest record batch (Kafka: message.max.bytes)."
    )
    decompressed_bytes_max: Bytes | None = setting(
        default=None,
        ge=64 * KIB,
        le=2**31 - 1,
        description=(
            "Largest decompressed size of a batch whose records the node must read (compacted topics, a "
            "`compression.type` other than `producer`, unusual frames). A larger one is refused with "
            "MESSAGE_TOO_LARGE. Unset: 64MiB, less if memory is short."
        ),
    )
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = setting(
        default="CreateTime", description="Source of record timestamps (Kafka: log.message.timestamp.type)."
    )
    message_timestamp_after_max_ms: int = setting(
        default=3_600_000,
        ge=0,
        description="Limit for timestamps in the future (Kafka: log.message.timestamp.after.max.ms).",
    )
    message_timestamp_before_max_ms: int = setting(
        default=2**63 - 1,
        ge=0,
        description="Limit for timestamps in the past (Kafka: log.message.timestamp.before.max.ms).",
    )
    retention_ms: int = setting(
        default=604_800_000,
        ge=-1,
        description="Time that records are kept, by their timestamps; -1: forever (Kafka: log.retention.ms).",
    )
    retention_bytes: int = setting(
        default=-1,
        ge=-1,
        description="Bytes of each partition that are kept; -1: no limit (Kafka: log.retention.bytes).",
    )
    retention_check_interval_ms: int = setting(
        default=300_000,
        ge=10,
        description="Interval between retention checks (Kafka: log.retention.check.interval.ms).",
    )
    producer_id_expiration_ms: int = setting(
        default=86_400_000,
        ge=1000,
        description="Time after which the state of an idle producer is dropped (Kafka: producer.id.expiration.ms).",
    )


@dataclass(frozen=True, kw_only=True)
class FetchSettings(Area):
    """Limits on reading."""

    response_bytes_max: Bytes = setting(
        default=55 * MIB, ge=1024, description="Largest Fetch response (Kafka: fetch.max.bytes)."
    )
    sessions_max: int = setting(
        default=1000,
        ge=0,
        description="Number of incremental fetch sessions (Kafka: max.incremental.fetch.session.cache.slots).",
    )
    session_idle_ms: int = setting(default=120_000, ge=0, description="A session used within this time is not evicted.")
    replica_selector: Literal["rack", "leader"] = setting(
        default="rack",
        description="`rack`: a consumer reads from a replica in its `client.rack`, if there is one (KIP-392; Kafka: "
        "replica.selector.class). `leader`: from the leader only.",
    )


@dataclass(frozen=True, kw_only=True)
class GroupSettings(Area):
    """Groups and committed offsets."""

    session_timeout_min_ms: int = setting(
        default=6_000, ge=1, description="Shortest session timeout (Kafka: group.min.session.timeout.ms)."
    )
    session_timeout_max_ms: int = setting(
        default=1_800_000, ge=1, description="Longest session timeout (Kafka: group.max.session.timeout.ms)."
    )
    initial_rebalance_delay_ms: int = setting(
        default=3_000,
        ge=0,
        description="A new group waits this long for more members (Kafka: group.initial.rebalance.delay.ms).",
    )
    members_max: int = setting(default=10_000, ge=1, description="Members of one group (Kafka: group.max.size).")
    groups_max: int = setting(
        default=100_000,
        ge=1,
        description="Groups that a node coordinates. Each takes about 1 kB of memory, each committed offset 0.5 kB.",
    )
    consumer_session_timeout_ms: int = setting(
        default=45_000,
        ge=1,
        description="A member of a consumer group without a heartbeat for this long is removed (Kafka: "
        "group.consumer.session.timeout.ms).",
    )
    consumer_heartbeat_interval_ms: int = setting(
        default=5_000,
        ge=1,
        description="Heartbeat interval of members of a consumer group (Kafka: group.consumer.heartbeat.interval.ms).",
    )
    consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = setting(
        default="bidirectional",
        description="Directions in which a group with members may migrate between the two protocols (Kafka: "
        "group.consumer.migration.policy).",
    )
    consumer_session_timeout_min_ms: int = setting(
        default=45_000,
        ge=1,
        description="Shortest session timeout that a consumer group may set (Kafka: "
        "group.consumer.min.session.timeout.ms).",
    )
    consumer_session_timeout_max_ms: int = setting(
        default=60_000,
        ge=1,
        description="Longest session timeout that a consumer group may set (Kafka: "
        "group.consumer.max.session.timeout.ms).",
    )
    consumer_heartbeat_interval_min_ms: int = setting(
        default=5_000,
        ge=1,
        description="Shortest heartbeat interval that a consumer group may set (Kafka: "
        "group.consumer.min.heartbeat.interval.ms).",
    )
    consumer_heartbeat_interval_max_ms: int = setting(
        default=15_000,
        ge=1,
        description="Longest heartbeat interval that a consumer group may set (Kafka: "
        "group.consumer.max.heartbeat.interval.ms).",
    )
    consumer_assignment_interval_ms: int = setting(
        default=0,
        ge=0,
        description="Shortest time between two assignments of a consumer group; 0: each change is followed by one at "
        "once. Spares CPU while a large group starts (Kafka: group.consumer.assignment.interval.ms, 1000 there).",
    )
    consumer_assignment_interval_min_ms: int = setting(
        default=0,
        ge=0,
        description="Shortest such interval that a consumer group may set (Kafka: "
        "group.consumer.min.assignment.interval.ms).",
    )
    consumer_assignment_interval_max_ms: int = setting(
        default=15_000,
        ge=0,
        description="Longest such interval that a consumer group may set (Kafka: "
        "group.consumer.max.assignment.interval.ms).",
    )
    share_session_timeout_ms: int = setting(
        default=45_000,
        ge=1,
        description="A member of a share group without a heartbeat for this long is removed (Kafka: "
        "group.share.session.timeout.ms).",
    )
    share_session_timeout_min_ms: int = setting(
        default=45_000,
        ge=1,
        description="Shortest session timeout that a share group may set (Kafka: group.share.min.session.timeout.ms).",
    )
    share_session_timeout_max_ms: int = setting(
        default=60_000,
        ge=1,
        description="Longest session timeout that a share group may set (Kafka: group.share.max.session.timeout.ms).",
    )
    share_heartbeat_interval_ms: int = setting(
        default=5_000,
        ge=1,
        description="Heartbeat interval of members of a share group (Kafka: group.share.heartbeat.interval.ms).",
    )
    share_heartbeat_interval_min_ms: int = setting(
        default=5_000,
        ge=1,
        description="Shortest heartbeat interval that a share group may set (Kafka: "
        "group.share.min.heartbeat.interval.ms).",
    )
    share_heartbeat_interval_max_ms: int = setting(
        default=15_000,
        ge=1,
        description="Longest heartbeat interval that a share group may set (Kafka: "
        "group.share.max.heartbeat.interval.ms).",
    )
    share_assignment_interval_ms: int = setting(
        default=0,
        ge=0,
        description="Shortest time between two assignments of a share group; 0: each change is followed by one at "
        "once. Spares CPU while a large group starts (Kafka: group.share.assignment.interval.ms, 1000 there).",
    )
    share_assignment_interval_min_ms: int = setting(
        default=0,
        ge=0,
        description="Shortest such interval that a share group may set (Kafka: "
        "group.share.min.assignment.interval.ms).",
    )
    share_assignment_interval_max_ms: int = setting(
        default=15_000,
        ge=0,
        description="Longest such interval that a share group may set (Kafka: group.share.max.assignment.interval.ms).",
    )
    share_members_max: int = setting(
        default=200, ge=1, le=1000, description="Members of one share group (Kafka: group.share.max.size)."
    )
    share_sessions_max: int = setting(
        default=2_000,
        ge=1,
        description="Fetch sessions of share consumers on a node (Kafka: group.share.max.share.sessions).",
    )
    share_record_lock_duration_ms: int = setting(
        default=30_000,
        ge=1_000,
        le=3_600_000,
        description="A record that is not acknowledged for this long is delivered to another member of a share group "
        "(Kafka: group.share.record.lock.duration.ms).",
    )
    share_record_lock_duration_min_ms: int = setting(
        default=15_000,
        ge=1_000,
        le=30_000,
        description="Shortest lock of records that a share group may set (Kafka: "
        "group.share.min.record.lock.duration.ms).",
    )
    share_record_lock_duration_max_ms: int = setting(
        default=60_000,
        ge=30_000,
        le=3_600_000,
        description="Longest lock of records that a share group may set (Kafka: "
        "group.share.max.record.lock.duration.ms).",
    )
    share_delivery_count_limit: int = setting(
        default=5,
        ge=2,
        le=10,
        description="Deliveries of a record to a share group before it is given up (Kafka: "
        "group.share.delivery.count.limit).",
    )
    share_delivery_count_limit_min: int = setting(
        default=2,
        ge=2,
        le=5,
        description="Fewest deliveries of a record that a share group may set (Kafka: "
        "group.share.min.delivery.count.limit).",
    )
    share_delivery_count_limit_max: int = setting(
        default=10,
        ge=5,
        le=25,
        description="Most deliveries of a record that a share group may set (Kafka: "
        "group.share.max.delivery.count.limit).",
    )
    share_partition_record_locks_max: int = setting(
        default=2_000,
        ge=100,
        le=10_000,
        description="Records of a partition that are delivered to a share group and not acknowledged yet (Kafka: "
        "group.share.partition.max.record.locks).",
    )
    share_partition_record_locks_least: int = setting(
        default=100,
        ge=100,
        le=2_000,
        description="Lowest limit of such records that a share group may set (Kafka: "
        "group.share.min.partition.max.record.locks).",
    )
    share_partition_record_locks_most: int = setting(
        default=4_000,
        ge=2_000,
        le=10_000,
        description="Highest limit of such records that a share group may set (Kafka: "
        "group.share.max.partition.max.record.locks).",
    )
    share_initialize_retry_interval_ms: int = setting(
        default=30_000,
        ge=1,
        description="Time after which the state of a share group's partition is asked for again (Kafka: "
        "group.share.initialize.retry.interval.ms).",
    )
    streams_session_timeout_ms: int = setting(
        default=45_000,
        ge=1,
        description="A member of a streams group without a heartbeat for this long is removed (Kafka: "
        "group.streams.session.timeout.ms).",
    )
    streams_session_timeout_min_ms: int = setting(
        default=45_000,
        ge=1,
        description="Shortest session timeout that a streams group may set (Kafka: "
        "group.streams.min.session.timeout.ms).",
    )
    streams_session_timeout_max_ms: int = setting(
        default=60_000,
        ge=1,
        description="Longest session timeout that a streams group may set (Kafka: "
        "group.streams.max.session.timeout.ms).",
    )
    streams_heartbeat_interval_ms: int = setting(
        default=5_000,
        ge=1,
        description="Heartbeat interval of members of a streams group (Kafka: group.streams.heartbeat.interval.ms).",
    )
    streams_heartbeat_interval_min_ms: int = setting(
        default=5_000,
        ge=1,
        description="Shortest heartbeat interval that a streams group may set (Kafka: "
        "group.streams.min.heartbeat.interval.ms).",
    )
    streams_heartbeat_interval_max_ms: int = setting(
        default=15_000,
        ge=1,
        description="Longest heartbeat interval that a streams group may set (Kafka: "
        "group.streams.max.heartbeat.interval.ms).",
    )
    streams_members_max: int = setting(
        default=2_147_483_647, ge=1, description="Members of one streams group (Kafka: group.streams.max.size)."
    )
    streams_standby_replicas: int = setting(
        default=0,
        ge=0,
        description="Standby tasks of each stateful task of a streams group (Kafka: "
        "group.streams.num.standby.replicas).",
    )
    streams_standby_replicas_max: int = setting(
        default=2,
        ge=0,
        description="Most standby tasks that a streams group may set (Kafka: group.streams.max.standby.replicas).",
    )
    streams_initial_rebalance_delay_ms: int = setting(
        default=3_000,
        ge=0,
        description="Time that the first member of a streams group waits for others before tasks are assigned (Kafka: "
        "group.streams.initial.rebalance.delay.ms).",
    )
    streams_assignment_interval_ms: int = setting(
        default=1_000,
        ge=0,
        description="Shortest time between two assignments of a streams group (Kafka: "
        "group.streams.assignment.interval.ms).",
    )
    streams_assignment_interval_min_ms: int = setting(
        default=0,
        ge=0,
        description="Shortest such interval that a streams group may set (Kafka: "
        "group.streams.min.assignment.interval.ms).",
    )
    streams_assignment_interval_max_ms: int = setting(
        default=15_000,
        ge=0,
        description="Longest such interval that a streams group may set (Kafka: "
        "group.streams.max.assignment.interval.ms).",
    )
    streams_task_offset_interval_ms: int = setting(
        default=60_000,
        ge=1,
        description="Interval in which members of a streams group report how far they have restored state (Kafka: "
        "group.streams.task.offset.interval.ms).",
    )
    streams_task_offset_interval_min_ms: int = setting(
        default=15_000,
        ge=1,
        description="Shortest such interval that a streams group may set (Kafka: "
        "group.streams.min.task.offset.interval.ms).",
    )
    streams_acceptable_recovery_lag: int = setting(
        default=10_000,
        ge=0,
        description="Records by which restored state may lag for a member to count as caught up (Kafka: "
        "group.streams.acceptable.recovery.lag).",
    )
    streams_rack_aware_assignment_tags: str = setting(
        default="",
        description="Tags that clients of a streams group must have, separated by commas (Kafka: "
        "group.streams.rack.aware.assignment.tags).",
    )
    dead_letter_topic_prefix: str = setting(
        default="dlq.",
        description="Topics for undeliverable records of share groups must have names with this prefix (Kafka: "
        "errors.deadletterqueue.topic.name.prefix).",
    )
    dead_letter_topic_auto_create: bool = setting(
        default=False,
        description="Create missing topics for undeliverable records of share groups (Kafka: "
        "errors.deadletterqueue.auto.create.topics.enable).",
    )
    offsets_retention_ms: int = setting(
        default=7 * 86_400_000,
        ge=1,
        description="Time after which the offsets of an empty group are dropped (Kafka: offsets.retention.minutes).",
    )
    offsets_check_interval_ms: int = setting(
        default=600_000,
        ge=1,
        description="Interval between checks for expired offsets (Kafka: offsets.retention.check.interval.ms).",
    )
    offset_metadata_bytes_max: Bytes = setting(
        default=4096, ge=0, description="Largest metadata of an offset commit (Kafka: offset.metadata.max.bytes)."
    )
    offsets_partitions: int = setting(
        default=50,
        ge=1,
        description=(
            "Partitions of `__consumer_offsets` when it is created (Kafka: offsets.topic.num.partitions). A "
            "group's partition follows from its id, so the number cannot change later."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class TransactionSettings(Area):
    """Transactions."""

    timeout_max_ms: int = setting(
        default=900_000,
        ge=1,
        description="Longest transaction timeout that a producer may set (Kafka: transaction.max.timeout.ms).",
    )
    id_expiration_ms: int = setting(
        default=7 * 86_400_000,
        ge=1,
        description="Time after which an unused transactional id is dropped (Kafka: transactional.id.expiration.ms).",
    )
    abort_interval_ms: int = setting(
        default=10_000,
        ge=1,
        description="Interval between checks for transactions that have timed out "
        "(Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms).",
    )
    expire_interval_ms: int = setting(
        default=3_600_000,
        ge=1,
        description="Interval between checks for expired transactional ids "
        "(Kafka: transaction.remove.expired.transaction.cleanup.interval.ms).",
    )
    ids_max: int = setting(default=1_000_000, ge=50, description="Transactional ids that a node coordinates.")
    state_partitions: int = setting(
        default=50,
        ge=1,
        description="Partitions of `__transaction_state` when it is created "
        "(Kafka: transaction.state.log.num.partitions). It cannot change later.",
    )


@dataclass(frozen=True, kw_only=True)
class ShareSettings(Area):
    """Durable states of share groups (KIP-932)."""

    state_partitions: int = setting(
        default=50,
        ge=1,
        description="Partitions of `__share_group_state` when it is created "
        "(Kafka: share.coordinator.state.topic.num.partitions). It cannot change later.",
    )
    updates_per_snapshot: int = setting(
        default=500,
        ge=0,
        le=500,
        description="Changes of a share partition's state between two records with all of it "
        "(Kafka: share.coordinator.snapshot.update.records.per.snapshot).",
    )


@dataclass(frozen=True, kw_only=True)
class QuotaSettings(Area):
    """Measurement of the use of clients with quotas. Quotas are set while nodes run, with `anabranch quota`."""

    window_num: int = setting(
        default=11,
        ge=1,
        le=3_600,
        description="Windows over which rates are measured; the last one is not complete (Kafka: quota.window.num).",
    )
    window_size_seconds: int = setting(
        default=1, ge=1, le=3_600, description="Length of a window (Kafka: quota.window.size.seconds)."
    )
    controller_window_num: int = setting(
        default=11,
        ge=1,
        le=3_600,
        description="Windows whose creations and deletions of topics a client may make at once "
        "(Kafka: controller.quota.window.num).",
    )
    controller_window_size_seconds: int = setting(
        default=1, ge=1, le=3_600, description="Length of these (Kafka: controller.quota.window.size.seconds)."
    )
    clients_max: int = setting(
        default=10_000,
        ge=1,
        description="Clients whose use is measured, for each kind of quota. At the limit, the one that was idle for "
        "longest is dropped.",
    )


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(Area):
    """Metrics that clients push (KIP-714). The admin port exposes them, so `admin` must be enabled as well."""

    enabled: bool = setting(
        default=False,
        description=(
            "Collect metrics of clients. Off by default, because clients of librdkafka log a line about it at "
            "each start."
        ),
    )
    push_bytes_max: Bytes = setting(
        default=MIB,
        ge=1,
        le=64 * MIB,
        description="Largest push, before and after it is decompressed (Kafka: telemetry.max.bytes).",
    )
    clients_max: int = setting(
        default=16_384, ge=1, description="Clients whose state is kept. The least recently active one is dropped first."
    )
    series_max: int = setting(
        default=10_000,
        ge=1,
        description="Metric series of all clients in total. Further series are counted and dropped.",
    )
