"""Metrics of nodes, partitions and groups, under the names of Kafka's usual exporter where it has one.

Each node shows the partitions that it leads and the groups that it coordinates, so a sum over all nodes is the whole
cluster. The lag is shown where the group and the partition belong to this node. For the others, Prometheus subtracts
`kafka_consumergroup_current_offset` of one node from `kafka_topic_partition_current_offset` of another one: the
recorded series `anabranch:consumergroup_lag`.

Source of names: https://github.com/danielqsj/kafka_exporter.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric

from anabranch.addresses import host_port
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.operator.admin.metrics.definitions import counter, definitions_in, gauge

PARTITION: Final = ("topic", "partition")
BROKERS = gauge("kafka_brokers", "Living nodes of the cluster, as this node sees them.")
BROKER_INFO = gauge(
    "kafka_broker_info", "Always 1, for each living node, with its address for clients.", "id", "address"
)
NODES = gauge(
    "anabranch_cluster_nodes",
    "Registered nodes by state, as this node sees them: up, draining, failed (not cleanly stopped).",
    "state",
)
CATALOG_AGE = gauge(
    "anabranch_catalog_pulse_age_seconds", "Time since the catalog answered the last beat of this node."
)
TOPICS = gauge("anabranch_topics", "Topics of the cluster.")
PARTITIONS = gauge("anabranch_partitions", "Partitions of all topics of the cluster.")
LED = gauge("anabranch_partitions_led", "Partitions that this node leads.")
LEADERLESS = gauge("anabranch_partitions_leaderless", "Partitions of the cluster without a living leader.")
TOPIC_PARTITIONS = gauge(
    "kafka_topic_partitions", "Partitions of a topic, shown by the node that leads its first one.", "topic"
)
CURRENT_OFFSET = gauge("kafka_topic_partition_current_offset", "End offset (high watermark).", *PARTITION)
OLDEST_OFFSET = gauge("kafka_topic_partition_oldest_offset", "Log start offset.", *PARTITION)
LEADER = gauge("kafka_topic_partition_leader", "Id of the leader, which is this node.", *PARTITION)
APPENDED = counter(
    "anabranch_partition_appended_bytes_total", "Bytes appended since this node began to lead.", *PARTITION
)
GROUPS = gauge(
    "anabranch_groups",
    "Groups that this node coordinates, by type and state as `group list` shows them.",
    "type",
    "state",
)
SHARDS_LOADING = gauge("anabranch_group_shards_loading", "Partitions of __consumer_offsets that are not loaded yet.")
MEMBERS = gauge("kafka_consumergroup_members", "Members of a group.", "consumergroup")
OFFSET: Final = ("consumergroup", "topic", "partition")
GROUP_OFFSET = gauge("kafka_consumergroup_current_offset", "Committed offset of a group.", *OFFSET)
GROUP_LAG = gauge(
    "kafka_consumergroup_lag",
    "Records between the committed offset and the end, of partitions that the group's coordinator leads.",
    *OFFSET,
)
LEFT_OUT = gauge(
    "anabranch_metrics_left_out",
    "Partitions, groups and partitions of share groups that are not named here because of "
    "admin.metrics_partitions_max and metrics_offsets_max.",
    "what",
)

DEFINITIONS = definitions_in(globals())


WALKED_MAX: Final = 1_000
"""Partitions after which the walk over all pauses, at the end of a topic."""


class GroupRow(NamedTuple):
    """A group with its committed offsets."""

    group_id: str
    members: int
    offsets: Sequence[tuple[str, int, CommittedOffset]]


def collect(serving: Serving) -> Iterator[Metric]:
    """Yield the metrics of this area. Nodes and topics may change while the caller waits between two of them.

    A family without samples is only a place to wait, so that partitions are not all walked at once.
    """
    yield from _nodes(serving)
    topics = sorted(serving.topics, key=lambda topic: topic.info.internal)  # users' own come first, up to the limit
    led: list[Partition] = []
    leaders: Counter[int] = Counter()
    walked = 0
    for topic in topics:
        led += [each for each in topic.partitions if each is not None]
        leaders.update(info.leader for info in topic.info.partitions)
        walked += len(topic.partitions)
        if walked >= WALKED_MAX:
            walked = 0
            yield LEADERLESS.family(())
    yield LEADERLESS.single(
        sum(count for leader, count in leaders.items() if serving.members.get_leader(leader) is None)
    )
    yield LED.single(len(led))
    shown = led[: serving.settings.admin.metrics_partitions_max]
    yield from _partitions(serving, shown)
    group_count = serving.groups.group_count()
    kinds = Counter((entry.group.group_type, str(entry.group.state)) for entry in serving.groups.loaded_entries())
    yield GROUPS.family(sorted(kinds.items()))
    yield SHARDS_LOADING.single(serving.groups.shards_loading)
    groups = group_rows(serving)
    yield LEFT_OUT.family(
        [
            (("partitions",), len(led) - len(shown)),
            (("groups",), group_count - len(groups)),
            (("share_partitions",), max(0, len(serving.share_partitions) - serving.settings.admin.metrics_offsets_max)),
        ]
    )
    yield from _offsets(serving, groups)


def _nodes(serving: Serving) -> Iterator[Metric]:
    members = serving.members
    living = members.living()
    yield BROKERS.single(len(living))
    addresses = [(str(each.node_id), host_port(each.listeners[0].host, each.listeners[0].port)) for each in living]
    yield BROKER_INFO.family([(labels, 1) for labels in addresses])
    alive = {each.node_id for each in living}
    draining = len(alive & members.draining)
    failed = sum(each.lease_until_ms > 0 and each.node_id not in alive for each in serving.membership.nodes)
    states = {"up": len(alive) - draining, "draining": draining, "failed": failed}
    yield NODES.family([((state,), count) for state, count in states.items()])
    yield CATALOG_AGE.single(serving.membership.beat_age_s)
    yield TOPICS.single(len(serving.topics))
    yield PARTITIONS.single(serving.topics.partition_count)


def _partitions(serving: Serving, partitions: Sequence[Partition]) -> Iterator[Metric]:
    yield from TOPIC_PARTITIONS.pieces(
        ((each.topic,), len(topic.partitions))
        for each in partitions
        if each.index == 0 and (topic := serving.topics.get(each.topic)) is not None
    )
    yield from CURRENT_OFFSET.pieces((_labels(each), each.high_watermark) for each in partitions)
    yield from OLDEST_OFFSET.pieces((_labels(each), each.log_start_offset) for each in partitions)
    yield from LEADER.pieces((_labels(each), serving.node_id) for each in partitions)
    yield from APPENDED.pieces((_labels(each), each.appended_bytes) for each in partitions)


def _labels(partition: Partition) -> tuple[str, str]:
    return partition.topic, str(partition.index)


def group_rows(serving: Serving) -> Sequence[GroupRow]:
    """Return groups with their offsets, whole ones until the limit is reached."""
    found: list[GroupRow] = []
    left = serving.settings.admin.metrics_offsets_max
    for entry in serving.groups.loaded_entries():
        left -= 1 + sum(map(len, entry.offsets.topics.values()))
        if left < 0:
            break
        offsets = [(key.topic, key.partition, committed) for key, committed in entry.offsets.items()]
        found.append(GroupRow(entry.group_id, len(entry.group.members), offsets))
    return found


def _offsets(serving: Serving, groups: Sequence[GroupRow]) -> Iterator[Metric]:
    yield from MEMBERS.pieces(((group.group_id,), group.members) for group in groups)
    yield from GROUP_OFFSET.pieces(
        ((group.group_id, topic, str(index)), committed.offset)
        for group in groups
        for topic, index, committed in group.offsets
    )
    yield from GROUP_LAG.pieces(
        ((group.group_id, topic, str(index)), max(0, partition.high_watermark - committed.offset))
        for group in groups
        for topic, index, committed in group.offsets
        if (partition := led_partition(serving, topic, index)) is not None
    )


def led_partition(serving: Serving, topic: str, index: int) -> Partition | None:
    """Return a partition if this node leads it."""
    found = serving.topics.get(topic)
    return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None
