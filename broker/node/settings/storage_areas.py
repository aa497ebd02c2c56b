"""Areas of settings about the log, the objects and the catalog.

`WalArea`, `StorageArea` and `CompactionArea` choose values of the settings of a package below the broker
(`wal.settings`, `s3stream.settings`, `compaction.settings`). Defaults are stated in the package, and taken from there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anabranch.broker.node.settings.area import CENTURY_MS, KIB, MIB, Area, Bytes, setting
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.settings import GcSettings, StorageSettings
from anabranch.s3stream.store.protection import BucketProtection, SseAlgorithm
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.settings import Durability, EngineName, Fencing, WalSettings

TakeoverSetting = Literal["auto", "shared", "machine", "none"]
_WAL, _STORAGE, _GC, _COMPACTION = WalSettings(), StorageSettings(), GcSettings(), CompactionSettings()
_OBJECT_WAL = ObjectWalSettings()
"""Values with every default."""


@dataclass(frozen=True, kw_only=True)
class WalArea(Area):
    """The write-ahead log (WAL), which holds acknowledged records until they are in objects."""

    kind: Literal["device", "object"] = setting(
        default="device",
        description=(
            "Kind of log: `device` (a file or block device: an ack takes one write), `object` (batches are "
            "objects: an ack takes one PUT, and nothing is lost with the machine)."
        ),
    )
    path: Path | None = setting(
        default=None, description="File or block device of the log. Unset: the file `wal` in the data directory."
    )
    store: str = setting(default="", description="Kind `object`: store of the log. Empty: `objects.store`.")
    batch_ms: int = setting(
        default=_OBJECT_WAL.batch_ms,
        ge=0,
        le=60_000,
        description="Kind `object`: longest wait for more records while other batches are on their way.",
    )
    put_interval_ms: int = setting(
        default=_OBJECT_WAL.put_interval_ms,
        ge=0,
        le=60_000,
        description=(
            "Kind `object`: shortest time between batches that are not full. It bounds the PUTs a second, and "
            "the acks of a client that waits for each."
        ),
    )
    batch_bytes_max: Bytes = setting(
        default=_OBJECT_WAL.batch_bytes_max,
        ge=64 * KIB,
        le=256 * MIB,
        description="Kind `object`: size at which a batch is put.",
    )
    puts_in_flight: int = setting(
        default=_OBJECT_WAL.puts_in_flight,
        ge=1,
        le=64,
        description="Kind `object`: batches on their way to the store at one time.",
    )
    objects_max: int = setting(
        default=_OBJECT_WAL.objects_max,
        ge=256,
        le=1 << 20,
        description=(
            "Kind `object`: objects whose records are in no other object yet, which a recovery reads. Uploads "
            "start at 1/16 of the number; at the number appends wait."
        ),
    )
    capacity_bytes: Bytes = setting(
        default=_WAL.capacity_bytes,
        ge=8 * MIB,
        description=(
            "Size of the log, fixed when it is created (`anabranch wal resize` changes it). Kind `object`: limit of "
            "bytes that are in no other object yet, which may change at any start."
        ),
    )
    stall_ms: int = setting(
        default=_STORAGE.stall_ms,
        ge=100,
        le=CENTURY_MS,
        description=(
            "Time that a record may wait for its acknowledgement by the log. Then the node refuses new ones "
            "with NOT_ENOUGH_REPLICAS. Keep it well below the clients' `request.timeout.ms`."
        ),
    )
    durability: Durability = setting(
        default=_WAL.durability,
        description=(
            "`flush` (each write reaches stable media before its ack), `direct` (O_DIRECT only, which trusts "
            "the device's cache), `auto` (`flush`, unless the device reports that it has no volatile cache)."
        ),
    )
    engine: EngineName = setting(
        default=_WAL.engine,
        description=(
            "Mechanism that writes the log: `io_uring` (the fastest; no start where kernel or seccomp profile "
            "forbid it), `threads` (works everywhere), `auto` (`io_uring` where it works)."
        ),
    )
    iops_max: int = setting(
        default=_WAL.iops_max,
        ge=0,
        description=(
            "Limit of writes per second, for a disk with an allowance (an EBS gp3 volume: 3000). A write of more than "
            "256 KiB counts as several. 0: no limit."
        ),
    )
    bandwidth_bytes_max: Bytes = setting(
        default=_WAL.bandwidth_bytes_max,
        ge=0,
        description="Limit of bytes written per second (an EBS gp3 volume: 125 MiB). 0: no limit.",
    )
    fencing: Fencing = setting(
        default=_WAL.fencing,
        description=(
            "Detection of another owner: `strict` (the header is read before each ack), `local` (the header "
            "is read after it is written; a lock excludes other processes of this host), `auto` (`strict` for "
            "a block device that other hosts may attach, else `local`)."
        ),
    )
    takeover: TakeoverSetting = setting(
        default="auto",
        description=(
            "Who recovers the log when this node is dead: `machine` (nodes on the same machine, once its "
            "process has ended), `shared` (all nodes that can open the device at this path; fencing is strict "
            "then), `none` (this node only), `auto` (`shared` for a block device that other hosts may "
            "attach, else `machine`)."
        ),
    )
    format: bool = setting(
        default=_WAL.format, description="Format a file or device that has other content. The content is destroyed."
    )
    allow_volatile: bool = setting(
        default=_WAL.allow_volatile,
        description=(
            "Create the log's file even in memory (tmpfs, ramfs) or a container's writable layer (overlay), "
            "which acknowledged records do not survive. With durability `direct`, do not flush where O_DIRECT is "
            "refused, either. For tests only."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class StorageArea(Area):
    """Uploads from the log to objects, caches, and deletion of objects."""

    upload_bytes: Bytes | None = setting(
        default=_STORAGE.upload_threshold_bytes,
        ge=64 * KIB,
        description=(
            "An upload starts when this much data waits. Unset: 1/3 of the WAL or of the log cache, at most 512 MiB."
        ),
    )
    upload_age_ms: int = setting(
        default=_STORAGE.upload_age_ms, ge=10, description="An upload starts when the oldest waiting data is this old."
    )
    split_bytes: Bytes = setting(
        default=_STORAGE.split_bytes,
        ge=64 * KIB,
        description="Size from which the data of one partition gets a separate object.",
    )
    log_cache_bytes: Bytes | None = setting(
        default=None,
        ge=MIB,
        description=(
            "Memory for the newest data, uploaded or not. Appends wait at the limit. Unset: 768MiB, less if memory is "
            "short."
        ),
    )
    block_cache_bytes: Bytes | None = setting(
        default=None,
        ge=MIB,
        description="Memory for blocks read from objects. Unset: 256MiB, less if memory is short.",
    )
    delete_delay_ms: int = setting(
        default=_STORAGE.delete_delay_ms,
        ge=0,
        le=CENTURY_MS,
        description="Delay before a replaced object is deleted, so that readers can finish.",
    )
    prepare_ttl_ms: int = setting(
        default=_STORAGE.prepare_ttl_ms,
        ge=1000,
        le=CENTURY_MS,
        description="Time after which an uncommitted upload is abandoned and its objects are deleted.",
    )
    gc_period_ms: int = setting(
        default=_GC.period_ms, ge=10, description="Interval between searches for objects that are no longer needed."
    )


@dataclass(frozen=True, kw_only=True)
class BucketArea(Area):
    """Address, encryption and owner of a bucket, for `[objects]` and `[stores.NAME]` (`BucketProtection`)."""

    endpoint: str = setting(default="", description="URL of the S3 service. Empty: Amazon's for the region.")
    region: str = setting(default="us-east-1", description="Region of the bucket.")
    path_style: bool = setting(default=True, description="Put the bucket in the path of URLs instead of the host name.")
    sse_algorithm: SseAlgorithm = setting(
        default="",
        description=(
            "Encryption of objects by the S3 service: `AES256` (SSE-S3), `aws:kms` (SSE-KMS), `aws:kms:dsse`. Empty: "
            "the bucket's default. Objects that exist stay as they are."
        ),
    )
    sse_kms_key_id: str = setting(
        default="", description="Id or ARN of the KMS key. Empty: that of the bucket's default, or of the account."
    )
    sse_kms_context: str = setting(
        default="", description="Encryption context of the KMS key, as `NAME=VALUE,...`. It is not secret."
    )
    sse_bucket_key_enabled: bool | None = setting(
        default=None,
        description=(
            "Whether S3 uses one key of KMS for many objects, which takes fewer calls. Unset: as the bucket has it."
        ),
    )
    expected_bucket_owner: str = setting(
        default="",
        description=("Id of the account that the bucket must belong to. Empty: any account."),
    )

    @property
    def protection(self) -> BucketProtection:
        """The settings as the store takes them."""
        return BucketProtection(
            self.sse_algorithm,
            self.sse_kms_key_id,
            self.sse_kms_context,
            self.sse_bucket_key_enabled,
            self.expected_bucket_owner,
        )


@dataclass(frozen=True, kw_only=True)
class _ObjectsPlace(Area):
    """Kind and address of the default object store."""

    store: Literal["local", "s3"] = setting(default="local", description="Kind of object store.")
    path: Path | None = setting(
        default=None, description="Directory of a local store. Unset: `objects` in the data directory."
    )
    bucket: str = setting(
        default="",
        description=(
            "Bucket of an S3 store; it must exist. Give it a life-cycle rule that aborts multipart uploads after a day."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ObjectsSettings(BucketArea, _ObjectsPlace):
    """The default object store."""


@dataclass(frozen=True, kw_only=True)
class _NamedStorePlace(Area):
    """Kind and address of an additional object store."""

    type: Literal["local", "s3"] = setting(description="Kind of object store.")
    path: Path | None = setting(default=None, description="Directory of a local store.")
    bucket: str = setting(default="", description="Bucket of an S3 store; it must exist.")


@dataclass(frozen=True, kw_only=True)
class NamedStoreSettings(BucketArea, _NamedStorePlace):
    """An additional object store, `[stores.NAME]`."""


@dataclass(frozen=True, kw_only=True)
class CatalogSettings(Area):
    """The database of metadata: topics, streams and objects."""

    url: str = setting(
        default="",
        description="Database of the catalog. Empty: the SQLite file `catalog.db` in the data directory.",
    )
    lease_ms: int = setting(
        default=30_000,
        ge=1000,
        le=CENTURY_MS,
        description="Time without a sign of life after which a node counts as gone.",
    )


@dataclass(frozen=True, kw_only=True)
class CompactionArea(Area):
    """Compaction: rewriting small objects into large ones."""

    enabled: bool = setting(default=True, description="Compact periodically. Compaction on demand works in any case.")
    period_ms: int = setting(
        default=_COMPACTION.period_ms,
        ge=100,
        description="Time between two runs. A backlog of objects starts a run earlier.",
    )
