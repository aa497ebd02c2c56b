"""Configs of this node: settings of its start, which no request can change."""

from collections.abc import Sequence

from broker.broker_configs import broker_configs
from broker.config_defs import ConfigSource
from broker.node import Node
from broker.resources.values import Change, ConfigValue, Operation, check_not_twice
from protocol.errors import ErrorCode, KafkaError


class BrokerResource:
    """Nodes by their ids; the empty name is what is set for all nodes, which is nothing."""

    def describe(self, node: Node, name: str) -> Sequence[ConfigValue]:
        """This node's configs."""
        if not name:
            return ()
        check_node_id(node, name, or_empty=True)
        values = []
        for row, value in broker_configs(node.settings, node.advertised.host, node.advertised.port):
            source = ConfigSource.DEFAULT_CONFIG if value == row.default else ConfigSource.STATIC_BROKER_CONFIG
            synonyms = [(row.name, value, source)]
            if source != ConfigSource.DEFAULT_CONFIG:
                synonyms.append((row.name, row.default, ConfigSource.DEFAULT_CONFIG))
            values.append(
                ConfigValue(row.name, value, source, row.type, row.documentation, read_only=True, synonyms=synonyms)
            )
        return values

    def names(self, node: Node) -> Sequence[str]:
        """This node."""
        return [str(node.node_id)]

    async def alter(self, node: Node, name: str, changes: Sequence[Change], *, validate_only: bool) -> None:
        """Refuse to set anything. Nothing is ever set, so that there is nothing to be done to delete it."""
        del validate_only
        _check_name(node, name)
        check_not_twice([change.name for change in changes])
        if any(change.operation != Operation.DELETE for change in changes):
            raise _read_only()

    async def replace(
        self, node: Node, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Refuse to set anything."""
        del validate_only
        _check_name(node, name)
        if configs:
            raise _read_only()


def check_node_id(node: Node, name: str, *, or_empty: bool = False) -> None:
    """Raise when a name is not this node's id, in the words with which Kafka answers who asks for its configs."""
    if not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if name != str(node.node_id):
        expected = f"{node.node_id} or empty string, but" if or_empty else f"{node.node_id} but"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} received {name}")


def _check_name(node: Node, name: str) -> None:
    """Raise when a name is no node's, in the words with which Kafka answers who changes configs."""
    if name and not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if name and name != str(node.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node.node_id}, but received {name}"
        )


def _read_only() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, "Broker configs are read only here: they are settings of the node's start."
    )
