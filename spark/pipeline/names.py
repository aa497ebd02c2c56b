"""Names and texts in SQL."""


def quoted(name: str, *, whole: bool = False) -> str:
    """Quote a name for SQL, part by part or as one part."""
    parts = [name] if whole else name.split(".")
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def text_literal(text: str) -> str:
    """Return a text as SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
