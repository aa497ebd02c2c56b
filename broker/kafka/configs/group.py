"""Configs of a consumer group (KIP-848), share group (KIP-932) or streams group (KIP-1071) over the node's defaults.

Values must be within the node's limits, so that no group keeps dead members for days, or has its members send a
heartbeat every millisecond.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from anabranch.broker.kafka.configs.cluster import GROUP, ClusterConfigs
from anabranch.broker.kafka.configs.definitions import ConfigDef, ConfigType
from anabranch.broker.kafka.configs.group_times import GroupTimes
from anabranch.broker.kafka.configs.streams import StreamsConfigs
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
CONSUMER_ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
SHARE_ASSIGNMENT_INTERVAL: Final = "share.assignment.interval.ms"
SHARE_SESSION_TIMEOUT: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
SHARE_RECORD_LOCK_DURATION: Final = "share.record.lock.duration.ms"
SHARE_DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
SHARE_PARTITION_MAX_RECORD_LOCKS: Final = "share.partition.max.record.locks"
SHARE_AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL: Final = "share.isolation.level"
SHARE_RENEW_ACKNOWLEDGE: Final = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY_RECORD: Final = "errors.deadletterqueue.copy.record.enable"
STREAMS_SESSION_TIMEOUT: Final = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL: Final = "streams.heartbeat.interval.ms"
STREAMS_STANDBY_REPLICAS: Final = "streams.num.standby.replicas"
STREAMS_INITIAL_REBALANCE_DELAY: Final = "streams.initial.rebalance.delay.ms"
STREAMS_ASSIGNMENT_INTERVAL: Final = "streams.assignment.interval.ms"
STREAMS_TASK_OFFSET_INTERVAL: Final = "streams.task.offset.interval.ms"
STREAMS_ACCEPTABLE_RECOVERY_LAG: Final = "streams.acceptable.recovery.lag"
STREAMS_RACK_TAGS: Final = "streams.rack.aware.assignment.tags"
STREAMS_ASSIGNOR: Final = "streams.assignor.name"
STREAMS_ASSIGNORS: Final = ("sticky",)
STREAMS_WARMUP_REPLICAS: Final = "streams.num.warmup.replicas"
WARMUP_REPLICAS_MAX: Final = 20
OFFLOADED: Final = ".assignor.offload.enable"
"""End of the names of configs that let Apache Kafka compute assignments in another thread."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+)(?:[.,](?P<rest>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


class OffsetReset(NamedTuple):
    """Place where a share group begins to read a partition."""

    place: str
    """EARLIEST, LATEST, or empty: at a time."""
    before_ms: int = 0
    """Time from then until now."""


def parse_offset_reset(text: str) -> OffsetReset:
    """Parse the value of SHARE_AUTO_OFFSET_RESET. Raises ValueError."""
    if text in {EARLIEST, LATEST}:
        return OffsetReset(text)
    if not text.startswith(_BY_DURATION):
        raise ValueError(text)
    return OffsetReset("", _parse_duration_ms(text.removeprefix(_BY_DURATION)))


def _parse_duration_ms(text: str) -> int:
    """Parse a duration as Java's `Duration.parse` does; it must not be negative. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None or (found["time"] or "").upper() == "T" or not any(map(str.isdigit, text)):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(found[unit] or 0) for unit in ("days", "hours", "minutes", "seconds"))
    fraction = int((found["rest"] or "").ljust(9, "0")) * (-1 if (found["seconds"] or "").startswith("-") else 1)
    nanoseconds = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000_000 + fraction
    if found["sign"] == "-":
        nanoseconds = -nanoseconds
    if nanoseconds < 0:
        raise ValueError(text)
    return nanoseconds // 1_000_000


def _problem_of_offset_reset(text: str) -> str:
    try:
        parse_offset_reset(text)
    except ValueError:
        return (
            f"Invalid value `{text}` for configuration {SHARE_AUTO_OFFSET_RESET}. The value must be either 'earliest', "
            "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )
    return ""


_B, _S, _I, _L = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_NUMBERS = (
    (
        SESSION_TIMEOUT,
        "45000",
        "consumer_session_timeout_ms",
        1,
        "A member that sends no heartbeat for this long is removed (consumer protocol).",
    ),
    (
        HEARTBEAT_INTERVAL,
        "5000",
        "consumer_heartbeat_interval_ms",
        1,
        "Interval of the members' heartbeats (consumer protocol).",
    ),
    (
        CONSUMER_ASSIGNMENT_INTERVAL,
        "1000",
        "consumer_assignment_interval_ms",
        0,
        "Shortest time between two assignments of a consumer group.",
    ),
    (
        SHARE_ASSIGNMENT_INTERVAL,
        "1000",
        "share_assignment_interval_ms",
        0,
        "Shortest time between two assignments of a share group.",
    ),
    (
        SHARE_SESSION_TIMEOUT,
        "45000",
        "share_session_timeout_ms",
        1,
        "A member that sends no heartbeat for this long is removed (share groups).",
    ),
    (
        SHARE_HEARTBEAT_INTERVAL,
        "5000",
        "share_heartbeat_interval_ms",
        1,
        "Interval of the members' heartbeats (share groups).",
    ),
    (
        SHARE_RECORD_LOCK_DURATION,
        "30000",
        "share_record_lock_duration_ms",
        1000,
        "A record that is not acknowledged for this long is delivered again.",
    ),
    (SHARE_DELIVERY_COUNT_LIMIT, "5", "share_delivery_count_limit", 2, "Deliveries of a record before it is given up."),
    (
        SHARE_PARTITION_MAX_RECORD_LOCKS,
        "2000",
        "share_partition_record_locks_max",
        100,
        "Records of a partition that are delivered and not acknowledged yet.",
    ),
    (
        STREAMS_SESSION_TIMEOUT,
        "45000",
        "streams_session_timeout_ms",
        1,
        "A member that sends no heartbeat for this long is removed (streams groups).",
    ),
    (
        STREAMS_HEARTBEAT_INTERVAL,
        "5000",
        "streams_heartbeat_interval_ms",
        1,
        "Interval of the members' heartbeats (streams groups).",
    ),
    (STREAMS_STANDBY_REPLICAS, "0", "streams_standby_replicas", 0, "Standby tasks of each stateful task."),
    (
        STREAMS_INITIAL_REBALANCE_DELAY,
        "3000",
        "streams_initial_rebalance_delay_ms",
        0,
        "Time that the first member waits for others before tasks are assigned.",
    ),
    (
        STREAMS_ASSIGNMENT_INTERVAL,
        "1000",
        "streams_assignment_interval_ms",
        0,
        "Shortest time between two assignments of tasks.",
    ),
)
_OTHERS = (
    ConfigDef(
        SHARE_AUTO_OFFSET_RESET,
        _S,
        LATEST,
        "Where a share group begins to read: earliest, latest, or by_duration:<ISO 8601 duration> before now.",
        problem_of=_problem_of_offset_reset,
    ),
    ConfigDef(
        SHARE_ISOLATION_LEVEL,
        _S,
        "read_uncommitted",
        "With read_committed, a share group gets no records of open or aborted transactions.",
        choices=("read_committed", "read_uncommitted"),
    ),
    ConfigDef(SHARE_RENEW_ACKNOWLEDGE, _B, "true", "Members may renew the locks of records."),
    ConfigDef(
        DEAD_LETTER_TOPIC, _S, "", "Topic for records that a share group rejects or gives up; empty: they are dropped."
    ),
    ConfigDef(
        DEAD_LETTER_COPY_RECORD,
        _B,
        "false",
        "Copy key and value of such records to the topic, instead of their place alone.",
    ),
)


_OF_STREAMS = (
    ConfigDef(
        STREAMS_TASK_OFFSET_INTERVAL,
        _I,
        "60000",
        "Interval in which members report how far they have restored state.",
        broker_name=f"group.{STREAMS_TASK_OFFSET_INTERVAL}",
        setting=("group", "streams_task_offset_interval_ms"),
        minimum=1,
        is_internal=True,
    ),
    ConfigDef(
        STREAMS_ACCEPTABLE_RECOVERY_LAG,
        _L,
        "10000",
        "Records by which restored state may lag for a member to count as caught up.",
        broker_name=f"group.{STREAMS_ACCEPTABLE_RECOVERY_LAG}",
        setting=("group", "streams_acceptable_recovery_lag"),
        minimum=0,
        is_internal=True,
    ),
    ConfigDef(
        STREAMS_RACK_TAGS,
        ConfigType.LIST,
        "",
        "Tags that clients must have. Members without one are told; the assignor does not use them.",
        broker_name=f"group.{STREAMS_RACK_TAGS}",
        setting=("group", "streams_rack_aware_assignment_tags"),
    ),
    ConfigDef(STREAMS_ASSIGNOR, _S, STREAMS_ASSIGNORS[0], "Assignor of tasks."),
    ConfigDef(
        STREAMS_WARMUP_REPLICAS,
        _I,
        "2",
        "Tasks that warm up before they move. Accepted for compatibility; as in Apache Kafka 4.4 it has no effect: "
        "tasks move at once.",
        broker_name=f"group.{STREAMS_WARMUP_REPLICAS}",
        minimum=0,
        is_internal=True,
    ),
)


def _definitions() -> Iterator[ConfigDef]:
    for name, default, setting, least, text in _NUMBERS:
        yield ConfigDef(name, _I, default, text, broker_name=f"group.{name}", setting=("group", setting), minimum=least)
    yield from _OTHERS
    yield from _OF_STREAMS
    for kind in ("consumer", "share", "streams"):
        yield ConfigDef(
            f"{kind}{OFFLOADED}",
            _B,
            "true",
            "Compute assignments in the background. Accepted for compatibility; as in Apache Kafka 4.4 it has no "
            "effect: a heartbeat computes them.",
            broker_name=f"group.{kind}{OFFLOADED}",
            is_internal=True,
        )


GROUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType({row.name: row for row in _definitions()})


def check_group_configs(values: Mapping[str, str], settings: GroupSettings) -> None:
    """Raise INVALID_CONFIG, with Kafka's message, for a value outside the node's limits."""
    for name, least, most in _limits(settings):
        if name in values and not least <= int(values[name]) <= most:
            raise _invalid(f"{name} must be in the range {least} to {most} inclusive.")
    _check_streams(values, settings)
    for timeout, interval in (
        (SESSION_TIMEOUT, HEARTBEAT_INTERVAL),
        (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL),
        (STREAMS_SESSION_TIMEOUT, STREAMS_HEARTBEAT_INTERVAL),
    ):
        if (timeout in values or interval in values) and _number(values, timeout, settings) <= _number(
            values, interval, settings
        ):
            raise _invalid(f"{timeout} must be greater than {interval}")
    if values.get(DEAD_LETTER_TOPIC, "").startswith("__"):
        raise _invalid(f"{DEAD_LETTER_TOPIC}: DLQ topic name must not start with '__'")


def _check_streams(values: Mapping[str, str], settings: GroupSettings) -> None:
    """Check the configs of streams groups that have one limit, or name an assignor."""
    most, least = settings.streams_standby_replicas_max, settings.streams_task_offset_interval_min_ms
    if int(values.get(STREAMS_STANDBY_REPLICAS, 0)) > most:
        raise _invalid(f"{STREAMS_STANDBY_REPLICAS} must be less than or equal to {most}")
    if int(values.get(STREAMS_WARMUP_REPLICAS, 0)) > WARMUP_REPLICAS_MAX:
        raise _invalid(f"{STREAMS_WARMUP_REPLICAS} must be less than or equal to {WARMUP_REPLICAS_MAX}")
    if int(values.get(STREAMS_TASK_OFFSET_INTERVAL, least)) < least:
        raise _invalid(f"{STREAMS_TASK_OFFSET_INTERVAL} must be greater than or equal to {least}")
    assignor = values.get(STREAMS_ASSIGNOR)
    if assignor is not None and assignor not in STREAMS_ASSIGNORS:
        raise _invalid(
            f"{STREAMS_ASSIGNOR} '{assignor}' is not a registered task assignor. Registered assignors are: "
            f"[{', '.join(STREAMS_ASSIGNORS)}]."
        )


def _limits(settings: GroupSettings) -> Iterator[tuple[str, int, int]]:
    """Yield the lowest and the highest value of each config that has limits."""
    for name, prefix in (
        (HEARTBEAT_INTERVAL, "consumer_heartbeat_interval"),
        (SESSION_TIMEOUT, "consumer_session_timeout"),
        (CONSUMER_ASSIGNMENT_INTERVAL, "consumer_assignment_interval"),
        (SHARE_HEARTBEAT_INTERVAL, "share_heartbeat_interval"),
        (SHARE_SESSION_TIMEOUT, "share_session_timeout"),
        (SHARE_RECORD_LOCK_DURATION, "share_record_lock_duration"),
        (SHARE_ASSIGNMENT_INTERVAL, "share_assignment_interval"),
        (STREAMS_HEARTBEAT_INTERVAL, "streams_heartbeat_interval"),
        (STREAMS_SESSION_TIMEOUT, "streams_session_timeout"),
        (STREAMS_ASSIGNMENT_INTERVAL, "streams_assignment_interval"),
    ):
        yield name, getattr(settings, f"{prefix}_min_ms"), getattr(settings, f"{prefix}_max_ms")
    yield SHARE_DELIVERY_COUNT_LIMIT, settings.share_delivery_count_limit_min, settings.share_delivery_count_limit_max
    yield (
        SHARE_PARTITION_MAX_RECORD_LOCKS,
        settings.share_partition_record_locks_least,
        settings.share_partition_record_locks_most,
    )


def _number(values: Mapping[str, str], name: str, settings: GroupSettings) -> int:
    """Return the value of a config of a number: what is set, or the node's."""
    if name in values:
        return int(values[name])
    setting = GROUP_CONFIGS[name].setting
    assert setting is not None, "the node has a setting for each number"
    return int(getattr(settings, setting[1]))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


