"""Addresses have one notation, everywhere."""

import re
from pathlib import Path

import pytest

from anabranch.addresses import host_port, normal_address, normal_host

ROOT = Path(__file__).resolve().parents[2]
JOINED_BY_HAND = re.compile(r"host\)?\}:\{")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("localhost", None),
        ("*", None),
        ("", None),
    ],
)
def test_addresses_have_one_notation(text: str, address: str | None) -> None:
    assert normal_address(text) == address
    assert normal_host(text) == (text if address is None else address)


def test_an_address_of_version_6_is_in_brackets_before_a_port() -> None:
    assert host_port("::1", 9092) == "[::1]:9092"
    assert host_port("localhost", 9092) == "localhost:9092"


def test_no_other_code_writes_hosts_before_ports() -> None:
    files = [path for room in ("src", "broker", "s3stream", "spark", "tables") for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if JOINED_BY_HAND.search(line) and "bracketed(" not in line
    ]
    assert found == []
