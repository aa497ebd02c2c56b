"""Levels of this node's loggers (KIP-412). As in Kafka, changes last until the node stops."""

from collections.abc import Sequence

from anabranch.broker.api.resources.brokers import check_node_id
from anabranch.broker.api.resources.values import (
    ConfigChange,
    ConfigValue,
    Operation,
    check_not_null,
    check_unique_names,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.broker.node.logging.levels import LEVELS, ROOT
from anabranch.protocol.errors import ErrorCode, KafkaError

UNKNOWN_TYPE = 0
"""Kafka gives levels neither a type nor documentation."""


class LoggerResource:
    """Nodes by their ids. Each logger is a config."""

    def describe(self, serving: Serving, name: str) -> Sequence[ConfigValue]:
        """Describe the level of each logger."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        check_node_id(serving, name)
        levels = serving.log_levels
        return [
            ConfigValue(logger, levels.level(logger), ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, UNKNOWN_TYPE, None)
            for logger in levels.loggers
        ]

    def names(self, serving: Serving) -> Sequence[str]:
        """List the living nodes."""
        return [str(member.node_id) for member in serving.members.living()]

    async def alter(self, serving: Serving, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Set levels, or unset the level of a logger, so that it has that of the root."""
        check_unique_names([change.name for change in changes])
        for change in changes:
            if change.operation != Operation.DELETE:
                check_not_null(change.name, change.value)
        if not name.lstrip("-").isdigit():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if name != str(serving.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {serving.node_id}, but received {name}"
            )
        for change in changes:
            _check(serving, change)
        if validate_only:
            return
        for change in changes:
            if change.operation == Operation.DELETE:
                serving.log_levels.unset(change.name)
            else:
                assert change.value is not None, "checked above"
                serving.log_levels.set(change.name, change.value)

    async def replace(
        self, serving: Serving, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Raise INVALID_REQUEST: AlterConfigs does not support loggers."""
        del serving, name, configs, validate_only
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown resource type 8")


def _check(serving: Serving, change: ConfigChange) -> None:
    if change.operation in {Operation.APPEND, Operation.SUBTRACT}:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{Operation(change.operation).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if change.operation not in set(Operation):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation} for logger {change.name}"
        )
    if not serving.log_levels.exists(change.name):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.operation == Operation.DELETE:
        if change.name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    elif change.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )
