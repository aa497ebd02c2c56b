"""Plan of a resize: the new positions of live bytes when the length of the ring changes. Pure.

A position is derived from an offset and the ring's length, so another length moves every byte, unless the base offset
is changed with it. The plan keeps live bytes in place if possible. Else it copies them to places without live bytes.
"""

from dataclasses import dataclass

from anabranch.wal.format import RING_POSITION, Header
from anabranch.wal.interface import WalRefused


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """Copies, in any order, to be made before the header with `base_offset` and the new capacity is written."""

    base_offset: int
    copies: tuple[tuple[int, int, int], ...]
    """Source position, target position, length in bytes."""


def plan_resize(header: Header, capacity_bytes: int, device_name: str) -> ResizePlan:
    """Plan for a log that was stopped gracefully. Raises WalRefused if its live bytes do not fit."""
    ring_bytes = capacity_bytes - RING_POSITION
    live_bytes = header.durable_offset - header.head_offset
    if live_bytes > ring_bytes:
        raise WalRefused(
            f"{device_name}: {live_bytes} bytes are not uploaded yet and {ring_bytes} bytes would be left for them: "
            "start the node and stop it cleanly first"
        )
    if live_bytes == 0:
        return ResizePlan(header.head_offset, ())
    live = [(position - RING_POSITION, length) for position, length in header.segments(header.head_offset, live_bytes)]
    first, first_bytes = live[0]
    if first + live_bytes <= ring_bytes:
        in_place = ResizePlan(_base_offset(header, first, ring_bytes), ())
        if len(live) == 1:
            return in_place
        # They wrap: the bytes at the ring's start move past its old end, which is free.
        (wrapped, wrapped_bytes) = live[1]
        copy = (RING_POSITION + wrapped, RING_POSITION + first + first_bytes, wrapped_bytes)
        return ResizePlan(in_place.base_offset, (copy,))
    target = _free_place(live, live_bytes, ring_bytes)
    if target is None:
        raise WalRefused(
            f"{device_name}: no free place for {live_bytes} bytes that are not uploaded yet: start the node and stop "
            "it cleanly first"
        )
    copies = []
    at = RING_POSITION + target
    for source, length in live:
        copies.append((RING_POSITION + source, at, length))
        at += length
    return ResizePlan(_base_offset(header, target, ring_bytes), tuple(copies))


def _base_offset(header: Header, place: int, ring_bytes: int) -> int:
    """Return the base offset that puts the head offset `place` bytes into the new ring."""
    base_offset = header.head_offset - place
    return base_offset if base_offset >= 0 else base_offset % ring_bytes


def _free_place(live: list[tuple[int, int]], live_bytes: int, ring_bytes: int) -> int | None:
    """Return a place in the new ring for `live_bytes` that overlaps no live byte, None if there is none."""
    place = 0
    for start, length in sorted(live):
        if min(start, ring_bytes) - place >= live_bytes:
            return place
        place = max(place, start + length)
    return place if ring_bytes - place >= live_bytes else None
