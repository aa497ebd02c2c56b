"""Errors of a pipeline. Each text is the one line to show."""

import re
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

TRACE = re.compile(r"\s*(at |\.\.\. \d+ more|Caused by|JVM stacktrace|==+ |\^+)")
"""Beginning of a stack trace, of Java or Python, or of Spark's pictures of query and plan."""
PYTHON_TRACE = "Traceback (most recent call last)"
PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: (?P<text>.+))?$", re.MULTILINE)
"""Last line of Python's trace."""
QUERY_FAILED = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*: (?=.)")
REASON_CHARS_MAX = 600
CAUSES_MAX = 5


class PipelineError(Exception):
    """A pipeline that cannot run as it is described, or that failed."""


class SettingError(PipelineError):
    """A setting of the pipeline's file that is wrong, or does not fit what was found. The text begins with its name."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = tuple(setting.split("."))
        """Sections and key, to find the line in the file."""

    def __reduce__(self) -> tuple[type["SettingError"], tuple[str, str]]:
        setting = ".".join(self.setting)
        return type(self), (setting, str(self).removeprefix(f"{setting}: "))


class UnusableSchema(SettingError):
    """A missing or unusable schema: records of its topic cannot be decoded until it is corrected.

    That a registry does not answer is not this error.
    """

    def for_topic(self, topic: str) -> str:
        """Return the line for a topic that has a table of its own, which does not stop the others."""
        return f"topic {topic}: {self}; its records become dead letters until there is one"


class AnotherDriver(PipelineError):
    """Another driver has committed the same micro-batch to the table."""


def reason_of(error: BaseException) -> str:
    """Return what an error says about its cause, in one line.

    Of Java's errors it is the whole chain: Delta names the table's column in the first, and the field and the types in
    the causes.
    """
    java = getattr(error, "java_exception", None)
    reasons = [_first_part(str(error) if java is None else str(java.toString()))]
    for cause in islice(_chain_of(error), 1, None):
        reason = _first_part(str(cause.getMessage() or ""))
        if reason and not any(reason in each for each in reasons):
            reasons.append(reason)
    text = ": ".join(filter(None, reasons)) or type(error).__name__
    return text if len(text) <= REASON_CHARS_MAX else f"{text[:REASON_CHARS_MAX]}..."


def unfit(place: str, error: BaseException) -> str:
    """Return the message for a table whose columns cannot become those of the pipeline."""
    return f"{place} has other types than the pipeline: {reason_of(error)}; use another table, and a new checkpoint"


def java_classes(error: BaseException) -> list[str]:
    """Return the names, without packages, of the classes of Java's error and its causes."""
    return [str(each.getClass().getSimpleName()) for each in _chain_of(error)]


def _chain_of(error: BaseException) -> Iterator[Any]:
    """Yield Java's error behind one of Python, and its causes."""
    java = getattr(error, "java_exception", None)
    each = java if java is not None else getattr(error, "_origin", None)
    for _ in range(CAUSES_MAX + 1):
        if each is None:
            return
        yield each
        each = each.getCause()


def _first_part(text: str) -> str:
    """Return the lines before a trace or a picture, as one, without the name of a class of Java.

    The error behind Python's trace follows them.
    """
    text, _, trace = text.partition(PYTHON_TRACE)
    lines = takewhile(lambda line: not TRACE.match(line), QUERY_FAILED.sub("", text, count=1).splitlines())
    first = JAVA_CLASS.sub("", " ".join(line.strip() for line in lines if line.strip()), count=1).rstrip(".: ")
    errors = list(PYTHON_ERROR.finditer(trace))
    return ": ".join(filter(None, (first, errors[-1]["text"] if errors else None)))
