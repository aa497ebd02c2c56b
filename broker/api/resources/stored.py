"""Configs of resources that exist by their configs alone: groups, and subscriptions to client metrics."""

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
from anabranch.broker.kafka.configs.definitions import ConfigDef
from anabranch.protocol.errors import KafkaError


class StoredResource:
    """Base of these resources: entries of one kind in `cluster_configs`, validated by a table of definitions."""

    kind: str
    table: Mapping[str, ConfigDef]

    def describe(self, serving: Serving, name: str) -> Sequence[ConfigValue]:
        """Describe the configs of one resource: all of them, and internal ones where they are set."""
        self.check_described(name)
        own = serving.cluster_configs.get(self.kind, name)
        rows = self.table.values()
        return [self.value(serving, row, own) for row in rows if row.name in own or not row.is_internal]

    def names(self, serving: Serving) -> Sequence[str]:
        """List the resources that have configs."""
        return serving.cluster_configs.names(self.kind)

    async def alter(self, serving: Serving, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
        """Change some configs."""
        check_unique_names([change.name for change in changes])
        for change in changes:
            if change.operation != Operation.DELETE:
                check_not_null(change.name, change.value)
        own = serving.cluster_configs.get(self.kind, name)
        # As in Kafka, no config counts as a list here, so APPEND and SUBTRACT are refused.
        values, unset = split_changes({change.name: apply_change(change, None, "") for change in changes})
        kept = {key: value for key, value in own.items() if key not in values and key not in unset}
        checked = self._normalized(serving, name, {**kept, **values})
        values = {key: checked[key] for key in values}
        if not validate_only and (values or unset):
            await serving.cluster_configs.alter(self.kind, name, set_configs=values, unset=unset)

    async def replace(
        self, serving: Serving, name: str, configs: Sequence[tuple[str, str | None]], *, validate_only: bool
    ) -> None:
        """Set these configs, and unset all others."""
        values = self._normalized(serving, name, replacement_values(configs))
        if not validate_only:
            unset = [key for key in serving.cluster_configs.get(self.kind, name) if key not in values]
            await serving.cluster_configs.alter(self.kind, name, set_configs=values, unset=unset)

    def _normalized(self, serving: Serving, name: str, values: Mapping[str, str]) -> dict[str, str]:
        self.check_altered(name)
        for key in values:
            if key not in self.table:
                raise self.unknown(key)
        normalized = {key: self.table[key].normalize(value) for key, value in values.items()}
        self.check_values(serving, normalized)
        return normalized

    # implemented by each type

    def check_described(self, name: str) -> None:
        """Raise KafkaError if no resource of that name can be described."""
        raise NotImplementedError

    def check_altered(self, name: str) -> None:
        """Raise KafkaError if no resource of that name can be changed."""
        raise NotImplementedError

    def unknown(self, key: str) -> KafkaError:
        """Build the error for an unknown config."""
        raise NotImplementedError

    def check_values(self, serving: Serving, values: Mapping[str, str]) -> None:
        """Raise KafkaError for values that are refused although type and range are right."""
        raise NotImplementedError

    def value(self, serving: Serving, row: ConfigDef, own: Mapping[str, str]) -> ConfigValue:
        """Return one config with its value."""
        raise NotImplementedError
