"""All settings of a node: one frozen model per area, each field with its unit in its name, a default and a description.

These models are the one source: flags and help (`broker.cli.serve`), environment and TOML names, validation and
`docs/configuration.md` are derived from them (`broker.settings.sources`). A field's outside name is its area and its
name (`wal.capacity_bytes`, `--wal-capacity-bytes`, `ANABRANCH_WAL_CAPACITY_BYTES`); the areas `node` and `listener`
are left out of flag and environment names. Additional object stores bear names of the user's choice: each has a
table `[stores.NAME]`, and variables `ANABRANCH_STORE_NAME_FIELD`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": 1 << 40, "tib": 1 << 40}


def _parse_bytes(value: object) -> object:
    """Accept `512MiB` and the like beside plain numbers."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            return int(match[1]) * _UNITS[match[2].lower()]
        raise ValueError("should be a whole number of bytes, or one with a unit (KiB, MiB, GiB, TiB) as in 512MiB")
    return value


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Area(BaseModel):
    """A group of settings. Values never change after start; an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _take_truth_for_truth_only(cls, value: object, info: ValidationInfo) -> object:
        """Python takes true for 1: whoever writes it where a number belongs means something else."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("should be a number or a text, not true or false")
        return value


class NodeSettings(Area):
    """Who this node is and where it keeps its files."""

    node_id: int = Field(default=1, ge=0, le=2**31 - 1, description="Id of this node, unique in the cluster.")
    cluster: str = Field(
        default="anabranch",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of the cluster: the same on all its nodes, part of every object's key.",
    )
    data_dir: Path = Field(
        default=Path("data"),
        description="Directory for everything that has no place of its own: WAL file, objects, catalog, lock file.",
    )
    memory_bytes: Bytes | None = Field(
        default=None,
        ge=64 * MIB,
        description=(
            "Memory that the node may use; unset: the limit of its container (control group), or the machine's memory. "
            "Half of it is shared out: see Memory below. Set it for each of several nodes on a host."
        ),
    )
    drain_timeout_ms: int = Field(
        default=10_000, ge=0, description="How long a stopping node waits for requests under way."
    )
    stop_upload_timeout_ms: int = Field(
        default=15_000,
        ge=0,
        description=(
            "How long a stopping node tries to upload what is left; after that, the next start finds it in the WAL."
        ),
    )


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


class WalSettings(Area):
    """The write-ahead log: what is acknowledged is in it until it is in an object."""

    path: Path | None = Field(
        default=None, description="File or block device of the log; unset: `wal` in the data directory."
    )
    capacity_bytes: Bytes = Field(
        default=GIB,
        ge=8 * MIB,
        description=(
            "Size of the log, fixed when it is made: a file is allocated in full at the first start, of a device this "
            "much is used. `anabranch wal resize` changes it."
        ),
    )
    durability: Literal["auto", "flush", "direct"] = Field(
        default="auto",
        description=(
            "How a write is made durable: `flush` (each write reaches stable media before its ack), `direct` "
            "(O_DIRECT alone, the device's own cache is trusted), `auto` (flush unless the device says that it has no "
            "volatile cache)."
        ),
    )
    iops_max: int = Field(
        default=0,
        ge=0,
        description=(
            "Writes a second at most, for a disk with a free allowance (an EBS gp3 volume: 3000); a write of more than "
            "256 KiB counts for several; 0: no limit."
        ),
    )
    bandwidth_bytes_max: Bytes = Field(
        default=0, ge=0, description="Bytes written a second at most (an EBS gp3 volume: 125 MiB); 0: no limit."
    )
    fencing: Literal["auto", "strict", "local"] = Field(
        default="auto",
        description=(
            "How another owner of the log is noticed: `strict` (the header is read again before each ack), `local` "
            "(after writes of the header; a lock keeps other processes of this host away), `auto` (strict for a block "
            "device that other hosts may attach)."
        ),
    )
    format: bool = Field(
        default=False, description="Format a device that holds something else, destroying what it holds."
    )
    allow_volatile: bool = Field(
        default=False,
        description=(
            "Make the log's file even in memory (tmpfs, ramfs) or in a container's own layer (overlay), where a reboot "
            "or the container's end takes acknowledged records with it: for tests."
        ),
    )


