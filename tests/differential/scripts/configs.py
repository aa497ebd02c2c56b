"""Describing and changing configs."""

from anabranch.protocol.messages import alter_configs as whole
from anabranch.protocol.messages import incremental_alter_configs as incremental
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.differential.script import Script

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _describe(
    name: str, *keys: str, kind: int = TOPIC, synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms, include_documentation=documentation)


def describe_configs(script: Script) -> None:
    script.topic("dc-a", retention_ms="5000", cleanup_policy="compact")
    for version in range(1, 5):
        script.call("a topic", _describe("dc-a"), version)
    keys = ("retention.ms", "cleanup.policy", "no.such.config", "min.cleanable.dirty.ratio")
    script.call("some keys", _describe("dc-a", *keys), 1, 4)
    script.call(
        "no keys",
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name="dc-a", configuration_keys=[])]
        ),
        1,
        4,
    )
    script.call("with synonyms", _describe("dc-a", *keys, synonyms=True), 1, 4)
    script.call("unknown topic", _describe("dc-x"), 1, 4)
    script.call("invalid topic", _describe("dc/x"), 4)
    script.call("topic without name", _describe(""), 4)
    script.call("unknown type", _describe("dc-a", kind=77), 4)
    script.call("broker that is not a number", _describe("x", "broker.id", kind=BROKER), 4)
    script.call("unknown broker", _describe("99", "broker.id", kind=BROKER), 4)
    broker = ("message.max.bytes", "num.partitions", "auto.create.topics.enable", "offset.metadata.max.bytes")
    script.call("broker", _describe("1", *broker, kind=BROKER), 1, 4)
    script.call("unknown group", _describe("dc-group", kind=GROUP), 4)
    twice = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name="dc-a", configuration_keys=["retention.ms"])
    ] * 2
    script.call("a topic twice", DescribeConfigsRequest(resources=twice), 4)
    script.call("nothing", DescribeConfigsRequest(), 1, 4)


def alter_configs(script: Script) -> None:
    script.topic("ac-topic")

    def change(
        name: str,
        *configs: tuple[str, int, str | None],
        topic: str = "ac-topic",
        kind: int = TOPIC,
        validate_only: bool = False,
    ) -> None:
        changes = [
            incremental.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in configs
        ]
        resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=topic, configs=changes)
        request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        script.call(name, request, 0, 1)

    def described(name: str, *expected: tuple[str, str]) -> None:
        request = _describe("ac-topic", *[key for key, _ in expected])
        wanted = dict(expected)
        script.until(request, 4, lambda answer: {c.name: c.value for c in answer.results[0].configs} == wanted)
        script.call(name, request, 4)

    change("validate only", ("retention.ms", SET, "1000"), validate_only=True)
    change("set", ("retention.ms", SET, "1000"), ("cleanup.policy", SET, "delete"))
    described("what is set", ("retention.ms", "1000"), ("cleanup.policy", "delete"))
    change("append", ("cleanup.policy", APPEND, "compact"))
    described("what is appended", ("cleanup.policy", "delete,compact"))
    change("append again", ("cleanup.policy", APPEND, "compact"))
    change("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    described("what is left", ("cleanup.policy", "compact"))
    change("delete", ("retention.bytes", SET, "77"))
    described("before", ("retention.bytes", "77"))
    change("delete", ("retention.bytes", DELETE, None))
    described("after", ("retention.bytes", "-1"))
    change("delete what is not set", ("segment.bytes", DELETE, None))
    change("delete what is unknown", ("no.such.config", DELETE, None))
    change("set what is unknown", ("no.such.config", SET, "1"))
    change("set to null", ("retention.ms", SET, None))
    change("set to nonsense", ("retention.ms", SET, "abc"))
    change("set too low", ("retention.ms", SET, "-7"))
    change("append to a number", ("retention.ms", APPEND, "7"))
    change("append nonsense", ("cleanup.policy", APPEND, "nonsense"))
    change("an unknown operation", ("retention.ms", 9, "7"))
    change("a config twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    change("nothing")
    change("unknown topic", ("retention.ms", SET, "1"), topic="ac-x")
    change("invalid topic", ("retention.ms", SET, "1"), topic="ac/x")
    change("topic without name", ("retention.ms", SET, "1"), topic="")
    change("unknown type", ("retention.ms", SET, "1"), kind=77)
    for name, broker in (("a broker", "1"), ("all brokers", "")):
        size = ("message.max.bytes", SET, "2000000")
        change(f"the config of {name}", size, topic=broker, kind=BROKER, validate_only=True)
    for name, broker in (("another broker", "99"), ("no number", "x")):
        size = ("message.max.bytes", SET, "2000000")
        change(f"the config of {name}", size, topic=broker, kind=BROKER, validate_only=True)
    for name, broker in (("a broker", "1"), ("all brokers", ""), ("another broker", "99")):
        rate = ("leader.replication.throttled.rate", DELETE, None)
        change(f"a throttle of {name} deleted", rate, topic=broker, kind=BROKER)
    change("no configs of a broker", topic="1", kind=BROKER)
    change("an unknown config of a broker", ("no.such.config", SET, "1"), topic="1", kind=BROKER, validate_only=True)
    change("lags that contradict", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8"))
    twice = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="ac-topic", configs=())
    script.call("a topic twice", incremental.IncrementalAlterConfigsRequest(resources=[twice, twice]), 1)
    script.call("no resources", incremental.IncrementalAlterConfigsRequest(), 0, 1)


def replace_configs(script: Script) -> None:
    script.topic("rc-topic", retention_ms="5000", segment_bytes="2000000")

    def replace(
        name: str, *configs: tuple[str, str | None], topic: str = "rc-topic", validate_only: bool = False
    ) -> None:
        values = [whole.AlterableConfig(name=key, value=value) for key, value in configs]
        resource = whole.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=values)
        request = whole.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
        script.call(name, request, 0, 1, 2)

    replace("validate only", ("retention.ms", "1"), validate_only=True)
    replace("nonsense", ("retention.ms", "x"))
    replace("unknown", ("no.such.config", "x"))
    replace("null", ("retention.ms", None))
    replace("a config twice", ("retention.ms", "1"), ("retention.ms", "2"))
    replace("unknown topic", ("retention.ms", "1"), topic="rc-x")
    replace("all", ("retention.ms", "2"))
    request = _describe("rc-topic", "retention.ms", "segment.bytes")
    wanted = {"retention.ms": "2", "segment.bytes": "1073741824"}
    script.until(request, 4, lambda answer: {c.name: c.value for c in answer.results[0].configs} == wanted)
    script.call("described", request, 4)


def list_config_resources(script: Script) -> None:
    script.call("metrics subscriptions", ListConfigResourcesRequest(), 0)
    for kind in (BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP):
        script.call(f"of type {kind}", ListConfigResourcesRequest(resource_types=[kind]), 1)
    script.call("of an unknown type", ListConfigResourcesRequest(resource_types=[77]), 1)


SCRIPTS = (describe_configs, alter_configs, replace_configs, list_config_resources)
