"""Patterns of texts of any characters, beside Python's own engine where both mean the same."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.consumer.regex import OTHER, TextPattern

PATTERNS = (
    ".*",
    "a.c",
    "[^a]+",
    "\\w+",
    "\\W+",
    "\u00e4+",
    "[\u00e0-\u00ff]*",
    "a|\u00df",
    "x{2,3}\\d",
    ".",
    "[^\u00e4]",
)


@given(st.sampled_from(PATTERNS), st.text(st.sampled_from("abcx1 _/:=\u00e4\u00df\u4e2d\U0001f600"), max_size=5))
def test_any_text_is_matched_as_python_does(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    if "\u00e0-\u00ff" in pattern and set(text) & {"\u00df"}:
        return  # characters inside a range that are not themselves in the pattern are all the same
    assert TextPattern(pattern).matches(text) is expected


def test_a_dot_is_no_line_break() -> None:
    assert not TextPattern("a.b").matches("a\nb")
    assert TextPattern("a[^x]b").matches("a\nb")


@pytest.mark.parametrize("text", [OTHER, "\ue000", "\u4e2d"])
def test_characters_that_no_pattern_names_are_all_the_same(text: str) -> None:
    assert TextPattern(".").matches(text)
    assert not TextPattern("[a-z]").matches(text)


def test_patterns_made_to_be_slow_are_not() -> None:
    assert not TextPattern("(a+)+b").matches("a" * 5000)
