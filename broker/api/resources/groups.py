"""Configs of groups. They can be set before the group exists."""

from collections.abc import Mapping

from anabranch.broker.api.resources.stored import StoredResource
from anabranch.broker.api.resources.values import ConfigValue
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.cluster import GROUP
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigSource, default_value
from anabranch.broker.kafka.configs.group import GROUP_CONFIGS, check_group_configs
from anabranch.protocol.errors import ErrorCode, KafkaError


class GroupResource(StoredResource):
    """Groups by their ids."""

    kind = GROUP
    table = GROUP_CONFIGS

    def check_described(self, name: str) -> None:
        """Raise INVALID_REQUEST for an empty group id."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")

    def check_altered(self, name: str) -> None:
        """Raise INVALID_REQUEST for an empty group id: configs for all groups do not exist."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")

    def unknown(self, key: str) -> KafkaError:
        """Build Kafka's error for an unknown config."""
        return KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {key}")

    def check_values(self, serving: Serving, values: Mapping[str, str]) -> None:
        """Check the node's limits."""
        check_group_configs(values, serving.settings.group)

    def value(self, serving: Serving, row: ConfigDef, own: Mapping[str, str]) -> ConfigValue:
        """Return the group's value, or the node's."""
        default, broker_name = default_value(row, serving.settings), row.broker_name or row.name
        synonyms = []
        if row.name in own:
            synonyms.append((row.name, own[row.name], ConfigSource.GROUP_CONFIG))
        if default != row.default:
            synonyms.append((broker_name, default, ConfigSource.STATIC_BROKER_CONFIG))
        synonyms.append((broker_name, row.default, ConfigSource.DEFAULT_CONFIG))
        _, value, source = synonyms[0]
        return ConfigValue(row.name, value, source, row.type, row.documentation, synonyms=synonyms)
