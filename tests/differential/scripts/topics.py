"""Creating, growing and deleting topics, valid and invalid."""

from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.differential.script import Script


def _topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    given = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=given)


def _assigned(name: str, *replicas: tuple[int, list[int]], partitions: int = -1, factor: int = -1) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in replicas]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, assignments=assignments)


def _create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)


def create_topics(script: Script) -> None:
    for version in range(2, 8):
        script.call("create", _create(_topic(f"ct-{version}", 2)), version)
        script.call("create again", _create(_topic(f"ct-{version}", 2)), version)
    script.call("validate only", _create(_topic("ct-never", 2), validate_only=True), 2, 5, 7)
    script.call("validate only, exists", _create(_topic("ct-2", 2), validate_only=True), 5)
    script.call("defaults", _create(_topic("ct-defaults", -1, -1)), 4)
    script.call("defaults described", _create(_topic("ct-defaults-5", -1, -1)), 5)
    script.call("no topics", _create(), 5)
    script.call("a topic twice", _create(_topic("ct-twice"), _topic("ct-twice"), _topic("ct-once")), 5)
    for partitions in (0, -1, -2):
        script.call(
            f"{partitions} partitions", _create(_topic(f"ct-p{partitions}", partitions), validate_only=True), 3, 7
        )
    for factor in (0, -1, -2, 2, 3):
        script.call(f"factor {factor}", _create(_topic(f"ct-f{factor}", 1, factor), validate_only=True), 3, 7)
    for what, name in (
        ("a slash", "ct/x"),
        ("a space", "ct x"),
        ("one dot", "."),
        ("two dots", ".."),
        ("nothing", ""),
        ("250 characters", "c" * 250),
        ("a letter out of ASCII", "ct-\u00e9"),
        ("a colliding dot", "ct.2"),
        ("a colliding underscore", "ct_2"),
    ):
        script.call(f"name with {what}", _create(_topic(name)), 3, 7)
    script.call("dots and underscores", _create(_topic("ctx.a_b")), 7)
    script.call("that collide", _create(_topic("ctx_a.b")), 7)
    script.call("the name of Kafka's own log", _create(_topic("__cluster_metadata")), 7)


def create_topics_with_configs(script: Script) -> None:
    script.call(
        "with configs",
        _create(_topic("cc-a", 1, 1, retention_ms="1000", cleanup_policy="compact,delete", max_message_bytes="2000")),
        7,
    )
    for name, value in (
        ("retention.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", "abc"),
        ("retention.ms", ""),
        ("retention.ms", " 7 "),
        ("retention.ms", None),
        ("retention.ms", "9223372036854775808"),
        ("cleanup.policy", "compress"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete, compact"),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "DELETE"),
        ("compression.type", "brotli"),
        ("compression.type", "zstd"),
        ("compression.type", "ZSTD"),
        ("message.timestamp.type", "Create"),
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "2147483648"),
        ("max.message.bytes", "1e3"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "5"),
        ("segment.bytes", "13"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("min.cleanable.dirty.ratio", "x"),
        ("preallocate", "maybe"),
        ("preallocate", "TRUE"),
        ("unclean.leader.election.enable", "1"),
        ("compression.gzip.level", "10"),
        ("compression.gzip.level", "-1"),
        ("compression.gzip.level", "0"),
        ("compression.lz4.level", "99"),
        ("compression.zstd.level", "30"),
        ("message.format.version", "2.8"),
        ("remote.storage.enable", "true"),
        ("local.retention.ms", "-3"),
        ("local.retention.bytes", "-2"),
        ("flush.messages", "0"),
        ("index.interval.bytes", "-1"),
        ("leader.replication.throttled.replicas", "nonsense"),
        ("leader.replication.throttled.replicas", "0:1"),
        ("leader.replication.throttled.replicas", "*"),
        ("min.compaction.lag.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("no.such.config", "1"),
        ("", "1"),
        ("num.partitions", "3"),
    ):
        wanted = CreatableTopic(
            name="cc-check",
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=name, value=value)],
        )
        script.call(f"{name}={value}", _create(wanted, validate_only=True), 5)
    both = _topic("cc-lags", 1, 1, min_compaction_lag_ms="200", max_compaction_lag_ms="100")
    script.call("smallest lag above the largest", _create(both, validate_only=True), 5)
    local = _topic("cc-local", 1, 1, local_retention_ms="200", retention_ms="100")
    script.call("local retention above the retention", _create(local, validate_only=True), 5)
    twice = [CreatableTopicConfig(name="retention.ms", value=value) for value in ("1", "2")]
    doubled = CreatableTopic(name="cc-doubled", num_partitions=1, replication_factor=1, configs=twice)
    script.call("a config twice", _create(doubled, validate_only=True), 5)


