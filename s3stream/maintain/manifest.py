"""The manifest: the state that a rebuilt catalog needs and the objects do not contain. `MANIFEST.md` describes it.

An object contains its streams, offsets and records. Only the catalog has the topic of a stream, the committed
objects, the start of a stream, and the original of a clone. Each node writes that state to the default store,
compressed, whenever it has changed. Pure: values, bytes and keys.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from anabranch.s3stream.catalog.manifest_state import BorrowedRange, CatalogState, StreamState, TableRows, TopicState
from anabranch.s3stream.catalog.values import (
    DEFAULT_RETENTION_SINCE,
    KEPT_FOREVER,
    AclRow,
    DetachedTopic,
    Takeover,
    TokenRow,
    WalInfo,
    WalState,
)
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import NodeIdentity

FORMAT: Final = "anabranch manifest"
VERSION: Final = 1
PREFIX: Final = "manifest"
"""First segment of the keys. Keys of objects begin with 16 hex digits."""
SEQUENCE_DIGITS: Final = 20
"""Digits of the number in a key, so that keys sort by their numbers."""
_OWN_DEVICE: Final = ("device", Takeover.NONE)
"""Kind of a log, and who may recover it, unless the member `wal_places` has it."""
_COMPRESSION_LEVEL: Final = 6
_BYTES: Final = frozenset({"table_id", "topic_id"})
"""Columns of `tables` whose values are bytes, in hex digits here."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A catalog's state, with its writer and its number."""

    sequence: int
    """Grows over all nodes of a catalog: a higher number means a later state."""
    cluster: str
    node: NodeIdentity
    written_ms: int
    state: CatalogState


class ManifestKey(NamedTuple):
    """The fields of a manifest's key."""

    cluster: str
    node_id: int
    sequence: int


def manifest_prefix(cluster: str) -> str:
    """Return the prefix of the keys of a cluster's manifests."""
    return f"{PREFIX}/{cluster}/"


def manifest_key(cluster: str, node_id: int, sequence: int) -> str:
    """Return the key of a manifest. A manifest is written once under its key and never changed."""
    return f"{manifest_prefix(cluster)}{node_id}/{sequence:0{SEQUENCE_DIGITS}}"


def parse_manifest_key(key: str) -> ManifestKey | None:
    """Return the fields of a key made by `manifest_key`; None for any other key."""
    prefix, _, rest = key.partition("/")
    parts = rest.rsplit("/", 2)
    if prefix != PREFIX or len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[1:]):
        return None
    parsed = ManifestKey(parts[0], int(parts[1]), int(parts[2]))
    return parsed if manifest_key(*parsed) == key else None


# bytes


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the manifest as compressed JSON."""
    return gzip.compress(json_text(manifest).encode(), _COMPRESSION_LEVEL, mtime=0)


def json_text(manifest: Manifest) -> str:
    """Encode the manifest as JSON; the same manifest has the same text."""
    state = manifest.state
    content = {
        "format": FORMAT,
        "version": VERSION,
        "sequence": manifest.sequence,
        "cluster": manifest.cluster,
        "node": list(manifest.node),
        "written_ms": manifest.written_ms,
        "catalog_id": state.catalog_id.hex(),
        "schema_version": state.schema_version,
        "counters": state.counters,
        "nodes": list(state.nodes.items()),
        "wals": [
            [
                wal.wal_id,
                wal.node_id,
                wal.node_epoch,
                wal.location,
                int(WalState.OPEN if wal.is_live else wal.state),
                wal.seen_ms,
            ]
            for wal in state.wals
        ],
        **_wal_places(state.wals),
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
        **({"acls": state.acls} if state.acls else {}),
        **({"tokens": state.tokens} if state.tokens else {}),
        "streams": state.streams,
        "borrowed": state.borrowed,
        "committed": [[node_id, deltas(ids)] for node_id, ids in state.committed.items()],
        "prepared": deltas(state.prepared),
        **_tables(state.tables),
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def _wal_places(wals: Sequence[WalInfo]) -> Mapping[str, Any]:
    """Return the member about logs in objects or on shared devices, or an empty mapping."""
    places = [[wal.wal_id, wal.kind, wal.takeover.value] for wal in wals if (wal.kind, wal.takeover) != _OWN_DEVICE]
    return {"wal_places": places} if places else {}


def _tables(tables: Mapping[str, TableRows]) -> Mapping[str, Any]:
    """Return the member about topics' tables, or an empty mapping."""
    if not tables:
        return {}
    plain = {
        name: [columns, *([each.hex() if isinstance(each, bytes) else each for each in row] for row in rows)]
        for name, (columns, rows) in tables.items()
    }
    return {"tables": plain}


