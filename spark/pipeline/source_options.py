"""Options of the source of a pipeline, and of its Kafka client."""

import json
from collections.abc import Mapping

from anabranch.client.errors import PropertyError
from anabranch.spark.kafka_options import read_kafka_options
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.sections import SourceSection

SOURCE_OPTIONS = {"includeHeaders": "true", "kafka.max.poll.records": "10000"}
"""Larger polls than the client's default: the source asks for offsets twice per poll, which is half of its time."""
NODE_REGISTRY = "http://{host}:9644/schema-registry"
"""The schema registry of a node, with the default settings of its admin port."""


def source_options(source: SourceSection) -> dict[str, str]:
    """Return the options of Spark's Kafka source. Those of the file's `options` override ours. Raises SettingError."""
    client = client_options(source)
    options = {
        **SOURCE_OPTIONS,
        **client,
        "kafka.bootstrap.servers": bootstrap_of(source, client),
        "kafka.isolation.level": "read_committed" if source.read_committed else "read_uncommitted",
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
    }
    if source.starting_time_ms is not None:
        options["startingTimestamp"] = str(source.starting_time_ms)
        # A partition without records that new begins at its end. By default the query would fail.
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif isinstance(source.starting_offsets, str):
        options["startingOffsets"] = source.starting_offsets
    else:
        options["startingOffsets"] = json.dumps(source.starting_offsets)
    if source.topic_pattern:
        options["subscribePattern"] = source.topic_pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    if source.offsets_per_batch_max is not None:
        options["maxOffsetsPerTrigger"] = str(source.offsets_per_batch_max)
    if source.tasks_min is not None:
        options["minPartitions"] = str(source.tasks_min)
    return {**options, **source.options}


def client_options(source: SourceSection) -> dict[str, str]:
    """Return the Kafka client's properties as options: of the file, the environment, and the section's options.

    Empty for the direct source, which has no client. Raises SettingError.
    """
    if source.kind == "direct":
        return {}
    try:
        return {**read_kafka_options(source.client_config), **source.options}
    except PropertyError as error:
        raise SettingError("source.client_config", str(error)) from None


def bootstrap_of(source: SourceSection, client: Mapping[str, str]) -> str:
    """Return the nodes to connect to first: those of the section, else those of the client's properties."""
    if "bootstrap_servers" in source.model_fields_set:
        return source.bootstrap_servers
    return client.get("kafka.bootstrap.servers", source.bootstrap_servers)


def node_registry(source: SourceSection) -> str:
    """Return the URL of the schema registry of the first node to connect to. Raises SettingError."""
    first = bootstrap_of(source, client_options(source)).partition(",")[0].strip()
    return NODE_REGISTRY.format(host=first.rpartition(":")[0])