def create_topics_with_assignments(script: Script) -> None:
    script.call("assigned", _create(_assigned("ca-a", (0, [1]), (1, [1]))), 3, 7)
    for what, topic in {
        "a count of partitions too": _assigned("ca-x", (0, [1]), partitions=1),
        "a factor too": _assigned("ca-x", (0, [1]), factor=1),
        "a gap": _assigned("ca-x", (0, [1]), (2, [1])),
        "not from zero": _assigned("ca-x", (1, [1])),
        "a partition twice": _assigned("ca-x", (0, [1]), (0, [1])),
        "no replicas": _assigned("ca-x", (0, [])),
        "an unknown broker": _assigned("ca-x", (0, [99])),
        "a broker twice": _assigned("ca-x", (0, [1, 1])),
        "one replica here, two there": _assigned("ca-x", (0, [1]), (1, [1, 99])),
    }.items():
        script.call(f"assigned with {what}", _create(topic, validate_only=True), 3, 7)


def create_partitions(script: Script) -> None:
    script.topic("cp-a", 2)

    def grow(
        name: str, count: int, assignments: list[list[int]] | None = None, *, validate_only: bool = True
    ) -> CreatePartitionsRequest:
        given = None if assignments is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
        topic = CreatePartitionsTopic(name=name, count=count, assignments=given)
        return CreatePartitionsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only)

    script.call("validate only", grow("cp-a", 3), 0, 1, 2, 3)
    for count in (2, 1, 0, -1):
        script.call(f"to {count}", grow("cp-a", count), 0, 3)
    script.call("unknown topic", grow("cp-x", 3), 0, 3)
    script.call("invalid name", grow("cp/x", 3), 0, 3)
    script.call("assigned", grow("cp-a", 3, [[1]]), 0, 3)
    script.call("too few assignments", grow("cp-a", 4, [[1]]), 0, 3)
    script.call("too many assignments", grow("cp-a", 3, [[1], [1]]), 0, 3)
    script.call("no assignments", grow("cp-a", 3, []), 3)
    script.call("to an unknown broker", grow("cp-a", 3, [[99]]), 0, 3)
    script.call("to a broker twice", grow("cp-a", 3, [[1, 1]]), 3)
    script.call("to no broker", grow("cp-a", 3, [[]]), 3)
    for version in range(4):
        script.call("grown", grow("cp-a", 3 + version, validate_only=False), version)
    script.serving("cp-a", 6)
    twice = [CreatePartitionsTopic(name="cp-a", count=count, assignments=None) for count in (7, 8)]
    script.call("a topic twice", CreatePartitionsRequest(topics=twice, timeout_ms=30_000), 3)
    script.call("no topics", CreatePartitionsRequest(topics=(), timeout_ms=30_000), 0, 3)


def delete_topics(script: Script) -> None:
    ids = {}
    for version in range(1, 7):
        ids[version] = script.topic(f"dt-{version}")
    for version in range(1, 6):
        request = DeleteTopicsRequest(topic_names=[f"dt-{version}", "dt-missing"], timeout_ms=30_000)
        script.call("by name", request, version)
        script.gone(f"dt-{version}")
        script.call("again", request, version)
    script.call("twice", DeleteTopicsRequest(topic_names=["dt-6", "dt-6"], timeout_ms=30_000), 5)
    script.call("invalid name", DeleteTopicsRequest(topic_names=["dt/x", ""], timeout_ms=30_000), 1, 5)
    script.call("nothing", DeleteTopicsRequest(timeout_ms=30_000), 1, 5, 6)

    def states(*wanted: DeleteTopicState) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topics=wanted, timeout_ms=30_000)

    script.call("by unknown id", states(DeleteTopicState(topic_id=b"\1" * 16)), 6)
    script.call("by name and id", states(DeleteTopicState(name="dt-6", topic_id=ids[6])), 6)
    script.call("by neither", states(DeleteTopicState()), 6)
    both = (DeleteTopicState(name="dt-6"), DeleteTopicState(topic_id=ids[6]))
    script.call("by name and by id", states(*both), 6)
    script.topic("dt-7")
    script.topic("dt-8")
    script.call("an id twice", states(*[DeleteTopicState(topic_id=script.topic("dt-9"))] * 2), 6)
    script.call("in version 6", states(DeleteTopicState(name="dt-7")), 6)
    script.gone("dt-7")
    script.topic("dt-7")
    script.call("the same name anew", states(DeleteTopicState(name="dt-7"), DeleteTopicState(name="dt-8")), 6)


SCRIPTS = (
    create_topics,
    create_topics_with_configs,
    create_topics_with_assignments,
    create_partitions,
    delete_topics,
)
