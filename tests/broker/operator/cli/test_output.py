"""Tables, JSON and YAML of commands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anabranch.output import emit, make_console, make_facts, make_table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def no_table(_console: Console) -> None:
    raise AssertionError("no table was asked for")


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_read_back_what_was_printed(form: str, read: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @given(VALUES)
    def check(value: Any) -> None:
        emit(form, value, no_table)
        assert read(capsys.readouterr().out) == value

    check()


def test_a_row_of_a_pipe_is_one_line_without_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    table = make_table("name", "value", right=("value",))
    table.add_row("x" * 500, "[red]1[/red]")
    make_console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["name", "value"], ["x" * 500, "1"]]


@pytest.mark.parametrize("colours", [False, True])
def test_no_line_ends_in_blanks(
    colours: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    table = make_table("name", "value", "", title="Title")
    table.add_row("a", "a value that takes two lines, [red]this one[/red]", "")
    table.add_row("a longer name", "", "")
    make_console().print(table)
    make_console().print(make_facts([("a", "short"), ("b", ""), ("c", "not [green]short[/green]")]))
    shown = capsys.readouterr().out
    assert ("\x1b[" in shown) == colours
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert lines == [
        "Title",
        "name           value",
        "a              a value that",
        "               takes two",
        "               lines, this",
        "               one",
        "a longer name",
        "a  short",
        "b",
        "c  not short",
    ]


def test_all_tables_are_of_one_kind() -> None:
    folder = Path(__file__).parents[4] / "broker" / "operator" / "cli"
    made = [path.name for path in folder.glob("*.py") if re.search(r"\bTable(\.grid)?\(", path.read_text())]
    assert made == []
