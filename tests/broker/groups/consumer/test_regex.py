"""Patterns of topic names against Python's own engine, where both speak the same language."""

import re
import string
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.groups.consumer.regex import compile_pattern
from protocol.errors import ErrorCode, KafkaError

pieces = st.recursive(
    st.sampled_from(
        ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c0-3]", r"\d", r"\w", r"\W", r"\S", r"\b", r"\B", "^", "$"]
    ),
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


@given(pieces, st.lists(st.text("ab1-._", min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
def test_it_agrees_with_python(pattern: str, names: list[str], ignore_case: bool) -> None:
    theirs = re.compile(pattern, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    ours = compile_pattern(f"(?i){pattern}" if ignore_case else pattern)
    assert ours.matching(names) == frozenset(name for name in names if theirs.fullmatch(name))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("flights.*", ["flights", "flights-2013"], ["my-flights"]),
        ("a|b", ["a", "b"], ["ab", ""]),
        (r"\Qa.b*\E+", [], ["a.b", "axb"]),
        (r"\Qa.b\E", ["a.b"], ["axb"]),
        ("(?P<name>x)(?<other>y)", ["xy"], ["x"]),
        ("(?i)AbC", ["abc", "ABC"], ["abd"]),
        ("(?i:a)b", ["Ab", "ab"], ["aB"]),
        ("a(?i)b|c", ["aB", "C"], ["A"]),
        ("(?s-i)a", ["a"], ["A"]),
        ("[[:alpha:]]+[[:^alpha:]]", ["ab1"], ["ab"]),
        (r"[\d\-x]+", ["1-x"], ["y"]),
        ("[]a]", ["a"], ["b"]),
        ("[a-]", ["-", "a"], ["b"]),
        (r"\x61\x{62}", ["ab"], ["x61"]),
        (r"\At\z", ["t"], ["tt"]),
        ("a{,2}", [], ["a", "aa"]),
        ("", [""], ["a"]),
        ("(a|)+b", ["b", "aab"], ["ba"]),
        ("(a*)*", ["", "aaa"], ["b"]),
    ],
)
def test_it_speaks_re2(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in yes if not compiled.matches(name)] == []
    assert [name for name in no if compiled.matches(name)] == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{3,2}", "invalid repeat count: `{3,2}`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("[[:nothing:]]", "invalid character class range: `[:nothing:]`"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)b", "invalid or unsupported Perl syntax"),
        ("(?P<>a)", "invalid named capture: ``"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        (r"\pL", r"invalid escape sequence: `\p`"),
        (r"\x{110000}", r"invalid escape sequence: `\x110000`"),
        ("a\\", "trailing backslash at end of expression"),
        ("(a{1000}){1000}", "expression too large: more than 1024 states"),
        ("(" * 60 + ")" * 60, "expression nests too deeply"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(KafkaError) as refused:
        compile_pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.value.message == f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {problem}."


def test_a_long_pattern_is_refused_unread() -> None:
    with pytest.raises(KafkaError, match="1025 characters"):
        compile_pattern("a" * 1025)


@given(st.text(string.printable, max_size=40))
def test_garbage_compiles_or_is_refused(pattern: str) -> None:
    with suppress(KafkaError):
        compile_pattern(pattern).matches("some-topic_1.x")


def test_patterns_that_make_others_backtrack_take_no_time() -> None:
    assert not compile_pattern("(a+)+b").matches("a" * 249)
    assert not compile_pattern("(a|a?)+b").matches("a" * 249)
    assert compile_pattern("(x+x+)+y").matches("x" * 248 + "y")
