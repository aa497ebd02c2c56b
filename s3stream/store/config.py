"""Object stores from plain values: a node, the commands that look at its storage, and Spark's tasks make the same ones.

A `StoreConfig` is immutable, holds no secret (S3 credentials come from the environment, the shared files or the
instance, as boto finds them), and pickles.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from s3stream.errors import StoreError
from s3stream.store.interface import ObjectStore
from s3stream.store.local import LocalStore

StoreKind: TypeAlias = Literal["local", "s3"]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One object store by its name."""

    name: str
    """What the catalog remembers with each object: it never changes while the store holds any."""
    kind: StoreKind
    path: Path | None = None
    """Directory of a local store."""
    bucket: str = ""
    """Bucket of an S3 store, which must exist."""
    endpoint: str = ""
    """URL of the S3 service; empty: Amazon's for the region."""
    region: str = "us-east-1"
    path_style: bool = True


def make_store(config: StoreConfig, rng: random.Random, *, read_only: bool = False) -> ObjectStore:
    """The store, not opened yet. `rng` spreads retries in time. Raises StoreError for a config that lacks something.

    With `read_only` opening it makes no directory and leaves no trace.
    """
    if config.kind == "local":
        if config.path is None:
            raise StoreError(f"store {config.name!r} needs a directory")
        return LocalStore(config.name, config.path, read_only=read_only)
    if not config.bucket:
        raise StoreError(f"store {config.name!r} needs a bucket")
    from s3stream.store.s3 import S3Settings, S3Store  # half a second that a local store need not spend

    settings = S3Settings(
        bucket=config.bucket, endpoint=config.endpoint, region=config.region, path_style=config.path_style
    )
    return S3Store(config.name, settings, rng=rng)


def make_stores(
    configs: Iterable[StoreConfig], rng: random.Random, *, read_only: bool = False
) -> dict[str, ObjectStore]:
    """All of them by name, in the order given, not opened yet. Raises StoreError."""
    return {config.name: make_store(config, rng, read_only=read_only) for config in configs}
