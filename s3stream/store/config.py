"""Construction of object stores from plain values, shared by nodes, the storage commands and Spark's tasks.

A `StoreConfig` is immutable, picklable, and contains no secret: boto finds S3 credentials in the environment, the
shared files or the instance.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from anabranch.extras import MissingExtra, needed
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.protection import UNPROTECTED, BucketProtection
from anabranch.s3stream.store.recycled import ReadBufferPool

StoreKind: TypeAlias = Literal["local", "s3"]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Configuration of one object store."""

    name: str
    """Name that the catalog records with each object. It must not change while the store holds objects."""
    kind: StoreKind
    path: Path | None = None
    """Directory of a local store."""
    bucket: str = ""
    """Bucket of an S3 store, which must exist."""
    endpoint: str = ""
    """URL of the S3 service. Empty: Amazon's for the region."""
    region: str = "us-east-1"
    path_style: bool = True
    protection: BucketProtection = UNPROTECTED
    """Encryption and owner of an S3 store."""


def make_store(
    config: StoreConfig, rng: random.Random, *, read_only: bool = False, memory: ReadBufferPool | None = None
) -> ObjectStore:
    """Return the store, not opened yet. `rng` is for retry jitter. Raises StoreError for an incomplete config.

    With `read_only`, opening it creates no directory, and does not check whether objects may be encrypted. `memory` is
    what reads return, by default the store's own.
    """
    if config.kind == "local":
        if config.path is None:
            raise StoreError(f"store {config.name!r} needs a directory")
        return LocalStore(config.name, config.path, read_only=read_only, memory=memory)
    if not config.bucket:
        raise StoreError(f"store {config.name!r} needs a bucket")
    if problem := config.protection.problem():
        raise StoreError(f"store {config.name!r}: {problem[0]}: {problem[1]}")
    try:
        with needed(f"store {config.name!r}"):  # importing it takes half a second, which a local store avoids
            from anabranch.s3stream.store.s3 import S3Settings, S3Store
    except MissingExtra as error:
        raise StoreError(str(error)) from None
    settings = S3Settings(
        bucket=config.bucket,
        endpoint=config.endpoint,
        region=config.region,
        path_style=config.path_style,
        protection=config.protection,
    )
    return S3Store(config.name, settings, rng=rng, read_only=read_only, memory=memory)


def make_stores(
    configs: Iterable[StoreConfig],
    rng: random.Random,
    *,
    read_only: bool = False,
    memory: ReadBufferPool | None = None,
) -> dict[str, ObjectStore]:
    """Return the stores by name, in the order given, not opened yet. They share `memory`. Raises StoreError."""
    return {config.name: make_store(config, rng, read_only=read_only, memory=memory) for config in configs}
