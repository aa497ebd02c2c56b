"""Steps of an exchange by any mechanism, and how one fails."""

from typing import Protocol


class AuthenticationFailed(Exception):
    """The client is not authenticated. The text is for the log, and never holds data that the client has sent.

    `answer` is the text for the client; empty: only that it has failed, so that answers do not reveal which names
    exist.
    """

    def __init__(self, reason: str, *, answer: str = "") -> None:
        super().__init__(reason)
        self.answer = answer


class TooManyAttempts(Exception):
    """Too many clients of an address wait for the check of their passwords. Nothing is known about this one."""


class Mechanism(Protocol):
    """One exchange of one client by a mechanism, from its first token to success or failure."""

    user: str
    """Name of the user, once the client has claimed it; it is authenticated when `is_complete`."""
    is_complete: bool
    expires_ms: int | None
    """Time at which the credential expires, ms since 1970; None: never."""
    uses_delegation_token: bool
    """True if the client has authenticated itself with a delegation token (KIP-48)."""

    async def step(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises AuthenticationFailed; the exchange has ended then."""
        ...
