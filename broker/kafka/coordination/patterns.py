"""Regular expressions that clients send, in RE2's syntax: for topic names (KIP-848), transactional ids and client ids.

RE2 matches in time linear in the text whatever the pattern is. Python's `re` backtracks: a pattern of a dozen
characters can keep it busy for years, and patterns are matched on the event loop.
"""

from typing import Any

from anabranch.extras import MissingExtra, needed
from anabranch.protocol.errors import ErrorCode, KafkaError

PATTERN_CHARACTERS_MAX = 1024
PROGRAM_BYTES_MAX = 256 * 1024
"""Memory of one compiled pattern, its cache of automaton states included. Compiling takes at most a few ms."""

_RE2J_DESCRIPTIONS = {
    "bad repetition operator": "invalid nested repetition operator",
    "duplicate capture group name": "duplicate capture group name",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "pattern too large - compile failed": "expression too large",
    "trailing \\": "trailing backslash at end of expression",
}
"""RE2's descriptions of syntax errors, with those of RE2/J, which Apache Kafka uses and passes on to clients."""


class Pattern:
    """A compiled regular expression that matches a text as a whole."""

    __slots__ = ("_program",)

    def __init__(self, text: str) -> None:
        """Compile `text`. Raises INVALID_REGULAR_EXPRESSION with a description of the first syntax error."""
        try:
            with needed("a regular expression of a client"):
                import re2
        except MissingExtra as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"{len(text)} characters; at most {PATTERN_CHARACTERS_MAX} are supported",
            )
        options = re2.Options()
        options.max_mem = PROGRAM_BYTES_MAX
        options.log_errors = False  # to stderr, past the node's log
        options.never_capture = True
        try:
            self._program: Any = re2.compile(_encoded(text), options)
        except re2.error as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, _description(error)) from None
        re2.purge()  # the module would keep the last 128 patterns in a cache

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self._program.fullmatch(_encoded(text)) is not None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # to RE2 a lone surrogate is a code point like any other


def _description(error: Exception) -> str:
    """Return RE2/J's description of a syntax error that RE2 reports as `description: part of the pattern`."""
    reported: bytes = error.args[0]
    description, _, part = reported.decode("utf-8", "replace").partition(": ")
    if description == "invalid perl operator" and part.startswith("(?<"):
        return "invalid named capture"
    return _RE2J_DESCRIPTIONS.get(description, description)
