"""Areas of settings about the log, the objects and the catalog.

`WalArea`, `StorageArea` and `CompactionArea` choose values of the settings of a package below the broker
(`wal.settings`, `s3stream.settings`, `compaction.settings`). Defaults are stated in the package, and taken from there.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from broker.settings.area import KIB, MIB, Area, Bytes
from compaction.settings import CompactionSettings
from s3stream.settings import GcSettings, StorageSettings
from wal.settings import Durability, Fencing, WalSettings

_WAL, _STORAGE, _GC, _COMPACTION = WalSettings(), StorageSettings(), GcSettings(), CompactionSettings()
"""Values with every default."""


class WalArea(Area):
    """The write-ahead log: what is acknowledged is in it until it is in an object."""

    path: Path | None = Field(
        default=None, description="File or block device of the log; unset: `wal` in the data directory."
    )
    capacity_bytes: Bytes = Field(
        default=_WAL.capacity_bytes,
        ge=8 * MIB,
        description=(
            "Size of the log, fixed when it is made: a file is allocated in full at the first start, of a device this "
            "much is used. `anabranch wal resize` changes it."
        ),
    )
    durability: Durability = Field(
        default=_WAL.durability,
        description=(
            "How a write is made durable: `flush` (each write reaches stable media before its ack), `direct` "
            "(O_DIRECT alone, the device's own cache is trusted), `auto` (flush unless the device says that it has no "
            "volatile cache)."
        ),
    )
    iops_max: int = Field(
        default=_WAL.iops_max,
        ge=0,
        description=(
            "Writes a second at most, for a disk with a free allowance (an EBS gp3 volume: 3000); a write of more than "
            "256 KiB counts for several; 0: no limit."
        ),
    )
    bandwidth_bytes_max: Bytes = Field(
        default=_WAL.bandwidth_bytes_max,
        ge=0,
        description="Bytes written a second at most (an EBS gp3 volume: 125 MiB); 0: no limit.",
    )
    fencing: Fencing = Field(
        default=_WAL.fencing,
        description=(
            "How another owner of the log is noticed: `strict` (the header is read again before each ack), `local` "
            "(after writes of the header; a lock keeps other processes of this host away), `auto` (strict for a block "
            "device that other hosts may attach)."
        ),
    )
    format: bool = Field(
        default=_WAL.format, description="Format a device that holds something else, destroying what it holds."
    )
    allow_volatile: bool = Field(
        default=_WAL.allow_volatile,
        description=(
            "Make the log's file even in memory (tmpfs, ramfs) or in a container's own layer (overlay), where a reboot "
            "or the container's end takes acknowledged records with it: for tests."
        ),
    )


class StorageArea(Area):
    """From the log to objects, and reading them back."""

    upload_bytes: Bytes | None = Field(
        default=_STORAGE.upload_threshold_bytes,
        ge=64 * KIB,
        description=(
            "Data collected before an upload starts; unset: a third of the WAL or of the log cache, at most 512 MiB."
        ),
    )
    upload_age_ms: int = Field(
        default=_STORAGE.upload_age_ms, ge=10, description="Data is uploaded at this age at the latest."
    )
    split_bytes: Bytes = Field(
        default=_STORAGE.split_bytes,
        ge=64 * KIB,
        description="A run of one partition of this size gets an object of its own.",
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
        default=_STORAGE.delete_delay_ms,
        ge=0,
        description="A replaced object is deleted this much later: readers are done by then.",
    )
    prepare_ttl_ms: int = Field(
        default=_STORAGE.prepare_ttl_ms,
        ge=1000,
        description="An upload not committed this long after its begin is given up; its objects are deleted.",
    )
    gc_period_ms: int = Field(
        default=_GC.period_ms, ge=10, description="How often objects that nobody needs any more are looked for."
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


class CompactionArea(Area):
    """Rewriting small objects into large ones."""

    enabled: bool = Field(default=True, description="Compact on a timer; on demand it can always be asked for.")
    period_ms: int = Field(
        default=_COMPACTION.period_ms,
        ge=100,
        description="Time between two runs; a backlog of objects starts one earlier.",
    )
