"""Assembles the contents of a new catalog from the object stores alone. Pure: the result is not written here.

The steps of a rebuild: `rebuild_scan` lists the objects, `rebuild_plan` selects the objects that count, `rebuild_read`
reads all records, `assemble` makes the rows, and `catalog.restore` writes them. All records are read because the state
of a stream's owner (last writers, aborted transactions) is only in them: without it a reader of committed records would
get aborted ones.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.restore import CatalogContents, RecoveredTopic, RestoredRange, RestoredStream
from anabranch.s3stream.catalog.table_rows import FILE_COUNTER
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import WalInfo, WalState
from anabranch.s3stream.maintain.manifest import Manifest
from anabranch.s3stream.maintain.rebuild_plan import (
    EPOCHS_SKIPPED,
    FoundObject,
    RebuildPlan,
    SkipReason,
    UnreadableObject,
)
from anabranch.s3stream.maintain.rebuild_read import RebuildReader
from anabranch.s3stream.maintain.rebuild_scan import StoreContents
from anabranch.s3stream.model import ObjectInfo, ObjectKind, ObjectState
from anabranch.s3stream.object.writer_id import parse_compaction_writer, parse_upload_writer

OBJECT_IDS_SKIPPED: Final = 100_000
"""Increment of object ids: ids may have been given out without an object in the store."""
PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Increment of producer ids: ids may have been given out without a record of the producer."""
TABLE_FILE_IDS_SKIPPED: Final = 1 << 32
"""Increment of the ids of files of tables: those that were given out since are not looked for in the stores."""
PROGRESS_SKIPPED: Final = 1_000_000
"""Increment of the numbers of changes and uploads: a process that still runs may put a mark of the lost catalog."""


class LocalLog(NamedTuple):
    """The write-ahead log of the node that runs the rebuild."""

    wal: WalInfo
    stream_ids: frozenset[int]
    """Streams that have records in the log."""


def skip_progress(marks: CatalogProgress, nodes: Iterable[int]) -> CatalogProgress:
    """Return numbers that are higher than those of all marks of the nodes, even of marks that are not written yet."""
    uploads = {node_id: marks.uploads.get(node_id, 0) + PROGRESS_SKIPPED for node_id in {*nodes, *marks.uploads}}
    return CatalogProgress(marks.change + PROGRESS_SKIPPED, uploads)


class StoreNumbers(NamedTuple):
    """The highest numbers in the stores."""

    manifest: int
    """Of a manifest, which may be another one than the one that is used."""
    progress: CatalogProgress
    """Of changes and uploads that marks name."""


def assemble(
    manifest: Manifest,
    plan: RebuildPlan,
    stored: StoreContents,
    reader: RebuildReader,
    *,
    node_id: int,
    log: LocalLog | None,
    newest: StoreNumbers,
    new_topic_id: Callable[[], bytes],
    now_ms: int,
    keep_ms: int,
) -> CatalogContents:
    """Return all rows of the new catalog. The collector deletes skipped objects after `keep_ms`.

    New streams are led by `node_id`, each as a separate topic. Each stream prefers its leader.
    """
    state = manifest.state
    wals = _wals(manifest, log)
    infos = {info.stream_id: info for info in state.streams}
    streams: list[RestoredStream] = []
    for stream_id, chain in sorted(plan.chains.items()):
        info, replay = infos.get(stream_id), reader.replays[stream_id]
        leader = node_id if info is None else info.leader
        streams.append(
            RestoredStream(
                stream_id=stream_id,
                epoch=(0 if info is None else info.epoch) + EPOCHS_SKIPPED,
                node_id=_owner(node_id if info is None else info.node_id, leader, wals, log),
                leader=leader,
                leader_epoch=max(replay.leader_epoch, 0 if info is None else info.leader_epoch) + EPOCHS_SKIPPED,
                start_offset=chain.start_offset,
                end_offset=chain.end_offset,
                snapshot=replay.encode(chain.start_offset),
                preferred=leader,
                replicas=(),
                ranges=[
                    RestoredRange(
                        piece.object_id, span, 0 if piece.stored_stream_id == stream_id else piece.stored_stream_id
                    )
                    for piece, span in reader.spans[stream_id]
                ],
            )
        )
    counters = dict(state.counters)
    counters["stream"] = max(counters["stream"], *(stream_id + 1 for stream_id in (0, *plan.new_streams)))
    counters["object"] = max(counters["object"], stored.id_max + 1) + OBJECT_IDS_SKIPPED
    epochs = _epochs(manifest, node_id, log, stored)
    seen = max((replay.producer_id for replay in reader.replays.values()), default=-1)
    counters["producer"] = max(counters["producer"], seen + 1) + PRODUCER_IDS_SKIPPED
    counters[FILE_COUNTER] = counters.get(FILE_COUNTER, 1) + TABLE_FILE_IDS_SKIPPED
    return CatalogContents(
        cluster=manifest.cluster,
        catalog_id=state.catalog_id,
        counters=counters,
        manifest=newest.manifest,
        progress=skip_progress(newest.progress, epochs),
        nodes=epochs,
        wals=_with_owners_live(wals, {stream.node_id for stream in streams}),
        topics=state.topics,
        new_topics=[
            RecoveredTopic(_free_name(stream_id, {topic.name for topic in state.topics}), new_topic_id(), stream_id)
            for stream_id in plan.new_streams
        ],
        detached=state.detached,
        configs=state.configs,
        acls=state.acls,
        tokens=state.tokens,
        streams=streams,
        objects=_objects(manifest, plan, stored, now_ms, keep_ms),
        tables=state.tables,
    )