class StorageSettings(Area):
    """From the log to objects, and reading them back."""

    upload_bytes: Bytes | None = Field(
        default=None,
        ge=64 * KIB,
        description=(
            "Data collected before an upload starts; unset: a third of the WAL or of the log cache, at most 512 MiB."
        ),
    )
    upload_age_ms: int = Field(default=60_000, ge=10, description="Data is uploaded at this age at the latest.")
    split_bytes: Bytes = Field(
        default=8 * MIB, ge=64 * KIB, description="A run of one partition of this size gets an object of its own."
    )
    log_cache_bytes: Bytes | None = Field(
        default=None,
        ge=MIB,
        description=(
            "Memory for what was written last, uploaded or not; appends wait at the limit. Unset: 768MiB, or what "
            "memory allows."
        ),
    )
    block_cache_bytes: Bytes | None = Field(
        default=None,
        ge=MIB,
        description="Memory for blocks read from objects. Unset: 256MiB, or what memory allows.",
    )
    delete_delay_ms: int = Field(
        default=600_000, ge=0, description="A replaced object is deleted this much later: readers are done by then."
    )
    prepare_ttl_ms: int = Field(
        default=3_600_000,
        ge=1000,
        description="An upload not committed this long after its begin is given up; its objects are deleted.",
    )
    gc_period_ms: int = Field(
        default=60_000, ge=10, description="How often objects that nobody needs any more are looked for."
    )


class ObjectsSettings(Area):
    """Where objects are kept."""

    store: Literal["local", "s3"] = Field(default="local", description="Kind of object store.")
    path: Path | None = Field(
        default=None, description="Directory of a local store; unset: `objects` in the data directory."
    )
    bucket: str = Field(
        default="",
        description=(
            "Bucket of an S3 store; it must exist. Give it a life-cycle rule that aborts multipart uploads left "
            "incomplete for a day: one that a crash leaves in its first moment is known to nobody."
        ),
    )
    endpoint: str = Field(default="", description="Address of the S3 service; empty: Amazon's for the region.")
    region: str = Field(default="us-east-1", description="Region of the bucket.")
    path_style: bool = Field(default=True, description="Address the bucket in the path rather than in the host name.")


class NamedStoreSettings(Area):
    """One more object store, `[stores.NAME]`."""

    type: Literal["local", "s3"] = Field(description="Kind of object store.")
    path: Path | None = Field(default=None, description="Directory of a local store.")
    bucket: str = Field(default="", description="Bucket of an S3 store; it must exist.")
    endpoint: str = Field(default="", description="Address of the S3 service; empty: Amazon's for the region.")
    region: str = Field(default="us-east-1", description="Region of the bucket.")
    path_style: bool = Field(default=True, description="Address the bucket in the path rather than in the host name.")


class CatalogSettings(Area):
    """The metadata of topics, streams and objects."""

    url: str = Field(
        default="",
        description="Database of the catalog; empty: the SQLite file `catalog.db` in the data directory.",
    )
    lease_ms: int = Field(default=30_000, ge=1000, description="A node not heard of for this long counts as gone.")


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


class CompactionSettings(Area):
    """Rewriting small objects into large ones."""

    enabled: bool = Field(default=True, description="Compact on a timer; on demand it can always be asked for.")
    period_ms: int = Field(
        default=20 * 60_000, ge=100, description="Time between two runs; a backlog of objects starts one earlier."
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


class AdminSettings(Area):
    """The HTTP port for metrics, status and maintenance. It has no authentication: keep it on loopback."""

    enabled: bool = Field(default=True, description="Open the port.")
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=9644, description="Port to listen on; 0 takes a free one.")


class LogSettings(Area):
    """What the node says on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level shown.")
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto", description="`auto`: pretty on a terminal, JSON otherwise."
    )


class Settings(Area):
    """Everything a node is told at its start."""

    node: NodeSettings = NodeSettings()
    listener: ListenerSettings = ListenerSettings()
    network: NetworkSettings = NetworkSettings()
    wal: WalSettings = WalSettings()
    storage: StorageSettings = StorageSettings()
    objects: ObjectsSettings = ObjectsSettings()
    catalog: CatalogSettings = CatalogSettings()
    topic: TopicSettings = TopicSettings()
    fetch: FetchSettings = FetchSettings()
    group: GroupSettings = GroupSettings()
    transaction: TransactionSettings = TransactionSettings()
    compaction: CompactionSettings = CompactionSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    stores: Mapping[str, NamedStoreSettings] = {}
    """Object stores beside that of `objects`, by name."""

    @property
    def wal_path(self) -> Path:
        """Where the log lies."""
        return self.wal.path or self.node.data_dir / "wal"

    @property
    def objects_path(self) -> Path:
        """Where a local object store lies."""
        return self.objects.path or self.node.data_dir / "objects"

    @property
    def catalog_url(self) -> str:
        """Where the catalog lies."""
        return self.catalog.url or f"sqlite:///{(self.node.data_dir / 'catalog.db').resolve()}"

    @property
    def one_machine(self) -> bool:
        """Whether all processes that use the catalog are on one machine, as SQLite's must be."""
        return self.catalog_url.startswith("sqlite")
