"""Sizes as people write and read them."""

import pytest

from anabranch.broker.node.settings.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("2147483648", 1 << 31),
        ("512MiB", 512 << 20),
        ("512m", 512 << 20),
        (" 4 GiB ", 4 << 30),
        ("64MB", 64_000_000),
        ("1kb", 1_000),
        ("1TiB", 1 << 40),
        ("7b", 7),
    ],
)
def test_sizes_with_and_without_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "1.5GiB", "-1", "5 parsecs", "9" * 19])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="as in 512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        ((1 << 30) - 8192, "1 GiB"),
        ((1 << 30) - (1 << 20), "1,023 MiB"),
        (3 << 60, "3,072 PiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