def _owner(owner: int, leader: int, wals: Sequence[WalInfo], log: LocalLog | None) -> int:
    """Return the node whose log may hold records past a stream's end, or NOBODY, given the last owner that is known."""
    if owner == NOBODY:
        owner = leader  # may have opened it after the manifest
    if log is not None and log.wal.node_id == owner:
        return NOBODY if log.wal.state is WalState.DRAINED else owner
    return owner if any(wal.node_id == owner and wal.state is not WalState.GIVEN_UP for wal in wals) else NOBODY


def _with_owners_live(wals: Sequence[WalInfo], owners: Collection[int]) -> Sequence[WalInfo]:
    """Return the logs with the newest one of each owner of streams open: its node may have used it after the manifest.

    A node that owns streams has a log that may hold something of them. Whoever opens that log finds out what it holds.
    """
    usable = [wal for wal in wals if wal.state is not WalState.GIVEN_UP and wal.node_id in owners]
    newest = {wal.node_id: wal.wal_id for wal in sorted(usable, key=lambda wal: wal.node_epoch)}
    return [replace(wal, state=WalState.OPEN) if newest.get(wal.node_id) == wal.wal_id else wal for wal in wals]


def _free_name(stream_id: int, taken: Collection[str]) -> str:
    name = f"recovered-stream-{stream_id}"
    while name in taken:
        name += "-"
    return name


def _epochs(manifest: Manifest, node_id: int, log: LocalLog | None, stored: StoreContents) -> Mapping[int, int]:
    """Return epochs of the nodes, higher than that of any process that may still run."""
    epochs = dict(manifest.state.nodes)
    epochs.setdefault(node_id, 0)
    if log is not None:
        epochs[node_id] = max(epochs[node_id], log.wal.node_epoch)
    for found in stored.objects.values():
        writer = parse_upload_writer(found.writer_id)
        if writer is not None:
            epochs[writer.node_id] = max(epochs.get(writer.node_id, 0), writer.node_epoch)
    return {key: epoch + EPOCHS_SKIPPED for key, epoch in epochs.items()}


def _wals(manifest: Manifest, log: LocalLog | None) -> Sequence[WalInfo]:
    """Return the logs of the nodes; the local log may hold records, unless it was given up."""
    wals = {wal.wal_id: wal for wal in manifest.state.wals}
    if log is not None:
        known = wals.get(log.wal.wal_id)
        if known is None:
            wals[log.wal.wal_id] = log.wal
        elif known.state is not WalState.GIVEN_UP:
            wals[log.wal.wal_id] = replace(log.wal, kind=known.kind, takeover=known.takeover)
    return list(wals.values())


def _objects(
    manifest: Manifest, plan: RebuildPlan, stored: StoreContents, now_ms: int, keep_ms: int
) -> Sequence[ObjectInfo]:
    nodes = {object_id: node_id for node_id, ids in manifest.state.committed.items() for object_id in ids}
    used = {piece.object_id for chain in plan.chains.values() for piece in chain.pieces}
    rows: list[ObjectInfo] = []
    found: list[FoundObject | UnreadableObject] = [*stored.objects.values(), *stored.unreadable]
    for each in found:
        writer = parse_upload_writer(each.writer_id)
        is_output = writer is None and bool(each.writer_id)
        if plan.skipped.get(each.object_id) is SkipReason.UNCOMMITTED or not (
            is_output or isinstance(each, FoundObject)
        ):
            continue  # without a row it is never deleted
        node_id = nodes.get(each.object_id, manifest.node.node_id if writer is None else writer.node_id)
        taken = each.object_id in used
        committed_ms = max(1, each.modified_ms) if taken else 0
        compaction = parse_compaction_writer(each.writer_id)
        info = ObjectInfo(
            each.object_id,
            each.kind if isinstance(each, FoundObject) else ObjectKind.SSO,
            ObjectState.COMMITTED if taken else ObjectState.DESTROYED,
            each.store,
            each.size_bytes,
            node_id,
            each.writer_id,
            0 if taken else now_ms + keep_ms,
            committed_ms,
            compaction.oldest_data_ms or committed_ms,
            compaction.cleaned,
        )
        rows.append(info)
    return rows
