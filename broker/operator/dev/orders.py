"""Orders to a node of a test, as lines of JSON: faults, and topics to create and delete."""

import json
from collections.abc import Mapping
from typing import Any, Final

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.topic import check_topic_configs
from anabranch.broker.operator.dev.faults import Faults
from anabranch.protocol.errors import ErrorCode, KafkaError

DELAY_MAX_MS: Final = 600_000
TIMES_MAX: Final = 1_000_000


class BadOrder(ValueError):
    """An order that cannot be understood. The text is the one line to show."""


async def obey(serving: Serving, faults: Faults, line: bytes) -> None:
    """Follow an order, an object whose first field names it.

    Raises BadOrder, KafkaError, StorageError; nothing has changed then.
    """
    match _parsed(line):
        case {"clear": True}:
            faults.clear()
        case {"slow_store_ms": delay}:
            faults.store_delay_s = _number("slow_store_ms", delay, 0, DELAY_MAX_MS) / 1000
        case {"fail_produce": name, "times": times, "appended": bool(appended)}:
            faults.fail_produce(error_code(name), times=int(_number("times", times, 1, TIMES_MAX)), appended=appended)
        case {"create_topic": str(name), "partitions": int(partitions), "configs": dict(configs)}:
            await create_topic(serving, name, int(_number("partitions", partitions, 1, TIMES_MAX)), configs)
        case {"delete_topic": str(name)}:
            if serving.topics.get(name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            await serving.topic_commands.delete(name)
        case order:
            raise BadOrder(f"unknown order {json.dumps(order)}")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise BadOrder(f"expected a JSON object, found {line!r}") from None


async def create_topic(serving: Serving, name: str, partitions: int, configs: Mapping[str, str | None]) -> None:
    """Create a topic as a client's request would. Raises KafkaError, StorageError."""
    creation = serving.topics.new_creation()
    creation.check_name(name)
    creation.check_room(partitions)
    await serving.topic_commands.create(
        name, partitions=partitions, configs=check_topic_configs(configs, serving.settings)
    )


def error_code(name: object) -> ErrorCode:
    """Return an error code by its name in Kafka's protocol, or its number. Raises BadOrder."""
    try:
        found = ErrorCode[name.upper()] if isinstance(name, str) else ErrorCode(int(str(name)))
    except (KeyError, ValueError):
        raise BadOrder(f"unknown error code {name!r}: expected a name such as NOT_LEADER_OR_FOLLOWER") from None
    if found is ErrorCode.NONE:
        raise BadOrder("NONE is no error")
    return found


def _number(name: str, value: object, least: int, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadOrder(f"{name}: expected a number from {least} to {most}, found {value!r}")
    return value
