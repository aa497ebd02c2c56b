"""Settings of log, storage and compaction, as a node's settings choose them."""

from dataclasses import replace

from anabranch.broker.node.settings.area import KIB, MIB
from anabranch.broker.node.settings.memory import memory_for, with_sizes
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import (
    compaction_settings,
    gc_settings,
    storage_settings,
    wal_settings,
)
from anabranch.broker.node.settings.sources import load
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.settings import GcSettings, StorageSettings
from anabranch.wal.settings import WalSettings


def with_memory(**flags: object) -> Settings:
    settings = load(
        {"node.memory_bytes": "64GiB", **{key.replace("__", "."): value for key, value in flags.items()}}, {}
    )
    return with_sizes(settings, memory_for(settings).sizes)


def test_unset_settings_have_the_defaults_of_the_packages() -> None:
    settings = with_memory()
    sizes = memory_for(settings).sizes
    assert wal_settings(settings) == replace(WalSettings(), header_iops=0)
    assert storage_settings(settings, sizes) == StorageSettings()
    assert gc_settings(settings) == GcSettings()
    assert compaction_settings(settings) == compaction_settings(settings, sizes) == CompactionSettings()


def test_settings_that_are_set_reach_the_packages() -> None:
    settings = with_memory(
        wal__capacity_bytes="16MiB",
        wal__iops_max="8",
        storage__upload_bytes="1MiB",
        storage__split_bytes="128KiB",
        storage__delete_delay_ms="7",
        storage__gc_period_ms="11",
        compaction__period_ms="100",
    )
    wal = wal_settings(settings)
    assert (wal.capacity_bytes, wal.iops_max, wal.header_iops) == (16 * MIB, 8, 4)
    storage = storage_settings(settings, memory_for(settings).sizes)
    assert (storage.upload_threshold_bytes, storage.split_bytes, storage.delete_delay_ms) == (MIB, 128 * KIB, 7)
    assert gc_settings(settings).period_ms == 11
    compaction = compaction_settings(settings)
    assert (compaction.split_bytes, compaction.delete_delay_ms, compaction.period_ms) == (128 * KIB, 7, 100)
    assert compaction.prepare_ttl_ms == CompactionSettings().prepare_ttl_ms, "the storage's is for uploads"


def test_compaction_gets_its_part_of_the_memory() -> None:
    small = memory_for(load({"node.memory_bytes": "1GiB"}, {})).sizes
    found = compaction_settings(with_memory(), small)
    assert found.memory_bytes == small.compaction_bytes < CompactionSettings().memory_bytes
    assert found.index_bytes_max == small.compaction_index_bytes
    assert found.clean_keys_bytes_max == small.compaction_keys_bytes
