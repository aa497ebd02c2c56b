"""A partition's name, as requests and coordinators use it."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by name and index."""

    topic: str
    partition: int
