"""Credentials of users as commands handle them."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Credentials: TypeAlias = Mapping[str, Mapping[str, int | None]]
"""Iterations by user and mechanism; None: the credential is damaged."""


class SaltedPassword(NamedTuple):
    """A password that is salted for one mechanism."""

    mechanism: str
    salt: bytes
    salted: bytes
    iterations: int
