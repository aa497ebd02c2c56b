"""Surroundings of the upkeep of tables: the node's storage, clocks and identity, and the topics that are tables."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import NodeIdentity
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.tables.publication import ExternalCatalog
from anabranch.tables.requests import Registry
from anabranch.tables.upkeep.columns import Columns
from anabranch.tables.upkeep.options import TableOptions


@dataclass(frozen=True, slots=True)
class TableTopic:
    """A topic that is a table, as the node knows it now."""

    name: str
    topic_id: bytes
    store: str
    """Name of the store of new data, and of a new table."""
    options: TableOptions
    streams: Mapping[int, int]
    """Stream ids by partition."""
    is_compacted: bool = False


class TableTopics(Protocol):
    """The topics of a node that are tables."""

    def committed(self) -> Sequence[TableTopic]:
        """Return those whose first partition this node leads: it commits their tables."""
        ...

    def followed(self) -> Sequence[TableTopic]:
        """Return those of which this node leads other partitions only."""
        ...

    def request_upload(self, topic: TableTopic, *, waited_ms: int) -> None:
        """Request the upload of records that have waited for so long, in partitions that this node leads."""
        ...

    async def upload(self, topic: TableTopic) -> None:
        """Upload all records of partitions that this node leads. Returns when they are committed, or after a while."""
        ...


@dataclass(frozen=True, slots=True)
class OtherCatalogs:
    """Catalogs that tables may be published in."""

    process: Columns
    """Process that waits for them, and for nothing else."""
    by_name: Mapping[str, ExternalCatalog]


async def no_step(_name: str) -> None:
    """Pass a step, in place of a test's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepContext:
    """Storage, identity and clocks of a node, and the process that makes columns."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    cluster: str
    node: NodeIdentity
    now_ms: Callable[[], int]
    new_uuid: Callable[[], bytes]
    """Returns 16 random bytes of a UUID of version 4."""
    new_writer_id: Callable[[], str]
    columns: Columns
    folder: Path
    """Scratch folder of this node: nothing in it outlives the process."""
    registry: Callable[[], Awaitable[Registry | None]]
    """Returns the place of the schema registry."""
    rank: Callable[[], int] = lambda: 0
    """Returns the number of living nodes with lower ids."""
    pace: Pace | None = None
    prepare_ttl_ms: int = 60 * 60_000
    delete_delay_ms: int = 10 * 60_000
    step: Callable[[str], Awaitable[None]] = no_step
    """Called between the steps of a commit: a test may stop there."""
