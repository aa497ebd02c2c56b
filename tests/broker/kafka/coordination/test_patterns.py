"""Patterns next to Python's own engine where both mean the same, and RE2's syntax where they do not."""

import re
import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.coordination.patterns import PATTERN_CHARACTERS_MAX, Pattern
from anabranch.protocol.errors import ErrorCode, KafkaError

ATOMS = ("a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c0-3]", r"\d", r"\w", r"\W", r"\S", r"\b", r"\B", "^")
BEYOND_ASCII = ("\u00e4", "[\u00e0-\u00ff]", "[^\u00e0-\u00ff]", "[^\u00e4]", "[\u4e00-\u9fff]", "(?:a|\u00df)")
expressions = st.recursive(
    st.sampled_from(ATOMS + BEYOND_ASCII),
    lambda inner: st.one_of(
        st.builds(lambda x, y: x + y, inner, inner),
        st.builds(lambda x, y: f"(?:{x}|{y})", inner, inner),
        st.builds(lambda x: f"({x})", inner),
        st.builds(
            lambda x, op: f"(?:{x}){op}", inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{0}"])
        ),
    ),
    max_leaves=8,
)
texts = st.text(
    "ab1-._/ \u00e4\u00df\u00ff\u0100\u4e2d\U0001f600", min_size=1, max_size=6
)  # Python before 3.14 has no boundary in ""


@given(expressions, st.lists(texts, min_size=1, max_size=5))
def test_it_matches_what_python_matches(pattern: str, names: list[str]) -> None:
    theirs, ours = re.compile(pattern, re.ASCII), Pattern(pattern)
    assert [name for name in names if ours.matches(name)] == [name for name in names if theirs.fullmatch(name)]


def test_a_range_holds_the_characters_between_its_ends() -> None:
    assert Pattern("[\u00e0-\u00ff]*").matches("\u00e4")
    assert not Pattern("[\u00e0-\u00ff]*").matches("\u0100")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("flights.*", ["flights", "flights-2013"], ["my-flights"]),
        ("a|b", ["a", "b"], ["ab", ""]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["a.b", "axb"]),
        (r"\Qa.b\E", ["a.b"], ["axb"]),
        ("(?P<name>x)(?<other>y)", ["xy"], ["x"]),
        ("(?i)AbC", ["abc", "ABC"], ["abd"]),
        ("(?i:a)b", ["Ab", "ab"], ["aB"]),
        ("(?s-i)a", ["a"], ["A"]),
        ("a.b", ["axb"], ["a\nb"]),
        ("a[^x]b", ["a\nb"], ["axb"]),
        ("[[:alpha:]]+[[:^alpha:]]", ["ab1"], ["ab"]),
        (r"[\d\-x]+", ["1-x"], ["y"]),
        ("[]a]", ["a", "]"], ["b"]),
        (r"\x61\x{62}", ["ab"], ["x61"]),
        (r"\At\z", ["t"], ["tt"]),
        (r"\pL+", ["\u00e4b"], ["1"]),
        (r"\p{Greek}", ["\u03b1"], ["a"]),
        ("a{,2}", ["a{,2}"], ["a", "aa"]),
        ("", [""], ["a"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        (".", ["\ud800"], [""]),
    ],
)
def test_the_syntax_is_re2s(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in yes if not compiled.matches(name)] == []
    assert [name for name in no if compiled.matches(name)] == []


@pytest.mark.parametrize(
    ("pattern", "description"),
    [
        ("(a", "missing closing )"),
        ("(?<n>a", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a{3,2}", "invalid repeat count"),
        ("a{1001}", "invalid repeat count"),
        ("[z-a]", "invalid character class range"),
        ("[[:nothing:]]", "invalid character class range"),
        (r"\p{Nothing}", "invalid character class range"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)b", "invalid named capture"),
        ("(?P<>a)", "invalid named capture"),
        (r"(a)\1", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        ("a\\", "trailing backslash at end of expression"),
        (r"\pL{1000}", "expression too large"),
        ("a" * (PATTERN_CHARACTERS_MAX + 1), "1025 characters; at most 1024 are supported"),
    ],
)
def test_syntax_errors_are_described_as_by_apache_kafka(pattern: str, description: str) -> None:
    with pytest.raises(KafkaError) as refused:
        Pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.value.message == description


@given(st.text(string.printable, max_size=40))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    with suppress(KafkaError):
        Pattern(pattern).matches("some-topic_1.x")


@pytest.mark.timeout(30)
def test_patterns_that_make_others_backtrack_finish() -> None:
    assert not Pattern("(a+)+b").matches("a" * 5000)
    assert not Pattern("(a|a?)+b").matches("a" * 5000)
    assert Pattern("(x+x+)+y").matches("x" * 5000 + "y")
    assert not Pattern("(?:.?){900}b").matches("a" * 5000)
