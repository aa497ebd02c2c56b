"""Values of the broker configs on this node, and the defaults of topics' configs.

In order of precedence: set dynamically for this node, set dynamically for all nodes, settings of the start, Kafka's
defaults. Dynamic values are in the catalog, with the other configs of the cluster (`broker.kafka.configs.cluster`). A
user of a value reads it here each time, or is called after changes (`watch`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from anabranch.addresses import host_port
from anabranch.broker.kafka.configs.broker_table import BROKER_CONFIGS, DYNAMIC, STORAGE_POLICY
from anabranch.broker.kafka.configs.cluster import BROKER, ClusterConfigs
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigSource, ConfigType, Synonym, default_value
from anabranch.broker.node.settings.known import ADMIN_LISTENER
from anabranch.broker.node.settings.model import Settings
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.catalog.values import NodeListener

ALL_NODES: Final = ""
"""Name of the entry with the values for all nodes, as in Kafka's requests."""
log = structlog.get_logger("configs")


class BrokerConfigs:
    """Values of broker configs by Kafka's names."""

    def __init__(self, configs: ClusterConfigs, settings: Settings, node_id: int) -> None:
        self._configs = configs
        self._settings = settings
        self._own = str(node_id)
        self._set: Mapping[str, Mapping[str, str]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._follow()
        configs.watch(self._follow)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change."""
        self._watchers.append(changed)

    def value(self, name: str) -> str:
        """Return the value in force, as text."""
        return self.synonyms(name)[0][1]

    def number(self, name: str) -> int:
        """Return the value in force, as a number."""
        return int(self.value(name))

    def is_on(self, name: str) -> bool:
        """Return the value in force, as a boolean."""
        return self.value(name).strip().lower() == "true"

    def synonyms(self, name: str) -> Sequence[Synonym]:
        """Return every value that is set for a config, the one in force first."""
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
        """Return the values that are set for all nodes."""
        return self._set[ALL_NODES]

    def topic_default(self, row: ConfigDef) -> str:
        """Return a topic config's value for topics that do not set it."""
        synonyms = self.topic_synonyms(row)
        return synonyms[0][1] if synonyms else row.default

    def topic_synonyms(self, row: ConfigDef) -> Sequence[Synonym]:
        """Return every value of a topic's config outside the topic; empty if brokers have no such config."""
        if row.broker_name in BROKER_CONFIGS:
            return self.synonyms(row.broker_name)
        return _static_values(row, row.broker_name, self._settings) if row.broker_name else ()

    def _follow(self) -> None:
        """Apply what is set now, except invalid values, which nodes of another version may have accepted."""
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
                known[name] = BROKER_CONFIGS[name].normalize(value)
        except KafkaError as error:
            log.warning("a broker config is invalid here and ignored", config=name, reason=error.message)
    return known


def _static_values(row: ConfigDef, name: str, settings: Settings) -> Sequence[Synonym]:
    value, default = default_value(row, settings), (name, row.default, ConfigSource.DEFAULT_CONFIG)
    return [default] if value == row.default else [(name, value, ConfigSource.STATIC_BROKER_CONFIG), default]


RACK_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's class that does what the setting `fetch.replica_selector` has as `rack`."""


def fixed_configs(
    settings: Settings, announced: Sequence[NodeListener], bound: Mapping[str, int], admin_port: int
) -> Sequence[tuple[ConfigDef, str]]:
    """Return the read-only configs of a node that are in no table: addresses, ids, fixed values.

    `announced` are the addresses announced to clients, `bound` the ports of the listeners by name. `admin_port` is 0
    if there is none.
    """
    admin, scheme = settings.admin, "http" if settings.admin.ssl is None else "https"
    text, number, items, node = ConfigType.STRING, ConfigType.INT, ConfigType.LIST, settings.node
    return (
        (
            ConfigDef(ADMIN_LISTENER, text, "", "Address that the admin port listens on. Empty: there is none."),
            f"{scheme}://{host_port(admin.host, admin_port)}" if admin_port else "",
        ),
        (
            ConfigDef("advertised.listeners", text, "", "Addresses that clients connect to."),
            ",".join(f"{each.name}://{host_port(each.host, each.port)}" for each in announced),
        ),
        (ConfigDef("broker.id", number, "-1", "Id of this node."), str(node.node_id)),
        (
            ConfigDef("default.replication.factor", number, "1", "Replicas of a topic created without a number."),
            str(settings.topic.replication_factor),
        ),
        (
            ConfigDef("listeners", text, "", "Addresses that this node listens on."),
            ",".join(f"{each.name}://{host_port(each.host, bound[each.name])}" for each in settings.listeners),
        ),
        (
            ConfigDef(STORAGE_POLICY, text, "local", "Object store of topics that do not set `storage.policy`."),
            settings.objects.store,
        ),
        (
            ConfigDef("group.consumer.assignors", items, "uniform,range", "Assignors of consumer groups."),
            "uniform,range",
        ),
        (ConfigDef("group.share.assignors", items, "simple", "Assignor of share groups."), "simple"),
        (ConfigDef("group.streams.assignors", items, "sticky", "Assignor of streams groups."), "sticky"),
        (ConfigDef("log.dirs", items, "", "Directory of this node."), str(node.data_dir)),
        (ConfigDef("node.id", number, "-1", "Id of this node."), str(node.node_id)),
        (
            ConfigDef("offsets.retention.minutes", number, "10080", "Age of offsets of an empty group."),
            str(settings.group.offsets_retention_ms // 60_000),
        ),
        (ConfigDef("offsets.topic.replication.factor", number, "3", "Groups are served by the leader only."), "1"),
        (
            ConfigDef("replica.selector.class", text, "", "Whom consumers read from that are behind (KIP-392)."),
            RACK_SELECTOR if settings.fetch.replica_selector == "rack" else "",
        ),
    )
