"""Claim of a log for a node, while a former owner of the device may still be writing.

The claimer reads both copies of the header, overwrites one that is not its own with its claim, and repeats, until both
copies that it reads are its own: then the claim is **established**. A claim carries the newest state that was read. If
a newer state appears in the meantime, that one is claimed. `FORMAT.md`, "Fencing", proves that no acked record is lost
and no state that was in use is missed.
"""

from dataclasses import replace
from typing import Final

from anabranch.wal.format import HEADER_COPIES, Header, decode_copies, newest_header
from anabranch.wal.interface import WalCorrupt, WalFailed, WalRefused
from anabranch.wal.owner import Owner, blank_header, check_owner, header_of, read_beginning, read_copies, write_header
from anabranch.wal.requests import Device, IoKind, perform
from anabranch.wal.settings import WalSettings

_WRITES_MAX: Final = 32
"""Claims written before giving up. A running former owner overwrites one or two, until it next reads the header."""


async def claim(device: Device, settings: WalSettings, owner: Owner, now_ms: int) -> tuple[Header, Header]:
    """Claim the log for `owner`; return the header as it was found (new for a blank device) and as it is now.

    Raises WalRefused, WalCorrupt, WalFenced or WalFailed.
    """
    page = await read_beginning(device)
    found: Header | None
    try:
        found = header_of(page, device)
        if found is not None:
            check_owner(found, device.name, owner)
    except (WalRefused, WalCorrupt):
        if not settings.format:
            raise
        found = None
    formatting = found is None
    found = found or blank_header(settings, device, owner, now_ms)
    sequence = found.sequence
    written: set[int] = set()
    while True:
        if not formatting:
            found = _newest(page, found, owner, device.name)
        claimed = replace(found, node_epoch=owner.node_epoch, catalog_id=owner.catalog_id, last_write_ms=now_ms)
        copies = decode_copies(page)
        open_copies = [number for number, copy in enumerate(copies) if not _is_claim(copy, claimed, written)]
        if not open_copies:
            return found, replace(claimed, sequence=sequence)
        if len(written) == _WRITES_MAX:
            raise WalFailed(
                f"{device.name}: {_WRITES_MAX} claims of the log were overwritten: another node continues to write its "
                "header; stop that node, then start this one again"
            )
        number = min(open_copies, key=lambda number: _overwrite_order(copies[number]))
        sequence = max([sequence, *(copy.sequence for copy in copies if isinstance(copy, Header))]) + 1
        sequence += sequence % HEADER_COPIES != number
        written.add(sequence)
        await write_header(device, replace(claimed, sequence=sequence))
        # An earlier process may have left unflushed writes in the device's cache: this makes them durable.
        await perform(device, IoKind.FLUSH)
        page = await read_copies(device)


def _newest(page: memoryview, found: Header, owner: Owner, device_name: str) -> Header:
    """Return the newest state so far. Raises WalRefused or WalFenced if another node has claimed the log."""
    newest = newest_header(page)
    if newest is None:
        return found
    if newest.log_id != found.log_id:
        raise WalRefused(f"{device_name}: formatted by another program while this node claimed it")
    check_owner(newest, device_name, owner)
    return newest if newest.state_version > found.state_version else found


def _is_claim(copy: Header | str, claimed: Header, written: set[int]) -> bool:
    """Return whether a copy was written by this claim, with the newest state."""
    return (
        isinstance(copy, Header)
        and copy.sequence in written
        and replace(copy, sequence=0) == replace(claimed, sequence=0)
    )


def _overwrite_order(copy: Header | str) -> tuple[int, int, int]:
    """Sort key for the order of overwriting copies: a damaged one first, the newest state last."""
    return (*copy.state_version, copy.sequence) if isinstance(copy, Header) else (-1, 0, 0)
