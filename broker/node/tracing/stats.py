"""Counters of traces."""

from dataclasses import dataclass


@dataclass(slots=True)
class TracingStats:
    """Counts since the start of the node. Each is changed by one thread."""

    spans: int = 0
    """Spans that have ended."""
    overflowed: int = 0
    """Spans of these that were dropped, because the queue was full."""
    delivered: int = 0
    """Spans that the collector has accepted."""
    undelivered: int = 0
    """Spans that were dropped, because the collector did not accept them."""
