"""Detects topics that were deleted and recreated between the micro-batches of a pipeline with Spark's Kafka source.

That source knows topics by name, and continues at the old topic's offset in the new one. So the ids of topics are
stored beside the checkpoint, and compared before a start and before each micro-batch is written. The direct source does
the same by itself.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from anabranch.spark.checkpoint_format import TOPIC_ID
from anabranch.spark.checkpoints import OffsetFiles, forget_topics, newest_offsets
from anabranch.spark.pipeline.errors import PipelineError, java_classes, reason_of
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import source_options

FOLDER: Final = "anabranch-topic-ids"
CONNECTION: Final = ("kafka.bootstrap.", "kafka.security.", "kafka.sasl.", "kafka.ssl.")
"""Beginnings of the options of the Kafka source that an administrative client needs, too."""
TIMEOUT_S: Final = 60
NO_ID: Final = "0" * 32
"""Id of every topic of a broker that has none."""
UNKNOWN_TOPIC: Final = "UnknownTopicOrPartitionException"
ANEW: Final = "topic {} was deleted and made anew: it is read from its start"


def open_admin(spark: SparkSession, options: Mapping[str, str], client_id: str) -> Any:
    """Return Java's administrative client for a source with these options."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the client is Java's
    properties = jvm.java.util.HashMap()
    for name, value in options.items():
        if name.startswith(CONNECTION):
            properties.put(name.removeprefix("kafka."), value)
    properties.put("client.id", client_id)
    return jvm.org.apache.kafka.clients.admin.Admin.create(properties)


@dataclass(slots=True)
class TopicIds:
    """The ids of the topics that a query has read."""

    spark: SparkSession
    pipeline: PipelineSettings
    known: Mapping[str, str]
    _stored: Mapping[str, str]
    _admin: Any = None

    @classmethod
    def of(cls, spark: SparkSession, pipeline: PipelineSettings) -> "TopicIds":
        """Read what is stored beside a checkpoint, and what the direct source has stored in it."""
        files = OffsetFiles(spark, pipeline.checkpoint, FOLDER)
        stored = json.loads(files.read(0)[0]) if files.numbers() else {}
        offsets = newest_offsets(spark, pipeline.checkpoint) or {}
        direct = {topic: str(found[TOPIC_ID]) for topic, found in offsets.items() if TOPIC_ID in found}
        return cls(spark, pipeline, {**stored, **direct}, stored)

    def close(self) -> None:
        """Close the client."""
        if self._admin is not None:
            self._admin.close()

    def changes(self) -> list[str]:
        """Return a line for each topic that a start would read anew. Raises PipelineError if it would refuse."""
        return [ANEW.format(topic) for topic in self._made_anew(self._find())] if self.known else []

    def start(self, checkpoints: Sequence[str]) -> list[str]:
        """Compare the topics before queries with these checkpoints start, and store their ids.

        With `fail_on_data_loss = false` the queries begin with a new topic at its start, and a line for each is
        returned. Raises PipelineError without.
        """
        found = self._find()
        if anew := self._made_anew(found):
            for checkpoint in checkpoints:
                forget_topics(self.spark, checkpoint, anew)
        self._store(found)
        return list(map(ANEW.format, anew))

    def check(self) -> None:
        """Compare the topics while their query runs. Raises PipelineError: a recreated one needs a restart."""
        found = self._find()
        self._made_anew(found, runs=True)
        self._store(found)

    def _made_anew(self, found: Mapping[str, str], *, runs: bool = False) -> list[str]:
        """Return the topics with another id than before. Raises PipelineError if that ends the query."""
        anew = sorted(topic for topic, each in found.items() if self.known.get(topic, each) != each)
        if anew and (runs or self.pipeline.source.fail_on_data_loss):
            raise PipelineError(
                f"topic {', '.join(anew)} was deleted and made anew since it was read: start again with a new "
                "checkpoint, or with source.fail_on_data_loss = false, which reads the new one from its start"
            )
        return anew

    def _find(self) -> dict[str, str]:
        """Return the ids of the query's topics, of those that exist, in hexadecimal digits.

        What is known of others is dropped: the source begins at the start of topics that its last offsets do not have.
        Raises PipelineError.
        """
        begun = newest_offsets(self.spark, self.pipeline.checkpoint) or {}
        self.known = {topic: each for topic, each in self.known.items() if topic in begun}
        topics = {*begun, *self.pipeline.source.topics}
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - as above
        if self._admin is None:
            client_id = f"anabranch-spark-{self.pipeline.name}"
            self._admin = open_admin(self.spark, source_options(self.pipeline.source), client_id)
        seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        found = {}
        for topic, future in self._admin.describeTopics(list(topics)).topicNameValues().items():
            try:
                text = str(future.get(TIMEOUT_S, seconds).topicId())
            except Exception as error:
                if UNKNOWN_TOPIC in java_classes(error):
                    continue
                raise PipelineError(f"topic {topic} cannot be looked up: {reason_of(error)}") from error
            each = base64.urlsafe_b64decode(f"{text}==").hex()
            if each != NO_ID:
                found[topic] = each
        return found

    def _store(self, found: Mapping[str, str]) -> None:
        self.known = {**self.known, **found}
        if self.known != self._stored:
            OffsetFiles(self.spark, self.pipeline.checkpoint, FOLDER).replace(0, [json.dumps(self.known)])
            self._stored = self.known
