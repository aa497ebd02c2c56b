"""A partition named by its topic and index."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition named by its topic and index, as in requests."""

    topic: str
    partition: int
