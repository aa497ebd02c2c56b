"""Configs of a consumer group (KIP-848), which override the node's defaults.

Only configs that have an effect here are listed. Values must be within the node's limits, so that no group keeps dead
members for days, or has its members send a heartbeat every millisecond.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from anabranch.broker.kafka.configs.cluster import GROUP, ClusterConfigs
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigType
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    {
        SESSION_TIMEOUT: ConfigDef(
            SESSION_TIMEOUT,
            ConfigType.INT,
            "45000",
            "A member that sends no heartbeat for this long is removed (consumer protocol).",
            broker_name="group.consumer.session.timeout.ms",
            setting=("group", "consumer_session_timeout_ms"),
            minimum=1,
        ),
        HEARTBEAT_INTERVAL: ConfigDef(
            HEARTBEAT_INTERVAL,
            ConfigType.INT,
            "5000",
            "Interval of the members' heartbeats (consumer protocol).",
            broker_name="group.consumer.heartbeat.interval.ms",
            setting=("group", "consumer_heartbeat_interval_ms"),
            minimum=1,
        ),
    }
)


def check_group_configs(values: Mapping[str, str], settings: GroupSettings) -> None:
    """Raise INVALID_CONFIG, with Kafka's message, for a value outside the node's limits."""
    limits = (
        (
            HEARTBEAT_INTERVAL,
            settings.consumer_heartbeat_interval_min_ms,
            settings.consumer_heartbeat_interval_max_ms,
            "heartbeat.interval.ms",
        ),
        (
            SESSION_TIMEOUT,
            settings.consumer_session_timeout_min_ms,
            settings.consumer_session_timeout_max_ms,
            "session.timeout.ms",
        ),
    )
    for name, least, most, what in limits:
        if name not in values:
            continue
        number = int(values[name])
        if number < least:
            raise _invalid(f"{name} must be greater than or equal to group.consumer.min.{what}")
        if number > most:
            raise _invalid(f"{name} must be less than or equal to group.consumer.max.{what}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


class GroupConfigs:
    """Values of the configs of each group."""

    def __init__(self, configs: ClusterConfigs, settings: GroupSettings) -> None:
        self._configs = configs
        self._settings = settings

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time without a heartbeat after which a member is removed."""
        return self._number(group_id, SESSION_TIMEOUT, self._settings.consumer_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval of a member's heartbeats."""
        return self._number(group_id, HEARTBEAT_INTERVAL, self._settings.consumer_heartbeat_interval_ms)

    def _number(self, group_id: str, name: str, default: int) -> int:
        own = self._configs.get(GROUP, group_id).get(name)
        return default if own is None else int(own)
