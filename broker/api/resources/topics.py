"""Configs of topics: stored in the catalog with the topic, effective from the next request on."""

from collections.abc import Mapping, Sequence

from anabranch.broker.api.resources.values import (
    ConfigChange,
    ConfigValue,
    Operation,
    apply_change,
    check_unique_names,
    replacement_values,
    split_changes,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigSource, default_value
from anabranch.broker.kafka.configs.topic import check_topic_configs
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.kafka.topics.names import check_topic_name
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.protocol.errors import ErrorCode, KafkaError


class TopicResource:
    """Topics, by their names."""

    def describe(self, serving: Serving, name: str) -> Sequence[ConfigValue]:
        """Describe all configs of a topic."""
        check_topic_name(name)
        topic = serving.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return [_value(serving, row, topic.info.configs) for row in TOPIC_CONFIGS.values()]

    def names(self, serving: Serving) -> Sequence[str]:
        """List all topics."""
        return [topic.name for topic in serving.topics]

    async def alter(self, serving: Serving, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Change some configs."""
        await serving.membership.catch_up()  # another node may have created or altered it
        topic = _find(serving, name)
        check_unique_names([change.name for change in changes])

        def altered(own: Mapping[str, str]) -> Mapping[str, str]:
            changed = {change.name: _changed(serving, change, own) for change in changes}
            kept = {key: value for key, value in own.items() if key not in changed}
            values, _ = split_changes(changed)
            return kept | check_topic_configs(values, serving.settings, kept=kept, internal=topic.info.internal)

        altered(topic.info.configs)
        if not validate_only:
            await serving.topic_commands.alter(name, altered)

    async def replace(
        self, serving: Serving, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Set these configs, and unset all others."""
        await serving.membership.catch_up()
        topic = _find(serving, name)
        checked = check_topic_configs(replacement_values(configs), serving.settings, internal=topic.info.internal)
        if not validate_only:
            await serving.topic_commands.alter(name, lambda _: checked)


def _find(serving: Serving, name: str) -> Topic:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    topic = serving.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def _changed(serving: Serving, change: ConfigChange, own: Mapping[str, str]) -> str | None:
    row = TOPIC_CONFIGS.get(change.name)
    if row is None:
        if change.value is not None and change.operation not in {Operation.SET, Operation.DELETE}:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {change.name}")
        return apply_change(change, None, "")
    return apply_change(change, row.type, own.get(change.name, default_value(row, serving.settings)))


def _value(serving: Serving, row: ConfigDef, own: Mapping[str, str]) -> ConfigValue:
    synonyms = list(serving.broker_configs.topic_synonyms(row))
    if row.name in own:
        synonyms.insert(0, (row.name, own[row.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    _, value, source = synonyms[0] if synonyms else (row.name, row.default, ConfigSource.DEFAULT_CONFIG)
    return ConfigValue(row.name, value, source, row.type, row.documentation, synonyms=synonyms)
