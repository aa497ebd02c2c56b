"""Configs of nodes: settings of the start, overridden by values set while nodes run, for one node or for all."""

from collections.abc import Mapping, Sequence

from anabranch.broker.api.resources.values import (
    ConfigChange,
    ConfigValue,
    Operation,
    apply_change,
    check_not_null,
    check_unique_names,
    replacement_values,
    split_changes,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.broker import ALL_NODES, fixed_configs
from anabranch.broker.kafka.configs.broker_table import BROKER_CONFIGS, DYNAMIC
from anabranch.broker.kafka.configs.cluster import BROKER
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigSource, ConfigType, Synonym, default_value
from anabranch.protocol.errors import ErrorCode, KafkaError


class BrokerResource:
    """Nodes by their ids. The empty name stands for the values set for all nodes."""

    def describe(self, serving: Serving, name: str) -> Sequence[ConfigValue]:
        """Describe this node's configs, or the values set for all nodes."""
        if not name:
            return [
                _described(BROKER_CONFIGS[key], [(key, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)])
                for key, value in serving.broker_configs.values_of_all_nodes().items()
            ]
        check_node_id(serving, name, or_empty=True)
        found = [(row, serving.broker_configs.synonyms(row.name)) for row in BROKER_CONFIGS.values()]
        values = [_described(row, synonyms) for row, synonyms in found if len(synonyms) > 1 or not row.is_internal]
        fixed = fixed_configs(
            serving.settings, serving.members.own.listeners, serving.listener_ports, serving.admin_port
        )
        for row, value in fixed:
            default = (row.name, row.default, ConfigSource.DEFAULT_CONFIG)
            own = [] if value == row.default else [(row.name, value, ConfigSource.STATIC_BROKER_CONFIG)]
            values.append(_described(row, [*own, default]))
        return sorted(values, key=lambda value: value.name)

    def names(self, serving: Serving) -> Sequence[str]:
        """List the living nodes."""
        return [str(member.node_id) for member in serving.members.living()]

    async def alter(self, serving: Serving, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Change some configs. Effective here from the next request on, on other nodes when they read the catalog."""
        _check_name(serving, name)
        check_unique_names([change.name for change in changes])
        own = serving.cluster_configs.get(BROKER, name)
        values, unset = split_changes({change.name: _changed(serving, change, own) for change in changes})
        unset = [key for key in unset if key in own]
        await _store(serving, name, _normalized(values), unset, validate_only=validate_only)

    async def replace(
        self, serving: Serving, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Set these configs, and unset all others."""
        _check_name(serving, name)
        values = _normalized(replacement_values(configs))
        unset = [key for key in serving.cluster_configs.get(BROKER, name) if key not in values]
        await _store(serving, name, values, unset, validate_only=validate_only)


async def _store(
    serving: Serving, name: str, values: Mapping[str, str], unset: Sequence[str], *, validate_only: bool
) -> None:
    if not validate_only and (values or unset):
        place = str(serving.node_id) if name else ALL_NODES
        await serving.cluster_configs.alter(BROKER, place, set_configs=values, unset=unset)


def _described(row: ConfigDef, synonyms: Sequence[Synonym]) -> ConfigValue:
    _, value, source = synonyms[0]
    read_only = row.name not in DYNAMIC
    return ConfigValue(row.name, value, source, row.type, row.documentation, read_only=read_only, synonyms=synonyms)


def _changed(serving: Serving, change: ConfigChange, own: Mapping[str, str]) -> str | None:
    """Return the value after a change; None unsets it. Kafka's messages differ from those for topics."""
    if change.operation not in set(Operation):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
    if change.operation in {Operation.SET, Operation.DELETE}:
        return apply_change(change, None, "")
    check_not_null(change.name, change.value)
    row = BROKER_CONFIGS.get(change.name)
    if row is None or row.type != ConfigType.LIST:
        word = Operation(change.operation).name.lower()
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Config value {word} is not allowed for config key: {change.name}")
    return apply_change(change, row.type, own.get(change.name, default_value(row, serving.settings)))


def _normalized(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return valid values. Raises INVALID_REQUEST for others, and for configs that are fixed while nodes run."""
    fixed = [key for key in values if key not in DYNAMIC]
    if fixed:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    try:
        return {key: BROKER_CONFIGS[key].normalize(value) for key, value in values.items()}
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None


def check_node_id(serving: Serving, name: str, *, or_empty: bool = False) -> None:
    """Raise INVALID_REQUEST if the name is not this node's id. Kafka's message for DescribeConfigs."""
    if not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if name != str(serving.node_id):
        expected = f"{serving.node_id} or empty string, but" if or_empty else f"{serving.node_id} but"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} received {name}")


def _check_name(serving: Serving, name: str) -> None:
    """Raise INVALID_REQUEST if the name is not this node's id or empty. Kafka's message for AlterConfigs."""
    if name and not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if name and name != str(serving.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {serving.node_id}, but received {name}"
        )
