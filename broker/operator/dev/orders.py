"""Orders to a node of a test, as lines of JSON: faults, time, topics and users to create, what is stored to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.api.resources.scram import alter_credentials
from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.table import is_enabled
from anabranch.broker.kafka.configs.topic import check_topic_configs
from anabranch.broker.kafka.sasl.scram import HASHES, ITERATIONS_MIN, salted_password
from anabranch.broker.kafka.sasl.user_requests import SaltedPassword, put_request
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.dev.controls import Controls
from anabranch.broker.operator.dev.group_reading import describe_group
from anabranch.broker.operator.dev.reading import bounds, read, row
from anabranch.broker.operator.dev.time_travel import travel
from anabranch.protocol.api import Api
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.registry import APIS
from anabranch.spelling import near_text

USER: Final = User("User:test", "127.0.0.1")
DELAY_MAX_MS: Final = 600_000
TIMES_MAX: Final = 1_000_000


class BadOrder(ValueError):
    """An order that cannot be understood. The text is the one line to show."""


class Orders:
    """Follows orders to one node."""

    def __init__(self, node: Node, controls: Controls) -> None:
        self._node = node
        self._serving = node.serving
        self._controls = controls
        self._local = LocalRequests(node.serving, HANDLERS, is_stopping=lambda: node.stopping)

    async def obey(self, order: Any) -> Mapping[str, object]:
        """Follow an order, a JSON object whose first field names it, and return the fields of the answer.

        Raises BadOrder, KafkaError, StorageError, LocalRefusal; nothing has changed then, but clocks may be moved.
        """
        serving = self._serving
        match order:
            case {"create_topic": str(name), "partitions": int(partitions), "configs": dict(configs)}:
                await create_topic(serving, name, int(_number("partitions", partitions, 1, TIMES_MAX)), configs)
            case {"delete_topic": str(name)}:
                self._topic(name)
                await serving.topic_commands.delete(name)
            case {"set_password": str(password), "user": str(name), "salt": str(salt)}:
                await _set_password(serving, name, password, bytes.fromhex(salt))
            case {"bounds": str(name), "committed": bool(committed)}:
                topic = serving.topics.get(name)
                if topic is None:
                    return {"bounds": None, "near": self._near(name)}
                return {"bounds": _bounds(topic, committed=committed)}
            case {"read": str(name), "partition": int(index), "offset": int(offset), "committed": bool(committed)}:
                records, position = await read(self._local, USER, name, index, offset, committed=committed)
                return {"records": [row(each) for each in records], "next": position}
            case {"table": str(name), "hurry": bool(hurry)}:
                return {"table": self._table(name, hurry=hurry)}
            case {"count_nodes": True}:
                return {"nodes": len(serving.members.living())}
            case {"ahead_ms": int(ahead_ms)}:
                await travel(self._node, self._controls.clock, ahead_ms)
            case {"describe_group": str(group_id)}:
                return {"group": await describe_group(self._local, group_id, USER)}
            case _:
                self._change_faults(order)
        return {}

    def _table(self, name: str, *, hurry: bool) -> Mapping[str, object] | None:
        """Return the state of a topic's table; None if another node commits it. `hurry`: have it committed at once."""
        if not is_enabled(self._topic(name).info.configs):
            raise BadOrder(f"topic {name!r} is no table: give it configs={{'table.enable': 'true'}}")
        tables = self._node.upkeep.tables
        if hurry:
            tables.hurry(name)
        found = next((each for each in tables.statuses() if each.topic == name), None)
        if found is None:
            return None
        return {
            "ends": {str(index): each.end_offset for index, each in found.partitions.items()},
            "metadata_location": found.metadata_location,
            "last_error": found.last_error,
        }

    def _change_faults(self, order: object) -> None:
        """Follow an order about faults. Raises BadOrder, also for one that is about something else."""
        faults, requests = self._controls.faults, self._controls.faults.requests
        match order:
            case {"clear": True}:
                faults.clear()
            case {"slow_store_ms": delay}:
                faults.store_delay_s = _number("slow_store_ms", delay, 0, DELAY_MAX_MS) / 1000
            case {"fail": api, "code": code, "times": times, "applied": bool(applied)}:
                requests.fail(_api(api).key, error_code(code), times=_times(times), applied=applied)
            case {"drop": api, "times": times, "applied": bool(applied)}:
                requests.drop(_api(api).key, times=_times(times), applied=applied)
            case {"delay": api, "ms": delay, "times": times}:
                requests.delay(_api(api).key, _number("ms", delay, 0, DELAY_MAX_MS) / 1000, times=_times(times))
            case {"throttle": api, "ms": delay, "times": times}:
                throttle_ms = int(_number("ms", delay, 0, DELAY_MAX_MS))
                requests.throttle(_throttled(api).key, throttle_ms, times=_times(times))
            case {"cut": True}:
                requests.is_cut = True
                self._node.ports.clients.drop_all()
            case _:
                raise BadOrder(f"unknown order {json.dumps(order)}")

    def _topic(self, name: str) -> Topic:
        topic = self._serving.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}{self._near(name)}")
        return topic

    def _near(self, name: str) -> str:
        """Return the end of a message about a topic that is not there."""
        return near_text(name, (each.name for each in self._serving.topics))


def parsed(line: bytes) -> Any:
    """Return an order from its line. Raises BadOrder."""
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


def _bounds(topic: Topic, *, committed: bool) -> Sequence[tuple[int, int] | None]:
    """Return the bounds of each partition; None for one that another node leads, or that is not open yet."""
    return [None if each is None else bounds(each, committed=committed) for each in topic.partitions]


async def _set_password(serving: Serving, user: str, password: str, salt: bytes) -> None:
    """Let a user authenticate itself by each mechanism of SCRAM. Raises KafkaError."""
    for mechanism in HASHES:
        salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
        request = put_request(user, SaltedPassword(mechanism, salt, salted, ITERATIONS_MIN))
        outcomes = await alter_credentials(serving.scram, request)
        if (error := outcomes[user]) is not None:
            raise error


def error_code(name: object) -> ErrorCode:
    """Return an error code by its name in Kafka's protocol, or its number. Raises BadOrder."""
    try:
        found = ErrorCode[name.upper()] if isinstance(name, str) else ErrorCode(int(str(name)))
    except (KeyError, ValueError):
        errors = (each.name for each in ErrorCode if each is not ErrorCode.NONE)
        advice = near_text(str(name), errors) or ": expected a name such as NOT_LEADER_OR_FOLLOWER"
        raise BadOrder(f"unknown error code {name!r}{advice}") from None
    if found is ErrorCode.NONE:
        raise BadOrder("NONE is no error")
    return found


def _api(name: object) -> Api:
    """Return an API by its name in Kafka's protocol. Raises BadOrder."""
    by_name = {each.name: each for each in APIS.values()}
    found = by_name.get(str(name))
    if found is None:
        raise BadOrder(f"unknown API {name!r}{near_text(str(name), by_name) or ': expected a name such as Produce'}")
    return found


def _throttled(name: object) -> Api:
    """Return an API whose answers can have a throttle time. Raises BadOrder."""
    api = _api(name)
    if not any(each.name == "throttle_time_ms" for each in fields(api.response)):
        raise BadOrder(f"{api.name} has no throttle time in its answers")
    return api


def _times(value: object) -> int:
    return int(_number("times", value, 1, TIMES_MAX))


def _number(name: str, value: object, least: int, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadOrder(f"{name}: expected a number from {least} to {most}, found {value!r}")
    return value
