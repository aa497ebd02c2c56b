"""Rules of every object store, so that code that works with one works with all."""

import itertools
from collections.abc import Sequence

from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.interface import PartReceipt

PART_BYTES_MIN = 5 * 1024 * 1024
"""Minimum size of every part of a multipart upload but the last (S3's limit)."""
PARTS_MAX = 10_000
"""Maximum number of parts of an upload (S3's limit)."""
KEY_BYTES_MAX = 1024
"""Maximum length of a key in UTF-8 (S3's limit)."""
PLAIN_PREFIX = "table/"
"""Prefix of the keys of files that other programs read where they lie: a store puts nothing in them but their bytes."""


def is_plain(key: str) -> bool:
    """Return whether the file of an object has the object's bytes and no others."""
    return key.startswith(PLAIN_PREFIX)


def check_key(key: str, *, where: str) -> None:
    """Raise StoreError for keys that not every store supports: empty segments, or ones that begin with a dot."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or "\0" in key:
        raise StoreError(f"{where}: bad key {key!r}: expected 1 to {KEY_BYTES_MAX} bytes, none of them zero")
    for segment in key.split("/"):
        if not segment or segment.startswith("."):
            raise StoreError(f"{where}: bad key {key!r}: segment {segment!r} is empty or begins with a dot")


def check_range(start: int, end: int, *, where: str) -> None:
    """Raise StoreError for ranges that are empty or negative."""
    if not 0 <= start < end:
        raise StoreError(f"{where}: bad range [{start}, {end}): expected 0 <= start < end")


def check_receipts(receipts: Sequence[PartReceipt], *, where: str) -> None:
    """Raise StoreError for an upload that S3 would refuse: without parts, out of order, small parts before the last."""
    if not 1 <= len(receipts) <= PARTS_MAX:
        raise StoreError(f"{where}: {len(receipts)} parts: expected 1 to {PARTS_MAX}")
    for before, after in itertools.pairwise(receipts):
        if after.number <= before.number:
            raise StoreError(f"{where}: part {after.number} after part {before.number}: expected ascending numbers")
        if before.size_bytes < PART_BYTES_MIN:
            found = before.size_bytes
            raise StoreError(f"{where}: part {before.number} has {found} bytes: expected at least {PART_BYTES_MIN}")
