"""A catalog and a local store with Kafka's record batches in objects, without a node."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import ObjectKind, StreamBatch
from anabranch.s3stream.store.config import StoreConfig
from anabranch.s3stream.store.files import TEMPORARY
from anabranch.s3stream.store.local import LocalStore
from anabranch.spark.storage import StorageLocation
from tests.support.catalog_node import CLUSTER, UploadingNode
from tests.support.storage import files_below

RECORDS = 10


class KafkaObjects:
    """Uploads as a node does; `made` reads it back."""

    def __init__(self, folder: Path, made: UploadingNode) -> None:
        self.folder = folder
        self.made = made
        self.location = StorageLocation(
            CLUSTER, f"sqlite:///{folder / 'catalog.db'}", (StoreConfig("local", "local", path=folder / "objects"),)
        )

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def batch(self, stream: int, value_bytes: int) -> StreamBatch:
        base = self.made.ends[stream]
        self.made.ends[stream] = base + RECORDS
        now = self.made.clock.ms
        records = [
            Record(None, (b"%d-%d-" % (stream, base + at)).ljust(value_bytes, b"x"), now) for at in range(RECORDS)
        ]
        payload = bytes(build_batch(records, base_offset=base))
        return StreamBatch(stream, base, base + RECORDS, RECORDS, now, payload)

    def upload(self, streams: list[int], *, objects: int, batches: int = 2, value_bytes: int = 1000) -> None:
        """Stream set objects, each with some batches of all the streams."""

        async def put() -> None:
            for _ in range(objects):
                some = [self.batch(stream, value_bytes) for stream in streams for _ in range(batches)]
                await self.made.upload((ObjectKind.SSO, some))

        asyncio.run(put())

    def contents(self) -> dict[int, list[StreamBatch]]:
        return asyncio.run(self.made.contents())

    def files(self) -> set[Path]:
        """The objects' files."""
        return {path for path in files_below(self.objects) if TEMPORARY not in path.parts}

    def counts(self) -> dict[str, int]:
        """Objects by kind and state."""
        return {name: count for name, (count, _) in asyncio.run(self.made.catalog.count_objects()).items()}


@contextmanager
def kafka_objects(folder: Path) -> Iterator[KafkaObjects]:
    folder.mkdir()
    catalog, store = Catalog(f"sqlite:///{folder / 'catalog.db'}"), LocalStore("local", folder / "objects")
    asyncio.run(catalog.open(cluster=CLUSTER))
    try:
        asyncio.run(store.open())
        yield KafkaObjects(folder, UploadingNode(catalog, store))
    finally:
        asyncio.run(store.close())
        asyncio.run(catalog.close())
