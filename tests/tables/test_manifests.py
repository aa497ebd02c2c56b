"""Manifests that a commit's own one replaces."""

import itertools
import random

import pytest
from pyiceberg.manifest import ManifestContent, ManifestFile

from anabranch.tables.manifests import MANIFEST_BYTES_MAX, replaced_manifests


def manifest(uri: str, files: int, size_bytes: int = 1000) -> ManifestFile:
    """Return a manifest of files that are live."""
    return ManifestFile.from_args(
        manifest_path=uri,
        manifest_length=size_bytes,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=files,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=files,
        existing_rows_count=0,
        deleted_rows_count=0,
    )


def replaced(sizes: list[int], touched: str = "", *, added: int = 0, removed: int = 0, complete: str = "") -> str:
    """Return the names of the manifests that are replaced of a, b, ..., with these numbers of files."""
    names = "abcdefgh"[: len(sizes)]
    some = [
        manifest(name, size, MANIFEST_BYTES_MAX if name in complete else 1000)
        for name, size in zip(names, sizes, strict=True)
    ]
    return "".join(each.manifest_path for each in replaced_manifests(some, {*touched}, added, removed))


@pytest.mark.parametrize(
    ("sizes", "added", "expected"),
    [
        ([], 1, ""),
        ([1], 1, "a"),
        ([2], 1, ""),
        ([1, 3], 1, "ab"),
        ([1, 4], 1, "a"),
        ([1, 2, 4, 8], 1, "abcd"),
        ([1, 9, 2], 1, "a"),  # only neighbours
        ([30, 60], 20, "ab"),
        ([0, 5, 0], 1, "ac"),
        ([1, 2], 0, ""),
    ],
)
def test_smaller_neighbours_are_taken_in(sizes: list[int], added: int, expected: str) -> None:
    assert replaced(sizes, added=added) == expected


def test_manifests_of_removed_files_are_replaced() -> None:
    assert replaced([1, 8, 20], "b", added=1, removed=2) == "ab"
    assert replaced([9, 30], "a", removed=8) == "a"
    assert replaced([9], "a", removed=9) == "a"


def test_complete_manifests_are_replaced_by_removals_only() -> None:
    assert replaced([1, 1, 1], added=1, complete="b") == "a"
    assert replaced([1, 1, 1], "b", added=1, removed=1, complete="b") == "abc"


def test_the_number_of_manifests_is_logarithmic_and_entries_are_rewritten_as_often() -> None:
    choose = random.Random(3)
    sizes: list[int] = []
    written = files = 0
    for _ in range(3000):
        added = choose.randrange(1, 8)
        some = [manifest(str(at), size) for at, size in enumerate(sizes)]
        gone = {int(each.manifest_path) for each in replaced_manifests(some, (), added, 0)}
        merged = added + sum(sizes[at] for at in gone)
        sizes = [merged, *(size for at, size in enumerate(sizes) if at not in gone)]
        written += merged
        files += added
        assert len(sizes) <= files.bit_length()
        assert all(after >= 2 * before for before, after in itertools.pairwise(sizes))
    assert written <= files * files.bit_length()
