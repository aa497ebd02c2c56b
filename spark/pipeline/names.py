"""Names: quoted in SQL, and matched by patterns."""

import re
from collections.abc import Iterable


def quoted(name: str, *, whole: bool = False) -> str:
    """Quote a name for SQL, part by part or as one part."""
    parts = [name] if whole else name.split(".")
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics that a pattern takes, as far as Python understands what is meant for Java."""
    try:
        return [topic for topic in topics if re.fullmatch(pattern, topic)]
    except re.error:
        return []
