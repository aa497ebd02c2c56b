"""Values for the state of a catalog that the objects do not contain. `s3stream/maintain/MANIFEST.md` describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.s3stream.catalog.values import AclRow, DetachedTopic, TokenRow, WalInfo


class TopicState(NamedTuple):
    """A topic in a manifest."""

    name: str
    topic_id: bytes
    internal: bool
    configs: Mapping[str, str]
    stream_ids: Sequence[int]
    """In the order of the partitions."""


class StreamState(NamedTuple):
    """A stream in a manifest, without its snapshot, which is restored from the data."""

    stream_id: int
    epoch: int
    node_id: int
    leader: int
    leader_epoch: int
    start_offset: int
    end_offset: int


class OwnedStreams(NamedTuple):
    """Streams, and the log that may hold records past their ends."""

    wal: WalInfo
    epochs: Mapping[int, int]
    """By stream id, the epoch in which the log's node has the stream."""


class BorrowedRange(NamedTuple):
    """A range of a clone that an object holds under another stream's id."""

    stream_id: int
    start_offset: int
    end_offset: int
    object_id: int
    source_stream_id: int


class TableRows(NamedTuple):
    """Rows of one of the catalog's tables about topics' tables (`TABLES.md`), as they are."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[int | str | bytes, ...]]


@dataclass(frozen=True, slots=True)
class CatalogState:
    """The state of a catalog at one moment."""

    catalog_id: bytes = bytes(16)
    schema_version: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    """The next id of each kind: stream, object, producer."""
    nodes: Mapping[int, int] = field(default_factory=dict)
    """Epoch by node id."""
    wals: Sequence[WalInfo] = ()
    topics: Sequence[TopicState] = ()
    detached: Sequence[DetachedTopic] = ()
    configs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    acls: Sequence[AclRow] = ()
    tokens: Sequence[TokenRow] = ()
    streams: Sequence[StreamState] = ()
    """By id."""
    borrowed: Sequence[BorrowedRange] = ()
    committed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Ids of the committed objects, ascending, by the node that wrote them."""
    prepared: Sequence[int] = ()
    """Ids of the objects that may be committed later, ascending."""
    tables: Mapping[str, TableRows] = field(default_factory=dict)
    """All about topics' tables, by the name of the catalog's table; empty if no topic has one."""
