"""Configs of other resources than topics: groups, loggers of a broker, subscriptions to client metrics."""

from anabranch.protocol.messages import alter_configs as whole
from anabranch.protocol.messages import incremental_alter_configs as incremental
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.differential.script import Script
from tests.differential.scripts.configs import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
)

OFF_LOGGER = "org.apache.kafka.no.such.class"


def _describe(kind: int, name: str, *keys: str, synonyms: bool = False) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms)


class _Changes:
    """Changes of one kind of resource."""

    def __init__(self, script: Script, kind: int, name: str) -> None:
        self._script, self._kind, self._name = script, kind, name

    def alter(
        self, step: str, *configs: tuple[str, int, str | None], name: str | None = None, validate_only: bool = False
    ) -> None:
        """Change it in both versions of IncrementalAlterConfigs."""
        changes = [
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in configs
        ]
        resource = incremental.AlterConfigsResource(
            resource_type=self._kind, resource_name=self._name if name is None else name, configs=changes
        )
        request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        self._script.call(step, request, 0, 1)

    def replace(self, step: str, *configs: tuple[str, str | None], name: str | None = None) -> None:
        """Change it by AlterConfigs."""
        values = [whole.AlterableConfig(name=key, value=value) for key, value in configs]
        resource = whole.AlterConfigsResource(
            resource_type=self._kind, resource_name=self._name if name is None else name, configs=values
        )
        self._script.call(step, whole.AlterConfigsRequest(resources=[resource]), 0, 2)

    def described(self, step: str, *expected: tuple[str, str], synonyms: bool = False) -> None:
        """Wait until the description has the expected contents, and record it."""
        request = _describe(self._kind, self._name, *[key for key, _ in expected], synonyms=synonyms)
        wanted = dict(expected)
        self._script.until(request, 4, lambda answer: {c.name: c.value for c in answer.results[0].configs} == wanted)
        self._script.call(step, request, 4)


SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def setting_of_group(group: str, **configs: int | None) -> incremental.IncrementalAlterConfigsRequest:
    """Return a request that sets configs of a group, or removes those that are None: their names with `_` for dots."""
    changes = [
        incremental.AlterableConfig(
            name=key.replace("_", "."),
            config_operation=DELETE if value is None else SET,
            value=None if value is None else str(value),
        )
        for key, value in configs.items()
    ]
    resource = incremental.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=changes)
    return incremental.IncrementalAlterConfigsRequest(resources=[resource])


