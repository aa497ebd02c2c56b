"""Decides whether a node may start on the log that its settings name: facts in, the reason of a refusal out, no IO.

What is acknowledged lies in exactly one log until it is in objects. So a node that may have records in one log must not
begin another one: the offsets of those records would be given a second time, and when the first log returned, two
histories would stand in one stream. The catalog remembers every log of a node by its id, its place and its state
(`WalState`); the log's header names cluster, catalog, node and epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from s3stream.catalog.values import WalInfo, WalState
from wal.format import Header, Shutdown
from wal.owner import Owner

GIVE_UP_COMMAND: Final = "anabranch wal give-up"


def wal_id_of(log_id: int) -> str:
    """Name of a log in the catalog, from the log id in its header."""
    return f"{log_id:016x}"


def may_hold_records(header: Header) -> bool:
    """Whether a log may hold records, going by its header: a clean stop with everything trimmed proves the contrary."""
    return header.shutdown is not Shutdown.GRACEFUL or header.durable_offset > header.head_offset


def utc(ms: int) -> str:
    """A moment in a message, from ms since 1970."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What is known when a node is about to use a log."""

    path: str
    """Where the settings say that the log is."""
    found: Header | None
    """Header of a log that the node may claim, by cluster, catalog, node and epoch."""
    problem: str
    """What is there when no such log is: "is missing", "is blank", or what has to be formatted first."""
    wals: Sequence[WalInfo]
    """The logs that the node has used, by the catalog."""
    open_streams: int
    """Streams whose last records may be in the node's log."""
    host_name: str
    """Machine of the process that ran the node last; empty: not known."""


def why_refused(situation: LogFacts) -> str | None:
    """The reason, in one line with the ways out, why the node must not use this log; None when it may."""
    found = situation.found
    wal_id = "" if found is None else wal_id_of(found.log_id)
    known = {wal.wal_id: wal for wal in situation.wals}
    own = known.pop(wal_id, None)
    if own is not None and own.state is WalState.GIVEN_UP:
        return (
            f"{situation.path}: this log ({wal_id}) was given up on {utc(own.seen_ms)}, and the offsets of its records "
            "are free for others since: keep it aside if you want to look at them (`anabranch wal inspect`), and let "
            "wal.path name another place"
        )
    if own is not None and found is not None and own.state is WalState.OPEN and found.node_epoch < own.node_epoch:
        return (
            f"{situation.path}: this is an older copy of the node's log ({wal_id}): it was claimed last in node epoch "
            f"{found.node_epoch}, and the log in epoch {own.node_epoch}, so that acknowledged records may be missing "
            "from it. Bring the log itself back"
        )
    left = [wal for wal in known.values() if wal.state is WalState.OPEN]
    if left and situation.open_streams:
        return _why_not_without(left[-1], situation)
    later = [wal for wal in known.values() if found is not None and wal.node_epoch > found.node_epoch]
    if found is not None and may_hold_records(found) and later:
        return (
            f"{situation.path}: this log ({wal_id}) may hold records from before the node went on with another log "
            f"({later[-1].wal_id}, at {later[-1].location}): they would follow what came after them. Keep it aside, "
            "and let wal.path name the other one"
        )
    return None


def _why_not_without(wal: WalInfo, situation: LogFacts) -> str:
    """A log that may hold acknowledged records is not the one that was found."""
    host = f" on {situation.host_name}" if situation.host_name else ""
    found = situation.found
    instead = situation.problem if found is None else f"holds another log ({wal_id_of(found.log_id)})"
    return (
        f"{situation.path} {instead}, but node {wal.node_id} has a log ({wal.wal_id}, at {wal.location}{host}, opened "
        f"last on {utc(wal.seen_ms)}) that may hold acknowledged records which are in no object: the newest of "
        f"{situation.open_streams:,} partitions may be only there. Bring it back, or let wal.path name it; if it is "
        f"lost, accept the loss with `{GIVE_UP_COMMAND}`"
    )


def why_not_formatted(path: str, found: Header, owner: Owner) -> str | None:
    """Why a log that the node may not claim must not be formatted either, though the settings say so; None: it may."""
    if (found.cluster, found.node_id) != (owner.cluster, owner.node_id) or not may_hold_records(found):
        return None
    return (
        f"{path}: not formatted: it holds a log of this very node of cluster {found.cluster!r} which may have "
        f"acknowledged records (written last on {utc(found.last_write_ms)}), but which belongs to another catalog "
        f"({found.catalog_id.hex()}): check catalog.url. If nobody needs it, remove the file, or zero the first 8 KiB "
        "of the device"
    )


def why_blank_catalog_refused(catalog: str, beside: str) -> str:
    """What a node is told that has a log or objects, and a catalog in which nothing was ever registered."""
    return (
        f"the catalog {catalog} is empty or not there, but {beside}: with an empty catalog what was acknowledged could "
        "not be found any more. Check catalog.url; if the catalog is lost, restore a backup of it, or make a new one "
        "from the objects (`anabranch catalog rebuild`). To begin anew on purpose, take other places for log and "
        "objects"
    )
