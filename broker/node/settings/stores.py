"""The object stores that settings describe, for the node and for commands that read its storage.

The store of `[objects]` is the default: its name is its kind, `local` or `s3`. The tables `[stores.NAME]` add others,
which a topic chooses by its config `storage.policy`. Each object remembers the name of its store.
"""

import random
from collections.abc import Mapping
from pathlib import Path

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.storage_areas import NamedStoreSettings, ObjectsSettings
from anabranch.s3stream.store.config import StoreConfig, StoreKind
from anabranch.s3stream.store.config import make_stores as stores_of
from anabranch.s3stream.store.interface import ObjectStore


def store_configs(settings: Settings) -> list[StoreConfig]:
    """Return the configuration of all stores, the default one first."""
    objects = settings.objects
    default = _config(objects.store, objects.store, settings.objects_path, objects)
    return [default, *(_config(name, table.type, table.path, table) for name, table in settings.stores.items())]


def _config(name: str, kind: StoreKind, path: Path | None, table: ObjectsSettings | NamedStoreSettings) -> StoreConfig:
    return StoreConfig(
        name=name,
        kind=kind,
        path=path,
        bucket=table.bucket,
        endpoint=table.endpoint,
        region=table.region,
        path_style=table.path_style,
        protection=table.protection,
    )


def store_names(settings: Settings) -> list[str]:
    """Return the names of all stores, the default one first: the allowed values of `storage.policy`."""
    return [settings.objects.store, *settings.stores]


def make_stores(settings: Settings, rng: random.Random, *, read_only: bool = False) -> Mapping[str, ObjectStore]:
    """Create all stores, by name, the default one first. They are not open yet."""
    return stores_of(store_configs(settings), rng, read_only=read_only)