class GroupConfigs:
    """Values of the configs of each group."""

    def __init__(self, configs: ClusterConfigs, settings: GroupSettings) -> None:
        self._configs = configs
        self._settings = settings

    def consumer_times(self, group_id: str) -> GroupTimes:
        """Return the session timeout and the assignment interval of a consumer group."""
        return self._times_of(group_id, SESSION_TIMEOUT, CONSUMER_ASSIGNMENT_INTERVAL)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval of the heartbeats of a consumer group's members."""
        return self._number_of(group_id, HEARTBEAT_INTERVAL)

    def share_times(self, group_id: str) -> GroupTimes:
        """Return the session timeout and the assignment interval of a share group."""
        return self._times_of(group_id, SHARE_SESSION_TIMEOUT, SHARE_ASSIGNMENT_INTERVAL)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval of the heartbeats of a share group's members."""
        return self._number_of(group_id, SHARE_HEARTBEAT_INTERVAL)

    def share_record_lock_duration_ms(self, group_id: str) -> int:
        """Return the time after which a record that is not acknowledged may be delivered again."""
        return self._number_of(group_id, SHARE_RECORD_LOCK_DURATION)

    def share_delivery_count_limit(self, group_id: str) -> int:
        """Return the number of deliveries of a record after which it is given up."""
        return self._number_of(group_id, SHARE_DELIVERY_COUNT_LIMIT)

    def share_partition_max_record_locks(self, group_id: str) -> int:
        """Return the number of records of a partition that may be delivered and not acknowledged yet."""
        return self._number_of(group_id, SHARE_PARTITION_MAX_RECORD_LOCKS)

    def share_auto_offset_reset(self, group_id: str) -> OffsetReset:
        """Return where the group begins to read a partition."""
        return parse_offset_reset(self._text_of(group_id, SHARE_AUTO_OFFSET_RESET))

    def share_reads_committed(self, group_id: str) -> bool:
        """Return whether the group gets committed records only."""
        return self._text_of(group_id, SHARE_ISOLATION_LEVEL) == "read_committed"

    def share_renew_acknowledge_enable(self, group_id: str) -> bool:
        """Return whether members may renew the locks of records."""
        return self._text_of(group_id, SHARE_RENEW_ACKNOWLEDGE) == "true"

    def share_dead_letter_topic(self, group_id: str) -> str:
        """Return the name of the topic for records that the group rejects or gives up; empty: there is none."""
        return self._text_of(group_id, DEAD_LETTER_TOPIC)

    def share_dead_letter_copy_record(self, group_id: str) -> bool:
        """Return whether such records are copied to that topic."""
        return self._text_of(group_id, DEAD_LETTER_COPY_RECORD) == "true"

    def streams(self, group_id: str) -> StreamsConfigs:
        """Return the configs of a streams group."""
        values = self._configs.get(GROUP, group_id)
        tags = values.get(STREAMS_RACK_TAGS, self._settings.streams_rack_aware_assignment_tags)
        return StreamsConfigs(
            session_timeout_ms=_number(values, STREAMS_SESSION_TIMEOUT, self._settings),
            heartbeat_interval_ms=_number(values, STREAMS_HEARTBEAT_INTERVAL, self._settings),
            initial_rebalance_delay_ms=_number(values, STREAMS_INITIAL_REBALANCE_DELAY, self._settings),
            assignment_interval_ms=_number(values, STREAMS_ASSIGNMENT_INTERVAL, self._settings),
            task_offset_interval_ms=_number(values, STREAMS_TASK_OFFSET_INTERVAL, self._settings),
            acceptable_recovery_lag=_number(values, STREAMS_ACCEPTABLE_RECOVERY_LAG, self._settings),
            standby_replicas=_number(values, STREAMS_STANDBY_REPLICAS, self._settings),
            rack_tags=tuple(filter(None, map(str.strip, tags.split(",")))),
        )

    def _times_of(self, group_id: str, session_timeout: str, assignment_interval: str) -> GroupTimes:
        values = self._configs.get(GROUP, group_id)
        return GroupTimes(*(_number(values, name, self._settings) for name in (session_timeout, assignment_interval)))

    def _number_of(self, group_id: str, name: str) -> int:
        return _number(self._configs.get(GROUP, group_id), name, self._settings)

    def _text_of(self, group_id: str, name: str) -> str:
        return self._configs.get(GROUP, group_id).get(name, GROUP_CONFIGS[name].default)
