"""Compaction by key of the topics of a node: which topics, which records, and the partitions to notify."""

from collections.abc import Sequence

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches, clean_policies, history_of
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.compaction.interface import AbortedRange, CleaningHooks
from anabranch.s3stream.engine import S3Stream


def make_cleaning(topics: TopicManager, storage: S3Stream) -> CleaningHooks:
    """Return the rules of cleaning for the topics of a running node."""

    def vacate(stream_id: int, vacated: Sequence[AbortedRange]) -> None:
        """Note that cleaning has left only the markers of aborted transactions."""
        for partition in topics.led_partitions():
            if partition.stream.stream_id == stream_id:
                partition.vacate(vacated)

    return CleaningHooks(
        KafkaBatches(),
        lambda: clean_policies((topic.info, topic.config) for topic in topics),
        history_of,
        vacate,
        storage.supersede,
    )
