"""Topics of a pipeline that has a table for each."""

from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import SparkSession

from anabranch.spark.checkpoints import newest_offsets
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.settings import PipelineSettings, shared_places


def known_topics(spark: SparkSession, pipeline: PipelineSettings, found: Iterable[str] = ()) -> Sequence[str | None]:
    """Return the topics that are named, were read before, or found otherwise; without a table for each, only None.

    Raises SettingError if two of them would be written to one table.
    """
    if not pipeline.table.is_per_topic:
        return (None,)
    topics = {*pipeline.source.topics, *(newest_offsets(spark, pipeline.checkpoint) or {}), *found}
    topics.discard(pipeline.dead_letters.topic or "")  # no table's, though a pattern may take it
    refuse_shared_places(pipeline, topics)
    return sorted(topics)


def refuse_shared_places(pipeline: PipelineSettings, topics: Collection[str]) -> None:
    """Raise SettingError if two topics would be written to one table."""
    if (shared := shared_places(pipeline, topics)) is not None:
        raise SettingError("table.topic_names", shared)
