"""Metrics of replicas: what consumers read from them, and what leaders tell those that follow."""

from collections.abc import Iterator

from prometheus_client import Metric

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.metrics.definitions import counter, definitions_in, gauge

SENT = counter(
    "anabranch_replica_sent_bytes_total",
    "Bytes of records that consumers have read from this node as a replica, by source: objects, or tail (memory: the "
    "leader has told them).",
    "source",
)
RECEIVED = counter(
    "anabranch_replica_received_bytes_total", "Bytes of records that leaders have sent this node, which follows."
)
FOLLOWED = gauge("anabranch_replica_followed_partitions", "Partitions of other leaders that this node follows.")
LAG = gauge(
    "anabranch_replica_lag_seconds",
    "Longest time for which a followed partition has lacked records that its leader has: the last answers were full.",
)
LOST = counter(
    "anabranch_replica_tails_lost_total",
    "Followed partitions that this node has lost: the leader had the next records in objects only, or in a batch above "
    "900 kB. Consumers read them from the leader.",
)
READERS_SENT = counter(
    "anabranch_replica_readers_sent_total", "Times that this node, as the leader, has sent a consumer to a replica."
)
READERS_RETURNED = counter(
    "anabranch_replica_readers_returned_total",
    "Times that this node, as a replica, has sent a consumer back to the leader.",
)
FOLLOWERS_SENT = counter(
    "anabranch_follower_sent_bytes_total",
    "Bytes of records that this node, as the leader, has sent to replicas that follow.",
)

DEFINITIONS = definitions_in(globals())


def collect(serving: Serving) -> Iterator[Metric]:
    """Yield the metrics of this area."""
    replicas = serving.replicas
    yield SENT.family([(("objects",), replicas.object_bytes), (("tail",), replicas.tail_bytes)])
    yield RECEIVED.single(replicas.tails.received_bytes)
    yield FOLLOWED.single(len(replicas.tails))
    yield LAG.single(replicas.tails.lag_s)
    yield LOST.single(replicas.tails.lost)
    yield READERS_SENT.single(replicas.readers_sent)
    yield READERS_RETURNED.single(replicas.readers_returned)
    yield FOLLOWERS_SENT.single(replicas.followers.sent_bytes)
