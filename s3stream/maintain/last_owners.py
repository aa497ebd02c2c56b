"""The last owners of streams, for the rebuild of a catalog. Pure: states and marks in, a state out.

A state may be older than the last change of an owner: a manifest is written a second after it, and one that was written
by a node that had not noticed that the catalog had gone back has a higher number and earlier owners. Every change of an
owner gives the stream its next epoch, so the highest epoch in manifests and marks is that of the last owner that the
catalog had. All that was acknowledged and not uploaded is in that owner's log, or in no other.

A rebuild, or continuing with an older copy, begins a new life of the catalog, which may give ids of streams again that
an earlier one gave after its last manifest, or after the copy. So what is left of an earlier life says nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anabranch.s3stream.catalog.manifest_state import CatalogState, OwnedStreams, StreamState
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import WalInfo
from anabranch.s3stream.maintain.rebuild_plan import EPOCHS_SKIPPED


def is_of_earlier_life(node_epochs: Mapping[int, int], state: CatalogState) -> bool:
    """Return whether the epochs that nodes had are of a life of the catalog before that of the state."""
    return any(epoch + EPOCHS_SKIPPED <= state.nodes.get(node_id, 0) for node_id, epoch in node_epochs.items())


def with_last_owners(
    state: CatalogState, others: Iterable[CatalogState], marks: Iterable[OwnedStreams]
) -> CatalogState:
    """Return the state with the owner of the highest epoch for each stream, and with logs that it does not know.

    A stream that the state does not know stays unknown, and one that is detached has no owner.
    """
    streams = {each.stream_id: each for each in state.streams if each.leader != NOBODY}
    wals: dict[str, WalInfo] = {}

    def note(found: StreamState, found_wals: Iterable[WalInfo]) -> None:
        known = streams.get(found.stream_id)
        if known is None or known.epoch >= found.epoch or found.leader == NOBODY:
            return
        streams[found.stream_id] = known._replace(
            epoch=found.epoch,
            node_id=found.node_id,
            leader=found.leader,
            leader_epoch=max(known.leader_epoch, found.leader_epoch),
        )
        wals.update({wal.wal_id: wal for wal in found_wals if wal.node_id == found.node_id})

    for other in others:
        if not is_of_earlier_life(other.nodes, state):
            for each in other.streams:
                note(each, other.wals)
    for wal, epochs in marks:
        if not is_of_earlier_life({wal.node_id: wal.node_epoch}, state):
            for stream_id, epoch in epochs.items():
                note(StreamState(stream_id, epoch, wal.node_id, wal.node_id, 0, 0, 0), [wal])
    known_wals = {wal.wal_id for wal in state.wals}
    added = [wal for wal_id, wal in wals.items() if wal_id not in known_wals]
    epochs_of = {wal.node_id: wal.node_epoch for wal in sorted(added, key=lambda wal: wal.node_epoch)}
    return replace(
        state,
        streams=[streams.get(each.stream_id, each) for each in state.streams],
        wals=[*state.wals, *added],
        nodes={**epochs_of, **state.nodes},
    )
