"""Parts that the APIs of streams groups have in common (KIP-1071)."""

from collections.abc import Iterable, Sequence
from typing import Any

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.features import STREAMS_VERSION
from anabranch.broker.kafka.groups.streams.tasks import Task, by_subtopology
from anabranch.protocol.errors import ErrorCode, KafkaError


def check_streams_protocol(serving: Serving) -> None:
    """Raise UNSUPPORTED_VERSION when `streams.version` was lowered to 0, which turns streams groups off."""
    if serving.features.level(STREAMS_VERSION) < 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "")


def task_ids(message: Any, tasks: Iterable[Task]) -> Sequence[Any]:
    """Return tasks as messages of a type that has partitions by subtopology."""
    return [message(subtopology_id=name, partitions=found) for name, found in by_subtopology(tasks)]
