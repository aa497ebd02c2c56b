"""Settings of the log, the storage and compaction, taken from the settings of a node.

A value is copied by its name, so a new setting is added in two classes only: that of the package, with its default, and
that of the area in `broker.node.settings.storage_areas`, with its description.
"""

from dataclasses import fields, replace
from typing import TypeVar

from anabranch.broker.node.settings.area import Area, definitions
from anabranch.broker.node.settings.memory import MemorySizes
from anabranch.broker.node.settings.model import Settings
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.settings import GcSettings, StorageSettings
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.settings import HEADER_IOPS, WalSettings

T = TypeVar("T", WalSettings, ObjectWalSettings, StorageSettings, CompactionSettings)


def wal_settings(settings: Settings) -> WalSettings:
    """Settings of the log. Up to half of the write budget is reserved for its headers."""
    header_iops = min(HEADER_IOPS, settings.wal.iops_max // 2)
    # Start from 0: the header's share must not exceed the budget, and `replace` checks that.
    found = replace(_with(WalSettings(header_iops=0), settings.wal), header_iops=header_iops)
    return replace(found, fencing="strict") if settings.wal.takeover == "shared" else found


def object_wal_settings(settings: Settings) -> ObjectWalSettings:
    """Settings of the log if its kind is `object`."""
    return _with(ObjectWalSettings(), settings.wal)


def storage_settings(settings: Settings, sizes: MemorySizes) -> StorageSettings:
    """Settings of the storage engine of a node whose memory is shared out as in `sizes`."""
    return replace(
        _with(StorageSettings(), settings.storage),
        upload_threshold_bytes=settings.storage.upload_bytes,
        stall_ms=settings.wal.stall_ms,
        log_cache_bytes=sizes.log_cache_bytes,
        block_cache_bytes=sizes.block_cache_bytes,
        index_cache_bytes=sizes.index_cache_bytes,
    )


def gc_settings(settings: Settings) -> GcSettings:
    """Settings of the garbage collector."""
    return GcSettings(period_ms=settings.storage.gc_period_ms)


def compaction_settings(settings: Settings, sizes: MemorySizes | None = None) -> CompactionSettings:
    """Settings of compaction; without `sizes` its memory limits are the defaults."""
    chosen = _with(_with(CompactionSettings(), settings.compaction), settings.storage, "split_bytes", "delete_delay_ms")
    if sizes is None:
        return chosen
    return replace(
        chosen,
        memory_bytes=sizes.compaction_bytes,
        index_bytes_max=sizes.compaction_index_bytes,
        clean_keys_bytes_max=sizes.compaction_keys_bytes,
    )


def _with(values: T, area: Area, *only: str) -> T:
    """Copy the values of an area that have the same name, or `only` these; unset values are left out."""
    names = [field.name for field in fields(values) if field.name in (only or definitions(type(area)))]
    return replace(values, **{name: value for name in names if (value := getattr(area, name)) is not None})
