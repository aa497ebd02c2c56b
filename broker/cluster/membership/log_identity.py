"""The decision whether a node may start on the log that its settings name. Pure: facts in, reason of a refusal out.

Until it is in objects, an acknowledged record is in exactly one log. So a node that may have records in one log must
not start on another: the offsets of those records would be assigned again, and if the first log returned, one stream
would have two histories. The catalog keeps the id, location and state (`WalState`) of every log of a node. The log's
header names cluster, catalog, node and epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from anabranch.broker.cluster.membership.start_log import FoundLog
from anabranch.s3stream.catalog.values import WalInfo, WalState
from anabranch.wal.format import Header, Shutdown, wal_id_of
from anabranch.wal.owner import Owner

GIVE_UP_COMMAND: Final = "anabranch wal give-up"


def may_hold_records(header: Header) -> bool:
    """Return whether a log may hold records, judging by its header. Only a clean stop after a full trim proves not."""
    return header.shutdown is not Shutdown.GRACEFUL or header.durable_offset > header.head_offset


def found_log(header: Header) -> FoundLog:
    """Return what a log's header says of it."""
    return FoundLog(wal_id_of(header.log_id), header.node_epoch, may_hold_records(header))


def utc(ms: int) -> str:
    """Format ms since 1970, for messages."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about a node that is about to use a log."""

    path: str
    """Path of the log in the settings."""
    found: FoundLog | None
    """A log whose cluster, catalog, node and epoch allow the node to claim it."""
    problem: str
    """State of the path without such a log: "is missing", "is blank", or content that must be formatted first."""
    wals: Sequence[WalInfo]
    """Logs that the node has used, from the catalog."""
    open_streams: int
    """Number of streams whose last records may be in the node's log."""
    host_name: str
    """Machine of the process that last ran the node; empty if unknown."""


def why_refused(facts: LogFacts) -> str | None:
    """Return why the node must not use this log, in one line with remedies; None if it may."""
    found = facts.found
    wal_id = "" if found is None else found.wal_id
    known = {wal.wal_id: wal for wal in facts.wals}
    own = known.pop(wal_id, None)
    if own is not None and own.state is WalState.GIVEN_UP:
        return (
            f"{facts.path}: this log ({wal_id}) was given up on {utc(own.seen_ms)}, and the offsets of its records "
            "may have been assigned again: keep it for inspection (`anabranch wal inspect`), and set wal.path to "
            "another place"
        )
    if own is not None and found is not None and own.state is WalState.OPEN and found.node_epoch < own.node_epoch:
        return (
            f"{facts.path}: this is an older copy of the node's log ({wal_id}): it was last claimed in node epoch "
            f"{found.node_epoch}, and the log itself in epoch {own.node_epoch}, so acknowledged records may be missing "
            "from the copy. Bring the log itself back"
        )
    left = [wal for wal in known.values() if wal.is_live]
    if left and facts.open_streams:
        return _why_not_without(left[-1], facts)
    later = [wal for wal in known.values() if found is not None and wal.node_epoch > found.node_epoch]
    if found is not None and found.may_hold_records and later:
        return (
            f"{facts.path}: this log ({wal_id}) may hold records from before the node used another log "
            f"({later[-1].wal_id}, at {later[-1].location}): they would be appended after newer records. Keep it, and "
            "set wal.path to the other log"
        )
    return None


def _why_not_without(wal: WalInfo, facts: LogFacts) -> str:
    """Describe the log that may hold acknowledged records but is not the log that was found."""
    host = f" on {facts.host_name}" if facts.host_name else ""
    found = facts.found
    instead = facts.problem if found is None else f"holds another log ({found.wal_id})"
    return (
        f"{facts.path} {instead}, but node {wal.node_id} has a log ({wal.wal_id}, at {wal.location}{host}, last "
        f"opened on {utc(wal.seen_ms)}) that may hold acknowledged records which are in no object: the newest of "
        f"{facts.open_streams:,} partitions may be only there. Bring it back, or set wal.path to it; if it is "
        f"lost, accept the loss with `{GIVE_UP_COMMAND}`"
    )


def why_not_formatted(path: str, found: Header, owner: Owner) -> str | None:
    """Return why a log of another owner must not be formatted although the settings demand it; None if it may."""
    if (found.cluster, found.node_id) != (owner.cluster, owner.node_id) or not may_hold_records(found):
        return None
    return (
        f"{path}: not formatted: it holds a log of this node of cluster {found.cluster!r} that may have "
        f"acknowledged records (last written on {utc(found.last_write_ms)}), but belongs to another catalog "
        f"({found.catalog_id.hex()}): check catalog.url. If it is not needed, remove the file, or zero the first 8 KiB "
        "of the device"
    )


def why_blank_catalog_refused(catalog: str, found: str) -> str:
    """Return why a catalog without any registration is refused: the node has a log or objects (`found`)."""
    return (
        f"the catalog {catalog} is empty or missing, but {found}: with an empty catalog, acknowledged records could no "
        "longer be found. Check catalog.url; if the catalog is lost, restore a backup, or make a new one from the "
        "objects (`anabranch catalog rebuild`). To start from scratch on purpose, use other places for log and "
        "objects"
    )