def group_configs(script: Script) -> None:
    script.call("a group without configs", _describe(GROUP, "gc-a", SESSION, HEARTBEAT), 1, 4)
    script.call("with synonyms", _describe(GROUP, "gc-a", SESSION, HEARTBEAT, synonyms=True), 1, 4)
    script.call("all of its configs", _describe(GROUP, "gc-a"), 4)
    script.call("a group without name", _describe(GROUP, "", SESSION), 4)
    script.call("an unknown config", _describe(GROUP, "gc-a", "no.such.config"), 4)
    group = _Changes(script, GROUP, "gc-a")
    group.alter("validate only", (SESSION, SET, "50000"), validate_only=True)
    group.alter("set", (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000"))
    group.described("what is set", (SESSION, "50000"), (HEARTBEAT, "6000"))
    group.described("what is set, with synonyms", (SESSION, "50000"), synonyms=True)
    script.call("groups with configs", ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    group.alter("shorter than the shortest", (SESSION, SET, "1"))
    group.alter("longer than the longest", (SESSION, SET, "100000000"))
    group.alter("a heartbeat shorter than the shortest", (HEARTBEAT, SET, "1"))
    group.alter("a heartbeat longer than the longest", (HEARTBEAT, SET, "100000000"))
    group.alter("zero", (SESSION, SET, "0"))
    group.alter("negative", (SESSION, SET, "-1"))
    group.alter("no number", (SESSION, SET, "abc"))
    group.alter("empty", (SESSION, SET, ""))
    group.alter("with blanks", (SESSION, SET, " 46000 "), validate_only=True)
    group.alter("too large for its type", (SESSION, SET, "3000000000"))
    group.alter("null", (SESSION, SET, None))
    group.alter("append", (SESSION, APPEND, "1"))
    group.alter("subtract", (SESSION, SUBTRACT, "1"))
    group.alter("unknown", ("no.such.config", SET, "1"))
    group.alter("unknown deleted", ("no.such.config", DELETE, None))
    group.alter("a broker's", ("group.consumer.session.timeout.ms", SET, "50000"))
    group.alter("a config twice", (SESSION, SET, "50000"), (SESSION, SET, "50001"))
    group.alter("no configs")
    group.alter("no name", (SESSION, SET, "50000"), name="")
    group.alter("a strange name", (SESSION, SET, "50000"), name="gc /\u00e4", validate_only=True)
    group.alter("delete", (SESSION, DELETE, None))
    group.described("after", (SESSION, "45000"), (HEARTBEAT, "6000"))
    group.alter("delete again", (SESSION, DELETE, None))
    group.alter("offloaded", *((f"{kind}.assignor.offload.enable", SET, "false") for kind in ("consumer", "share")))
    group.described("offloaded is described", ("share.assignor.offload.enable", "false"), synonyms=True)
    group.replace("replace", (SESSION, "51000"))
    group.described("replaced", (SESSION, "51000"), (HEARTBEAT, "5000"))
    group.replace("replace by nonsense", (SESSION, "x"))
    group.replace("replace by an unknown config", ("no.such.config", "1"))
    group.replace("replace by null", (SESSION, None))
    group.replace("replace without name", (SESSION, "51000"), name="")
    group.replace("replace by nothing")
    group.described("nothing left", (SESSION, "45000"), (HEARTBEAT, "5000"))
    script.call("no groups with configs", ListConfigResourcesRequest(resource_types=[GROUP]), 1)


def streams_group_configs(script: Script) -> None:
    group = _Changes(script, GROUP, "gc-streams")
    for name, *values in (
        ("session.timeout.ms", "1", "100000000", "46000"),
        ("heartbeat.interval.ms", "1", "50000", "6000"),
        ("num.standby.replicas", "-1", "3", "1"),
        ("initial.rebalance.delay.ms", "-1", "0"),
        ("assignment.interval.ms", "-1", "100000", "0"),
        ("task.offset.interval.ms", "0", "1", "20000"),
        ("acceptable.recovery.lag", "-1", "5"),
        ("rack.aware.assignment.tags", "a,a", "a,,b", "a,b"),
        ("assignor.name", "no-such", "sticky"),
        ("assignor.offload.enable", "perhaps", "false"),
        ("num.warmup.replicas", "-1", "21", "3"),
    ):
        for value in values:
            group.alter(f"{name} of {value}", (f"streams.{name}", SET, value))
    script.call("all that is set", _describe(GROUP, "gc-streams"), 4)
    group.replace("nothing is set")


def client_metrics_configs(script: Script) -> None:
    script.call("a subscription there is not", _describe(CLIENT_METRICS, "cm-a"), 1, 4)
    script.call("with synonyms", _describe(CLIENT_METRICS, "cm-a", synonyms=True), 4)
    script.call("without name", _describe(CLIENT_METRICS, ""), 4)
    subscription = _Changes(script, CLIENT_METRICS, "cm-a")
    subscription.alter("validate only", ("interval.ms", SET, "1000"), validate_only=True)
    subscription.alter(
        "set",
        ("interval.ms", SET, "1000"),
        ("metrics", SET, "org.apache.kafka.producer."),
        ("match", SET, "client_id=cm-never-[0-9]+"),
    )
    both = (
        ("interval.ms", "1000"),
        ("match", "client_id=cm-never-[0-9]+"),
        ("metrics", "org.apache.kafka.producer."),
    )
    subscription.described("what is set", *both)
    subscription.described("with synonyms", *both, synonyms=True)
    script.call("listed", ListConfigResourcesRequest(), 0)
    script.call("listed by type", ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1)
    for value in ("99", "100", "3600000", "3600001", "0", "-1", "abc", "", "3000000000", " 500 ", None):
        subscription.alter(f"interval of {value}", ("interval.ms", SET, value), validate_only=True)
    for value in ("", "*", "a,b", "a, b", ",", None):
        subscription.alter(f"metrics of {value}", ("metrics", SET, value), validate_only=True)
    for value in (
        "",
        "client_id",
        "client_id=",
        "=x",
        "client_id=a,client_id=b",
        "client_id=(",
        "no_such=x",
        "client_id=a,client_source_port=1.*",
        "client_id=a=b",
        "client_instance_id=x",
        "client_software_name=a,client_software_version=1\\..*",
        "client_source_address=127.*",
        " client_id = x ",
        "CLIENT_ID=x",
        None,
    ):
        subscription.alter(f"match of {value}", ("match", SET, value), validate_only=True)
    subscription.alter("append to the metrics", ("metrics", APPEND, "org.apache.kafka.consumer."))
    subscription.alter("append again", ("metrics", APPEND, "org.apache.kafka.consumer."))
    script.call("appended", _describe(CLIENT_METRICS, "cm-a"), 4)
    subscription.alter("subtract", ("metrics", SUBTRACT, "org.apache.kafka.producer."))
    script.call("subtracted", _describe(CLIENT_METRICS, "cm-a"), 4)
    subscription.alter("append to the match", ("match", APPEND, "client_software_name=x"), validate_only=True)
    subscription.alter("append to the interval", ("interval.ms", APPEND, "1"))
    subscription.alter("unknown", ("no.such.config", SET, "1"))
    subscription.alter("unknown deleted", ("no.such.config", DELETE, None))
    subscription.alter("a config twice", ("interval.ms", SET, "1000"), ("interval.ms", SET, "2000"))
    subscription.alter("no configs")
    subscription.alter("no name", ("interval.ms", SET, "1000"), name="")
    subscription.alter("no configs of what there is not", name="cm-none")
    subscription.alter("delete of what there is not", ("interval.ms", DELETE, None), name="cm-none")
    subscription.alter("delete the interval", ("interval.ms", DELETE, None))
    subscription.described("the interval deleted", ("interval.ms", "300000"))
    script.call("deleted", _describe(CLIENT_METRICS, "cm-a"), 4)
    subscription.replace("replace", ("interval.ms", "2000"))
    subscription.described("replaced", ("interval.ms", "2000"), ("match", ""), ("metrics", ""))
    subscription.replace("replace by nonsense", ("interval.ms", "x"))
    subscription.replace("replace by an unknown config", ("no.such.config", "1"))
    subscription.replace("replace without name", ("interval.ms", "1000"), name="")
    subscription.alter("delete the last", ("interval.ms", DELETE, None))
    script.until(ListConfigResourcesRequest(), 0, lambda answer: not answer.config_resources)
    script.call("gone", _describe(CLIENT_METRICS, "cm-a"), 4)
    script.call("none listed", ListConfigResourcesRequest(), 0)


def _root_at(level: str) -> incremental.IncrementalAlterConfigsRequest:
    change = incremental.AlterableConfig(name="root", config_operation=SET, value=level)
    resource = incremental.AlterConfigsResource(resource_type=BROKER_LOGGER, resource_name="1", configs=[change])
    return incremental.IncrementalAlterConfigsRequest(resources=[resource])


def logger_configs(script: Script) -> None:
    script.ask(_root_at("INFO"), 1)
    script.until(_describe(BROKER_LOGGER, "1", "root"), 4, lambda answer: answer.results[0].configs[0].value == "INFO")
    script.call("the root", _describe(BROKER_LOGGER, "1", "root"), 1, 4)
    script.call("the root with synonyms", _describe(BROKER_LOGGER, "1", "root", synonyms=True), 4)
    script.call("an unknown logger", _describe(BROKER_LOGGER, "1", OFF_LOGGER), 4)
    script.call("an unknown broker", _describe(BROKER_LOGGER, "99"), 4)
    script.call("no number", _describe(BROKER_LOGGER, "x"), 4)
    script.call("no broker", _describe(BROKER_LOGGER, ""), 4)
    loggers = _Changes(script, BROKER_LOGGER, "1")
    for level in ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "TRACE", "debug", "OFF", "LOUD", "", None):
        loggers.alter(f"root to {level}, validated", ("root", SET, level), validate_only=True)
    loggers.alter("root to DEBUG", ("root", SET, "DEBUG"), validate_only=True)
    loggers.alter("root to ERROR", ("root", SET, "ERROR"))
    loggers.described("the root at ERROR", ("root", "ERROR"))
    loggers.alter("append", ("root", APPEND, "INFO"))
    loggers.alter("subtract", ("root", SUBTRACT, "INFO"))
    loggers.alter("delete the root", ("root", DELETE, None))
    loggers.alter("an unknown logger set", (OFF_LOGGER, SET, "INFO"))
    loggers.alter("an unknown logger deleted", (OFF_LOGGER, DELETE, None))
    loggers.alter("a logger twice", ("root", SET, "INFO"), ("root", SET, "DEBUG"))
    loggers.alter("no loggers")
    loggers.alter("an unknown broker", ("root", SET, "INFO"), name="99")
    loggers.alter("no number", ("root", SET, "INFO"), name="x")
    loggers.alter("no broker", ("root", SET, "INFO"), name="")
    loggers.alter("one good, one bad", ("root", SET, "FATAL"), (OFF_LOGGER, SET, "INFO"))
    loggers.alter("root to INFO", ("root", SET, "INFO"))
    loggers.described("the root at INFO", ("root", "INFO"))
    loggers.replace("replace", ("root", "INFO"))
    loggers.replace("replace on an unknown broker", ("root", "INFO"), name="99")
    script.call("listed", ListConfigResourcesRequest(resource_types=[BROKER_LOGGER]), 1)


BYTES, CONNECTIONS, RATIO = "message.max.bytes", "max.connections", "log.cleaner.min.cleanable.ratio"


def broker_configs(script: Script) -> None:
    """Configs of brokers, as those of one and as the default of all; nothing is left set."""
    script.topic("bc-topic")
    script.topic("bc-own", max_message_bytes="77777")
    one, everyone = _Changes(script, BROKER, "1"), _Changes(script, BROKER, "")
    everyone.alter("set for all", (BYTES, SET, "2000000"), (RATIO, SET, "0.25"))
    everyone.described("what is set for all", (BYTES, "2000000"), (RATIO, "0.25"), synonyms=True)
    one.described("one follows", (BYTES, "2000000"), (RATIO, "0.25"), synonyms=True)
    one.alter("set for one", (BYTES, SET, "3000000"), (CONNECTIONS, SET, "500"))
    one.described("what is set for one", (BYTES, "3000000"), (CONNECTIONS, "500"), (RATIO, "0.25"), synonyms=True)
    everyone.described("all have their own", (BYTES, "2000000"))
    for topic in ("bc-topic", "bc-own"):
        request = _describe(TOPIC, topic, "max.message.bytes", "min.cleanable.dirty.ratio", synonyms=True)
        script.call(f"configs of {topic}", request, 1, 4)
    one.alter("validate only", (BYTES, SET, "4000000"), validate_only=True)
    one.alter("append", ("log.cleanup.policy", APPEND, "compact"))
    one.described("what is appended", ("log.cleanup.policy", "delete,compact"), synonyms=True)
    one.alter("subtract", ("log.cleanup.policy", SUBTRACT, "delete"))
    one.described("what is left", ("log.cleanup.policy", "compact"), synonyms=True)
    for changes in (one, everyone):
        who = "one" if changes is one else "all"
        changes.alter(f"{who}: of the start", ("num.partitions", SET, "3"))
        changes.alter(f"{who}: two of the start", ("num.partitions", SET, "3"), ("broker.id", SET, "3"))
        changes.alter(f"{who}: an alias", ("log.retention.hours", SET, "3"))
        changes.alter(f"{who}: unknown deleted", ("no.such.config", DELETE, None))
        changes.alter(f"{who}: of the start deleted", ("num.partitions", DELETE, None))
        changes.alter(f"{who}: nonsense", ("log.retention.ms", SET, "abc"))
        changes.alter(f"{who}: not a choice", ("log.cleanup.policy", SET, "nonsense"))
        changes.alter(f"{who}: too high", (RATIO, SET, "2"))
        changes.alter(f"{who}: too low", ("log.cleaner.max.compaction.lag.ms", SET, "0"))
        changes.alter(f"{who}: null", ("log.retention.ms", SET, None))
        changes.alter(f"{who}: append to a number", ("log.retention.ms", APPEND, "7"))
        changes.alter(f"{who}: subtract from a number", ("log.retention.ms", SUBTRACT, "7"))
        changes.alter(f"{who}: an unknown operation", ("log.retention.ms", 9, "7"))
        changes.alter(f"{who}: twice", (BYTES, SET, "1"), (BYTES, SET, "2"))
        changes.alter(f"{who}: good and bad", (BYTES, SET, "5000000"), ("num.partitions", SET, "3"))
        changes.alter(f"{who}: creation of topics", ("auto.create.topics.enable", SET, "true"), validate_only=True)
        changes.alter(f"{who}: an unknown one", ("no.such.config", SET, "1"), validate_only=True)
        changes.alter(f"{who}: nothing kept", ("log.retention.ms", SET, "-7"), validate_only=True)
    one.replace("replace", (BYTES, "3500000"))
    one.described("what is replaced", (BYTES, "3500000"), ("log.cleanup.policy", "delete"), synonyms=True)
    one.replace("replace by one of the start", ("num.partitions", "5"))
    one.replace("replace by nonsense", (BYTES, "x"))
    one.replace("replace by null", (BYTES, None))
    one.replace("replace by nothing")
    one.described("nothing of one", (BYTES, "2000000"), synonyms=True)
    everyone.alter("delete", (BYTES, DELETE, None), (RATIO, DELETE, None))
    one.described("nothing of all", (BYTES, "1048588"), (RATIO, "0.5"), synonyms=True)
    script.call("of all brokers", _describe(BROKER, "", BYTES, RATIO, synonyms=True), 1, 4)


SCRIPTS = (group_configs, streams_group_configs, client_metrics_configs, logger_configs, broker_configs)
