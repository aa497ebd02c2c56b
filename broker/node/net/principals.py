"""Principals of clients that have no name, and of those whose certificates give them none."""

from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client that has not authenticated itself."""


class NoMatchingRule(Exception):
    """No rule applies to the name of a certificate. The text is the one line to log."""
