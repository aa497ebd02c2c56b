r"""Patterns of topic names, in the syntax of RE2/J, which is what Kafka's clients may send (KIP-848).

They come from strangers and are matched on the event loop, so matching takes time linear in the name whatever the
pattern: a pattern becomes a nondeterministic automaton of bounded size (Thompson, "Regular Expression Search
Algorithm", CACM 1968), whose sets of states are remembered as they are met. Python's `re` would not do: it backtracks,
and a dozen characters can keep it busy for years.

Served: literals, `.`, `[...]` with ranges, negation and POSIX classes, `\d \w \s` and their opposites, `\b \B \A \z ^
$`, groups (capturing, `(?:...)`, named), alternation, `* + ? {n} {n,} {n,m}` and their lazy forms, `\Q...\E`, the flags
i, s, m and U, escapes `\t \n \r \f \v \a \xHH \x{H...}`. A name matches as a whole. Not served, and refused: Unicode
classes (`\p{Greek}`; names of topics are ASCII), repetition beyond 1000, patterns of more than 1024 characters or 1024
states, and what RE2 refuses too: look-around and back-references.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.errors import ErrorCode, KafkaError

PATTERN_CHARACTERS_MAX = 1024
STATES_MAX = 1024
"""Bounds what a name costs: below a millisecond with patterns made to be slow, microseconds with others."""
REPEAT_MAX = 1000
GROUP_DEPTH_MAX = 50
REMEMBERED_SETS_MAX = 2000

CharacterSet: TypeAlias = frozenset[str]
ALPHABET: CharacterSet = frozenset(string.ascii_letters + string.digits + "._-")
"""Every character a topic name can have: all that a pattern must be decided for."""

OTHER = "\U0010ffff"
"""Stands for every character of a text that is neither ASCII nor in the pattern: no pattern tells those apart."""
_ASCII = frozenset(map(chr, range(128)))

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_CLASSES = {
    "d": frozenset(string.digits),
    "w": _WORD,
    "s": frozenset("\t\n\f\r "),
}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BEGIN, _END, _BOUNDARY, _NO_BOUNDARY = "begin", "end", "boundary", "no boundary"


@dataclass(slots=True)
class _State:
    """Where the automaton can be: it goes on by one of `characters`, or, where `check` holds, to each of `free`."""

    characters: CharacterSet | None = None
    next: int = -1
    check: str | None = None
    free: list[int] = field(default_factory=list)


_Fragment: TypeAlias = tuple[int, int]
"""First and last state of a piece; the last one is left with nothing to go on to."""


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, states: list[_State], start: int, end: int) -> None:
        self._states = states
        self._end = end
        self._start = start
        self._known: dict[str, bool] = {}
        self._steps: dict[tuple[frozenset[int], bool | str, str], frozenset[int]] = {}
        """From a set of states, what was before (nothing, a word character, another) and what comes: the next set."""

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        current = frozenset({self._start})
        previous = ""
        for character in [*name, ""]:
            key = (current, previous and previous in _WORD, character)
            following = self._steps.get(key)
            if following is None:
                if len(self._steps) >= REMEMBERED_SETS_MAX:
                    self._steps.clear()
                following = self._steps[key] = self._step(current, previous, character)
            if not following:
                return False
            current, previous = following, character
        return True

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match. What was decided the last time is not decided again."""
        known = self._known
        self._known = {name: known[name] if name in known else self.matches(name) for name in names}
        return frozenset(name for name, matches in self._known.items() if matches)

    def _step(self, current: frozenset[int], previous: str, character: str) -> frozenset[int]:
        reached = self._closure(current, previous, character)
        if not character:
            return frozenset(reached & {self._end})
        found = set()
        for index in reached:
            state = self._states[index]
            if state.characters is not None and character in state.characters:
                found.add(state.next)
        return frozenset(found)

    def _closure(self, current: frozenset[int], previous: str, character: str) -> set[int]:
        """Return all states to be reached without a character, between these two."""
        seen = set(current)
        todo = list(current)
        while todo:
            state = self._states[todo.pop()]
            if state.check is None or _holds(state.check, previous, character):
                for index in state.free:
                    if index not in seen:
                        seen.add(index)
                        todo.append(index)
        return seen


def _holds(check: str, previous: str, character: str) -> bool:
    if check == _BEGIN:
        return not previous
    if check == _END:
        return not character
    at_boundary = (previous in _WORD) != (character in _WORD)
    return at_boundary is (check == _BOUNDARY)


class TextPattern:
    """A compiled pattern of texts of any characters, such as ids that clients choose."""

    def __init__(self, text: str) -> None:
        """Compile. Raises INVALID_REGULAR_EXPRESSION."""
        self._alphabet = _ASCII | frozenset(text) | {OTHER}
        self._pattern = compile_pattern(text, self._alphabet)

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        known = self._alphabet
        return self._pattern.matches(
            text if text.isascii() else "".join(each if each in known else OTHER for each in text)
        )


