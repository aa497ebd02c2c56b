"""Files of the admin port's tokens, one on each line."""

from pathlib import Path
from typing import NamedTuple


class AccessError(OSError):
    """Tokens of the settings cannot be used. The text is the one line to show."""


class Token(NamedTuple):
    """A token, and who has it."""

    token: str
    principal: str = ""
    """User whose ACLs decide, as `User:name`; empty: nobody's."""


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


def token_with_user(line: str) -> Token:
    """Return the token of a line that may name a user before it: `User:name TOKEN`."""
    user, space, token = line.rpartition(" ")
    return Token(token, user.strip()) if space and user.startswith("User:") else Token(line)
