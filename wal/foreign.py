"""Recognition of foreign content on a device, so that a refusal can name it. Pure."""

from typing import Final

from anabranch.wal.interface import Buffer

PROBE_BYTES: Final = 128 << 10
"""Number of leading bytes of the device that `describe` needs."""

_SIGNATURES: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a Btrfs file system"),
    (0x410, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (0x218, b"LVM2 001", "an LVM physical volume"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID array"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "an NTFS file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
    (0, b"SQLite format 3\0", "an SQLite database"),
)


def describe(beginning: Buffer) -> str | None:
    """Return a description of the content that begins with these bytes; None if they are all zero."""
    for position, signature, name in _SIGNATURES:
        if bytes(beginning[position : position + len(signature)]) == signature:
            return name
    for position in range(0, len(beginning), 4096):
        page = bytes(beginning[position : position + 4096])
        if any(page):
            at = position + next(index for index, byte in enumerate(page) if byte)
            return f"unknown data (first non-zero byte at position {at})"
    return None
