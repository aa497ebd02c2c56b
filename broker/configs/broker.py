"""The broker configs in force on this node: what was set for it, then for all nodes, then at its start, then defaults.

What is set while nodes run lies in the catalog, beside other configs of the cluster (`broker.configs.cluster`). Whoever
acts on a value asks here, or is told of changes (`watch`); the defaults of topics' configs come from here, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from broker.configs.broker_table import BROKER_CONFIGS, CLEANER_BACKOFF, DYNAMIC, STORAGE_POLICY
from broker.configs.cluster import BROKER, ClusterConfigs
from broker.configs.definitions import ConfigDef, ConfigSource, ConfigType, Synonym, default_value
from broker.settings.model import Settings
from compaction.settings import CompactionSettings
from protocol.errors import KafkaError

ALL_NODES: Final = ""
"""Name under which is kept what holds for every node, as Kafka's clients call it."""
log = structlog.get_logger("configs")


class BrokerConfigs:
    """Values by Kafka's names."""

    def __init__(self, configs: ClusterConfigs, settings: Settings, node_id: int) -> None:
        self._configs = configs
        self._settings = settings
        self._own = str(node_id)
        self._set: Mapping[str, Mapping[str, str]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._follow()
        configs.watch(self._follow)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change."""
        self._watchers.append(changed)

    def value(self, name: str) -> str:
        """The value in force, as a text."""
        return self.synonyms(name)[0][1]

    def number(self, name: str) -> int:
        """The same of a number."""
        return int(self.value(name))

    def is_on(self, name: str) -> bool:
        """The same of a switch."""
        return self.value(name).strip().lower() == "true"

    def synonyms(self, name: str) -> Sequence[Synonym]:
        """Every value that there is for a config."""
        found = [
            (name, self._set[place][name], source)
            for place, source in (
                (self._own, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (ALL_NODES, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            )
            if name in self._set[place]
        ]
        return [*found, *_static_values(BROKER_CONFIGS[name], name, self._settings)]

    def values_of_all_nodes(self) -> Mapping[str, str]:
        """What is set for every node."""
        return self._set[ALL_NODES]

    def topic_default(self, row: ConfigDef) -> str:
        """The value of a topic's config where the topic has none of its own."""
        synonyms = self.topic_synonyms(row)
        return synonyms[0][1] if synonyms else row.default

    def topic_synonyms(self, row: ConfigDef) -> Sequence[Synonym]:
        """Every value that there is for a topic's config beside the topic's own; none where only topics have it."""
        if row.broker_name in BROKER_CONFIGS:
            return self.synonyms(row.broker_name)
        return _static_values(row, row.broker_name, self._settings) if row.broker_name else ()

    def _follow(self) -> None:
        """Take what is set now, but for values that mean nothing here: nodes of another version have taken them."""
        found = {place: _known(self._configs.get(BROKER, place)) for place in (self._own, ALL_NODES)}
        if found == self._set:
            return
        self._set = found
        for changed in self._watchers:
            changed()


def _known(entries: Mapping[str, str]) -> Mapping[str, str]:
    known = {}
    for name, value in entries.items():
        try:
            if name in DYNAMIC:
                BROKER_CONFIGS[name].check(value)
                known[name] = value
        except KafkaError as error:
            log.warning("a broker config is not understood here", config=name, reason=error.message)
    return known


def _static_values(row: ConfigDef, name: str, settings: Settings) -> Sequence[Synonym]:
    value, default = default_value(row, settings), (name, row.default, ConfigSource.DEFAULT_CONFIG)
    return [default] if value == row.default else [(name, value, ConfigSource.STATIC_BROKER_CONFIG), default]


def fixed_configs(settings: Settings, host: str, port: int) -> Sequence[tuple[ConfigDef, str]]:
    """What a node shows beside its table of configs: where it is, and what cannot be otherwise."""
    text, number, long, items = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
    node, backoff = settings.node, str(CompactionSettings().clean_backoff_ms)
    return (
        (
            ConfigDef("advertised.listeners", text, "", "Where clients are told to connect."),
            f"PLAINTEXT://{host}:{port}",
        ),
        (ConfigDef("broker.id", number, "-1", "Id of this node."), str(node.node_id)),
        (
            ConfigDef(
                "default.replication.factor", number, "1", "A partition has one replica, kept by the object store."
            ),
            "1",
        ),
        (ConfigDef("listeners", text, "", "Where this node listens."), f"PLAINTEXT://{settings.listener.host}:{port}"),
        (ConfigDef(CLEANER_BACKOFF, long, "15000", "Rest between two cleanings of a compacted partition."), backoff),
        (
            ConfigDef(STORAGE_POLICY, text, "local", "Object store of topics that choose none by `storage.policy`."),
            settings.objects.store,
        ),
        (ConfigDef("log.dirs", items, "", "Directory of this node."), str(node.data_dir)),
        (ConfigDef("node.id", number, "-1", "Id of this node."), str(node.node_id)),
        (ConfigDef("offsets.topic.replication.factor", number, "3", "A partition has one replica."), "1"),
    )
