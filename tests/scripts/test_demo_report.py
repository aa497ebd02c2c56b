from io import StringIO

from rich.console import Console, RenderableType

from scripts.demo.report import (
    Check,
    check_table,
    delay_table,
    moments_table,
    request_line,
    shown,
    size,
    storage_figures,
)
from scripts.demo.table import Departures

STATUS = {
    "objects": {
        "SSO committed": {"count": 2, "bytes": 2048},
        "SSO destroyed": {"count": 3, "bytes": 1024},
        "SO destroyed": {"count": 1, "bytes": 1024},
    },
    "wal": {"used_bytes": 0},
    "log_cache_bytes": 10,
    "block_cache_bytes": 20,
    "store_calls": {
        "put": 5, "multipart": 0, "part": 0, "get": 7, "head": 0, "list": 0, "delete": 0,
        "bytes_written": 100, "bytes_read": 3 << 20,
    },
}  # fmt: skip


def printed(table: RenderableType) -> str:
    output = StringIO()
    Console(file=output, width=80).print(table)
    return output.getvalue()


def test_sizes_are_for_people() -> None:
    assert [size(count) for count in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 B", "1,023 B", "1.0 KiB", "5.0 MiB", "3.00 GiB"
    ]  # fmt: skip


def test_checks_tell_what_was_expected() -> None:
    good, bad = Check("rows", 2, 2), Check("other rows", 1000, 999)
    assert (good.holds, bad.holds) == (True, False)
    lines = [line.split() for line in printed(check_table([good, bad])).splitlines()]
    assert ["ok", "rows", "2", "2"] in lines
    assert ["WRONG", "other", "rows", "1,000", "999"] in lines


def test_values_are_shown_short() -> None:
    assert [shown(value) for value in (True, 1_234_567, 5 * 10**15 + 7, {"a": 1}, [1, 2])] == [
        "yes", "1,234,567", "… 7", "1 counts", "2 rows"
    ]  # fmt: skip


def test_delays_stand_under_their_hours() -> None:
    rows = [
        Departures("UA", 5, 1200, 200, 7_400, 1, 1, 1),
        Departures("UA", 6, 1, 1, None, 1, 1, 1),
        Departures("B6", 23, 4, 0, -11, 1, 1, 1),
    ]
    lines = printed(delay_table(rows)).splitlines()
    assert lines[1].split() == ["flights", *(f"{hour:02}" for hour in range(5, 24))]
    assert lines[2].split() == ["UA", "1,201", "7", *["·"] * 18]
    assert lines[3].split() == ["B6", "4", *["·"] * 18, "-3"]
    assert max(map(len, lines)) <= 80


def test_storage_is_told_in_figures_and_zeros_are_left_out() -> None:
    figures = storage_figures(STATUS)
    assert figures["stream set objects (SSO)"] == "2: 2.0 KiB"
    assert figures["replaced, kept for readers"] == "4: 2.0 KiB"
    table = printed(moments_table("Storage", {"now": figures}))
    assert "GET calls" in table
    assert "LIST calls" not in table
    assert "stream objects (SO)" not in table


def test_requests_come_by_number() -> None:
    requests = {"Fetch": {"count": 2, "p50_us": 500_040}, "Produce": {"count": 1_000, "p50_us": 1_260}}
    assert request_line(requests) == "Produce 1,000 (1.3 ms), Fetch 2 (500.0 ms)"
