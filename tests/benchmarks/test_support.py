"""Results, goals and the JSON file."""

import json
from pathlib import Path

import pytest

from benchmarks.support import Report, Result, number, parser


@pytest.mark.parametrize(
    ("goal", "met"), [(None, None), (">= 2", True), (">= 2.1", False), ("<= 2", True), ("<= 1.99", False)]
)
def test_a_goal_is_met_or_not(goal: str | None, met: bool | None) -> None:
    assert Result("name", 2.0, "x", goal).met is met


def test_the_file_lists_name_value_unit_goal_met(tmp_path: Path) -> None:
    report = Report("title")
    assert report.add("speed", 3.5, "MB/s", ">= 3") == 3.5
    report.add("size", 7, "MiB")
    options = parser("x").parse_args(["--json", str(tmp_path / "out.json")])
    report.finish(options, show=False)
    assert json.loads((tmp_path / "out.json").read_text()) == [
        {"name": "speed", "value": 3.5, "unit": "MB/s", "goal": ">= 3", "met": True},
        {"name": "size", "value": 7, "unit": "MiB", "goal": None, "met": None},
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (0.345, "0.34"), (0, "0"), (float("nan"), "?")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
