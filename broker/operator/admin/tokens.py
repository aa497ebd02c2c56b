"""Files of the admin port's tokens, one on each line."""

from pathlib import Path


class AccessError(OSError):
    """Tokens of the settings cannot be used. The text is the one line to show."""


def read_tokens(setting: str, path: Path) -> list[str]:
    """Return the tokens of a file. Raises AccessError if there are none."""
    try:
        tokens = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise AccessError(f"setting {setting}: {path}: {reason}") from None
    if not tokens:
        raise AccessError(f"setting {setting}: {path}: there is no token in this file")
    return tokens
