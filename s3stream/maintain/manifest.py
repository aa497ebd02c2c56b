"""The manifest: what a new catalog needs and the objects do not say. `s3stream/maintain/MANIFEST.md` describes it.

An object knows its streams, offsets and records. Which topic a stream belongs to, which objects are committed, where a
stream begins, whose data a clone refers to: only the catalog knows. Each node writes that to the default store, small
and compressed, whenever it has changed. Pure: values, bytes and keys.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from s3stream.catalog.state import BorrowedRange, CatalogState, StreamState, TopicState
from s3stream.catalog.values import DetachedTopic, WalInfo, WalState
from s3stream.errors import CorruptObject

FORMAT: Final = "anabranch manifest"
VERSION: Final = 1
PREFIX: Final = "manifest"
"""First segment of the keys. Those of objects begin with 16 hex digits."""
SEQUENCE_DIGITS: Final = 20
"""Of a key: keys sort in the order of their sequence numbers."""
_COMPRESSION_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state, with who wrote it down and as which one of all."""

    sequence: int
    """Grows over all nodes of a catalog: of two manifests the one with the higher number tells of a later moment."""
    cluster: str
    node_id: int
    node_epoch: int
    written_ms: int
    state: CatalogState


class ManifestKey(NamedTuple):
    """What a manifest's key says."""

    cluster: str
    node_id: int
    sequence: int


def manifest_prefix(cluster: str) -> str:
    """What the keys of a cluster's manifests begin with."""
    return f"{PREFIX}/{cluster}/"


def manifest_key(cluster: str, node_id: int, sequence: int) -> str:
    """Key of a manifest. No two are written under one key, and none is changed."""
    return f"{manifest_prefix(cluster)}{node_id}/{sequence:0{SEQUENCE_DIGITS}}"


def parse_manifest_key(key: str) -> ManifestKey | None:
    """What `manifest_key` made the key of; None for any other key."""
    prefix, _, rest = key.partition("/")
    parts = rest.rsplit("/", 2)
    if prefix != PREFIX or len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[1:]):
        return None
    parsed = ManifestKey(parts[0], int(parts[1]), int(parts[2]))
    return parsed if manifest_key(*parsed) == key else None


# bytes


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as compressed JSON."""
    return gzip.compress(json_text(manifest).encode(), _COMPRESSION_LEVEL, mtime=0)


def json_text(manifest: Manifest) -> str:
    """The manifest as JSON, the same text for the same manifest."""
    state = manifest.state
    content = {
        "format": FORMAT,
        "version": VERSION,
        "sequence": manifest.sequence,
        "cluster": manifest.cluster,
        "node": [manifest.node_id, manifest.node_epoch],
        "written_ms": manifest.written_ms,
        "catalog_id": state.catalog_id.hex(),
        "schema_version": state.schema_version,
        "counters": state.counters,
        "nodes": list(state.nodes.items()),
        "wals": [
            [wal.wal_id, wal.node_id, wal.node_epoch, wal.location, int(wal.state), wal.seen_ms] for wal in state.wals
        ],
        "topics": [
            [topic.name, topic.topic_id.hex(), int(topic.internal), topic.configs, deltas(topic.stream_ids)]
            for topic in state.topics
        ],
        "detached": [
            [
                topic.name,
                topic.topic_id.hex(),
                int(topic.internal),
                topic.configs,
                deltas(topic.stream_ids),
                topic.detached_ms,
            ]
            for topic in state.detached
        ],
        "configs": [[kind, name, entries] for (kind, name), entries in state.configs.items()],
        "streams": state.streams,
        "borrowed": state.borrowed,
        "committed": [[node_id, deltas(ids)] for node_id, ids in state.committed.items()],
        "prepared": deltas(state.prepared),
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """Read a manifest. Raises CorruptObject for what is none, is damaged, or has a version that is not known."""
    try:
        content = json.loads(gzip.decompress(data))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CorruptObject(f"manifest {where}: expected the format {FORMAT!r}")
        if content["version"] != VERSION:
            raise CorruptObject(f"manifest {where}: version {content['version']}, expected {VERSION}")
        return _manifest_of(content)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"manifest {where}: damaged: {error!r}") from None


def _manifest_of(content: Mapping[str, Any]) -> Manifest:
    state = CatalogState(
        catalog_id=bytes.fromhex(content["catalog_id"]),
        schema_version=content["schema_version"],
        counters=content["counters"],
        nodes=dict(content["nodes"]),
        wals=[
            WalInfo(wal_id, node_id, node_epoch, location, WalState(wal_state), seen_ms)
            for wal_id, node_id, node_epoch, location, wal_state, seen_ms in content["wals"]
        ],
        topics=[
            TopicState(name, bytes.fromhex(topic_id), bool(internal), configs, summed(streams))
            for name, topic_id, internal, configs, streams in content["topics"]
        ],
        detached=[
            DetachedTopic(name, bytes.fromhex(topic_id), configs, summed(streams), bool(internal), detached_ms)
            for name, topic_id, internal, configs, streams, detached_ms in content["detached"]
        ],
        configs={(kind, name): entries for kind, name, entries in content["configs"]},
        streams=[StreamState(*row) for row in content["streams"]],
        borrowed=[BorrowedRange(*row) for row in content["borrowed"]],
        committed={node_id: summed(ids) for node_id, ids in content["committed"]},
        prepared=summed(content["prepared"]),
    )
    node_id, node_epoch = content["node"]
    return Manifest(content["sequence"], content["cluster"], node_id, node_epoch, content["written_ms"], state)


def deltas(numbers: Sequence[int]) -> list[int]:
    """The first number, then the difference of each to the one before: small numbers, which compress well."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


def summed(differences: Sequence[int]) -> list[int]:
    """What `deltas` was made of."""
    return list(accumulate(differences))
