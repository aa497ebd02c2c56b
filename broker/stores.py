"""The object stores that settings describe: for the node, and for the commands that look at its storage."""

import random
from collections.abc import Mapping

from broker.settings import Settings
from s3stream.store.interface import ObjectStore
from s3stream.store.local import LocalStore


def make_store(settings: Settings, rng: random.Random) -> ObjectStore:
    """The store new objects go to, not opened yet. Its name is what the catalog remembers with each object."""
    objects = settings.objects
    if objects.store == "local":
        return LocalStore("local", settings.objects_path)
    from s3stream.store.s3 import S3Settings, S3Store  # half a second that a local store need not spend

    return S3Store(
        "s3",
        S3Settings(
            bucket=objects.bucket,
            endpoint=objects.endpoint,
            region=objects.region,
            path_style=objects.path_style,
        ),
        rng=rng,
    )


def make_stores(settings: Settings, rng: random.Random) -> Mapping[str, ObjectStore]:
    """All stores by name, not opened yet."""
    store = make_store(settings, rng)
    return {store.name: store}