def _tables_of(plain: Mapping[str, Sequence[Sequence[Any]]]) -> Mapping[str, TableRows]:
    """Invert `_tables`."""
    found = {}
    for name, (columns, *rows) in plain.items():
        are_bytes = [column in _BYTES for column in columns]
        restored = [
            tuple(bytes.fromhex(each) if binary else each for each, binary in zip(row, are_bytes, strict=True))
            for row in rows
        ]
        found[name] = TableRows(tuple(columns), restored)
    return found


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """Decode a manifest. Raises CorruptObject for other content, damage, or an unknown version."""
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
    places = {wal_id: (kind, Takeover(takeover)) for wal_id, kind, takeover in content.get("wal_places", ())}

    def configs_of(configs: Mapping[str, str], internal: int) -> Mapping[str, str]:
        is_older = content["schema_version"] < DEFAULT_RETENTION_SINCE and not internal
        return {**KEPT_FOREVER, **configs} if is_older else configs

    state = CatalogState(
        catalog_id=bytes.fromhex(content["catalog_id"]),
        schema_version=content["schema_version"],
        counters=content["counters"],
        nodes=dict(content["nodes"]),
        wals=[
            _wal_of(WalInfo(wal_id, node_id, node_epoch, location, WalState(wal_state), seen_ms), places)
            for wal_id, node_id, node_epoch, location, wal_state, seen_ms in content["wals"]
        ],
        topics=[
            TopicState(name, bytes.fromhex(topic_id), bool(internal), configs_of(configs, internal), summed(streams))
            for name, topic_id, internal, configs, streams in content["topics"]
        ],
        detached=[
            DetachedTopic(
                name,
                bytes.fromhex(topic_id),
                configs_of(configs, internal),
                summed(streams),
                bool(internal),
                detached_ms,
            )
            for name, topic_id, internal, configs, streams, detached_ms in content["detached"]
        ],
        configs={(kind, name): entries for kind, name, entries in content["configs"]},
        acls=tuple(AclRow(*row) for row in content.get("acls", ())),
        tokens=tuple(
            TokenRow(token_id, owner, requester, tuple(renewers), *times)
            for token_id, owner, requester, renewers, *times in content.get("tokens", ())
        ),
        streams=[StreamState(*row) for row in content["streams"]],
        borrowed=[BorrowedRange(*row) for row in content["borrowed"]],
        committed={node_id: summed(ids) for node_id, ids in content["committed"]},
        prepared=summed(content["prepared"]),
        tables=_tables_of(content.get("tables", {})),
    )
    return Manifest(
        content["sequence"], content["cluster"], NodeIdentity(*content["node"]), content["written_ms"], state
    )


def _wal_of(wal: WalInfo, places: Mapping[str, tuple[str, Takeover]]) -> WalInfo:
    kind, takeover = places.get(wal.wal_id, _OWN_DEVICE)
    return replace(wal, kind=kind, takeover=takeover)


def deltas(numbers: Sequence[int]) -> list[int]:
    """Return the first number, then the differences between neighbours: small numbers compress well."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


def summed(differences: Sequence[int]) -> list[int]:
    """Invert `deltas`."""
    return list(accumulate(differences))
