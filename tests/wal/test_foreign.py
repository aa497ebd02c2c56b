"""Recognition of foreign contents on a device that has no log."""

import pytest

from anabranch.wal.foreign import PROBE_BYTES, describe


@pytest.mark.parametrize(
    ("position", "signature", "name"),
    [
        (0x438, b"\x53\xef", "ext4"),
        (0, b"XFSB", "XFS"),
        (0x10040, b"_BHRfS_M", "Btrfs"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (0x218, b"LVM2 001", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (512, b"EFI PART", "GPT"),
        (510, b"\x55\xaa", "partition table"),
        (0, b"SQLite format 3\0", "SQLite"),
        (70_000, b"?", "unknown data (first non-zero byte at position 70000)"),
    ],
)
def test_signatures(position: int, signature: bytes, name: str) -> None:
    beginning = bytearray(PROBE_BYTES)
    beginning[position : position + len(signature)] = signature
    found = describe(beginning)
    assert found is not None
    assert name in found


def test_blank_is_nothing() -> None:
    assert describe(bytes(PROBE_BYTES)) is None
    assert describe(b"") is None