def compile_pattern(text: str, alphabet: CharacterSet = ALPHABET) -> TopicPattern:
    """Compile a pattern for names of these characters. Raises INVALID_REGULAR_EXPRESSION."""
    parser = _Parser(text, alphabet)
    try:
        start, end = parser.parse()
    except _SyntaxError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {error}.",
        ) from None
    return TopicPattern(parser.states, start, end)


class _SyntaxError(Exception):
    """What is wrong with a pattern, in RE2's words where it has some."""


class _Parser:
    """Recursive descent over a pattern, building states as it goes."""

    def __init__(self, text: str, alphabet: CharacterSet) -> None:
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex has {len(text)} characters, more than the {PATTERN_CHARACTERS_MAX} served.",
            )
        self.states: list[_State] = []
        self._text = text
        self._alphabet = alphabet
        self._at = 0
        self._ignore_case = False
        self._depth = 0

    def parse(self) -> _Fragment:
        """Parse all of it."""
        found = self._alternatives()
        if self._at < len(self._text):
            raise _SyntaxError("unexpected )")
        return found

    # -- Characters

    def _peek(self, expected: str) -> bool:
        return self._text.startswith(expected, self._at)

    def _take(self, expected: str) -> bool:
        if self._peek(expected):
            self._at += len(expected)
            return True
        return False

    def _next(self, problem: str) -> str:
        if self._at >= len(self._text):
            raise _SyntaxError(problem)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, closing: str, problem: str) -> str:
        end = self._text.find(closing, self._at)
        if end < 0:
            raise _SyntaxError(problem)
        found = self._text[self._at : end]
        self._at = end + len(closing)
        return found

    # -- States

    def _new(self, state: _State | None = None) -> int:
        if len(self.states) >= STATES_MAX:
            raise _SyntaxError(f"expression too large: more than {STATES_MAX} states")
        self.states.append(state or _State())
        return len(self.states) - 1

    def _empty(self) -> _Fragment:
        state = self._new()
        return state, state

    def _set(self, characters: CharacterSet) -> _Fragment:
        end = self._new()
        return self._new(_State(characters & self._alphabet, end)), end

    def _check(self, check: str) -> _Fragment:
        end = self._new()
        return self._new(_State(check=check, free=[end])), end

    def _chain(self, first: _Fragment, second: _Fragment) -> _Fragment:
        self.states[first[1]].free.append(second[0])
        return first[0], second[1]

    def _either(self, first: _Fragment, second: _Fragment) -> _Fragment:
        end = self._new()
        start = self._new(_State(free=[first[0], second[0]]))
        for fragment in (first, second):
            self.states[fragment[1]].free.append(end)
        return start, end

    def _optional(self, piece: _Fragment) -> _Fragment:
        end = self._new()
        start = self._new(_State(free=[piece[0], end]))
        self.states[piece[1]].free.append(end)
        return start, end

    def _star(self, piece: _Fragment) -> _Fragment:
        end = self._new()
        start = self._new(_State(free=[piece[0], end]))
        self.states[piece[1]].free.append(start)
        return start, end

    # -- Grammar

    def _alternatives(self) -> _Fragment:
        ignore_case = self._ignore_case
        found = self._sequence()
        while self._take("|"):
            found = self._either(found, self._sequence())
        self._ignore_case = ignore_case  # flags set inside a group end with it
        return found

    def _sequence(self) -> _Fragment:
        found = self._empty()
        while self._at < len(self._text) and not (self._peek("|") or self._peek(")")):
            found = self._chain(found, self._repeated())
        return found

    def _repeated(self) -> _Fragment:
        begin, ignore_case = self._at, self._ignore_case
        piece = self._atom()
        end = self._at
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._take("?")  # lazy or not, the same names match
        after = self._at
        if self._bounds() is not None:
            raise _SyntaxError(f"invalid nested repetition operator: `{self._text[end : self._at]}`")
        least, most = bounds
        copies = 1

        def copy() -> _Fragment:
            nonlocal copies
            if copies:
                copies -= 1
                return piece
            self._at, self._ignore_case = begin, ignore_case
            return self._atom()

        found = self._empty()
        for _ in range(least):
            found = self._chain(found, copy())
        if most is None:
            found = self._chain(found, self._star(copy()))
        else:
            for _ in range(most - least):
                found = self._chain(found, self._optional(copy()))
        self._at = after
        return found

    def _bounds(self) -> tuple[int, int | None] | None:
        """Read a repetition, if there is one: at least, at most."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(operator):
                return bounds
        if not self._peek("{"):
            return None
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # a literal brace
        low = int(least)
        high = (None if most == "" else int(most)) if comma else low
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise _SyntaxError(f"invalid repeat count: `{self._text[self._at : end + 1]}`")
        self._at = end + 1
        return low, high

    def _atom(self) -> _Fragment:
        character = self._next("missing argument")
        match character:
            case "(":
                return self._group()
            case "[":
                return self._set(self._class())
            case ".":
                return self._set(self._alphabet - {"\n"})
            case "^":
                return self._check(_BEGIN)
            case "$":
                return self._check(_END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise _SyntaxError(f"missing argument to repetition operator: `{character}`")
            case _:
                return self._set(self._cased({character}))

    def _group(self) -> _Fragment:
        self._depth += 1
        if self._depth > GROUP_DEPTH_MAX:
            raise _SyntaxError("expression nests too deeply")
        ignore_case = self._ignore_case
        if self._take("?") and not self._named_group() and self._flag_group():
            self._depth -= 1
            return self._empty()  # `(?i)` holds for the rest of the enclosing group
        found = self._alternatives()
        if not self._take(")"):
            raise _SyntaxError("missing closing )")
        self._ignore_case = ignore_case
        self._depth -= 1
        return found

    def _named_group(self) -> bool:
        if not (
            self._take("P<") or (self._peek("<") and not (self._peek("<=") or self._peek("<!")) and self._take("<"))
        ):
            return False
        name = self._until(">", "invalid named capture")
        if not name or not set(name) <= _WORD:
            raise _SyntaxError(f"invalid named capture: `{name}`")
        return True

    def _flag_group(self) -> bool:
        """Read flags; True if they stand alone, False if a group follows them."""
        wanted = True
        while True:
            flag = self._next("missing closing )")
            match flag:
                case "i":
                    self._ignore_case = wanted
                case "s" | "m" | "U":
                    pass  # names have no lines, and greed changes nothing for a whole match
                case "-" if wanted:
                    wanted = False
                case ":":
                    return False
                case ")":
                    return True
                case _:
                    raise _SyntaxError("invalid or unsupported Perl syntax")

    def _escape(self) -> _Fragment:
        character = self._next("trailing backslash at end of expression")
        match character:
            case "A":
                return self._check(_BEGIN)
            case "z":
                return self._check(_END)
            case "b":
                return self._check(_BOUNDARY)
            case "B":
                return self._check(_NO_BOUNDARY)
            case "Q":
                end = self._text.find("\\E", self._at)
                literal = self._text[self._at : end] if end >= 0 else self._text[self._at :]
                self._at = end + 2 if end >= 0 else len(self._text)
                found = self._empty()
                for quoted in literal:
                    found = self._chain(found, self._set(self._cased({quoted})))
                return found
            case _:
                return self._set(self._escaped_set(character))

    def _escaped_set(self, character: str) -> CharacterSet:
        """Return what an escape stands for that also may stand in a class."""
        if character.lower() in _CLASSES:
            found = _CLASSES[character.lower()]
            return found if character.islower() else self._alphabet - found
        return self._cased({self._escaped_character(character)})

    def _escaped_character(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            digits = (
                self._until("}", "invalid escape sequence") if self._take("{") else self._next("x") + self._next("x")
            )
            if not digits or not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise _SyntaxError(f"invalid escape sequence: `\\x{digits}`")
            return chr(int(digits, 16))
        if character in string.ascii_letters + string.digits:
            raise _SyntaxError(f"invalid escape sequence: `\\{character}`")
        return character

    def _class(self) -> CharacterSet:
        """Read a class up to its bracket."""
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or not self._peek("]"):
            first = False
            if self._take("[:"):
                found |= self._posix(self._until(":]", "missing closing ]"))
                continue
            low = self._next("missing closing ]")
            if low == "\\":
                low = self._next("missing closing ]")
                if low.lower() in _CLASSES:
                    found |= self._escaped_set(low)
                    continue
                low = self._escaped_character(low)
            found |= self._cased(self._range(low))
        self._take("]")
        return self._alphabet - found if negated else frozenset(found)

    def _range(self, low: str) -> set[str]:
        if not self._peek("-") or self._peek("-]"):
            return {low}
        self._take("-")
        high = self._next("missing closing ]")
        if high == "\\":
            high = self._escaped_character(self._next("missing closing ]"))
        if high < low:
            raise _SyntaxError(f"invalid character class range: `{low}-{high}`")
        return {character for character in self._alphabet if low <= character <= high}

    def _posix(self, name: str) -> CharacterSet:
        found = _POSIX.get(name.removeprefix("^"))
        if found is None:
            raise _SyntaxError(f"invalid character class range: `[:{name}:]`")
        return self._alphabet - found if name.startswith("^") else found

    def _cased(self, characters: set[str]) -> CharacterSet:
        if not self._ignore_case:
            return frozenset(characters)
        return frozenset(form for character in characters for form in (character.lower(), character.upper()))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(REPEAT_MAX))
