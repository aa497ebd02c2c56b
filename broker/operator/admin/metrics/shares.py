"""Metrics of share groups (KIP-932): share partitions that this node leads, dead letters, and states that it keeps.

A share partition is shown while members of the group read it. Its counter begins anew when it is loaded. The states of
share partitions are kept by share coordinators, which are other nodes than the leaders.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from prometheus_client import Metric

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.share.leader import ShareFigures
from anabranch.broker.operator.admin.metrics.definitions import SAMPLES_PER_PIECE, counter, definitions_in, gauge

SHARE_PARTITION: Final = ("group", "topic", "partition")
IN_FLIGHT = gauge(
    "anabranch_share_in_flight", "Records from the start offset on that were delivered.", *SHARE_PARTITION
)
ACQUIRED = gauge(
    "anabranch_share_acquired", "Records that members of the group have, without an acknowledgement.", *SHARE_PARTITION
)
ARCHIVING = gauge("anabranch_share_archiving", "Records that wait for their dead letters.", *SHARE_PARTITION)
LAG = gauge(
    "anabranch_share_lag", "Records up to the end whose delivery to the group is not complete.", *SHARE_PARTITION
)
DELIVERIES = counter(
    "anabranch_share_deliveries_total", "Records delivered; each delivery of a record counts.", *SHARE_PARTITION
)
DEAD_LETTERS = counter("anabranch_share_dead_letters_total", "Dead letters written by this node.", "group")
GIVEN_UP = counter(
    "anabranch_share_dead_letters_given_up_total",
    "Dead letters that could not be written, so that their records were archived without. The log names them.",
)
STATES = gauge("anabranch_share_states", "States of share partitions that this node keeps.")
STATE_SHARDS_LOADING = gauge(
    "anabranch_share_state_shards_loading", "Partitions of __share_group_state that are not loaded yet."
)
STATE_WRITES = counter(
    "anabranch_share_state_writes_total", "Records of states written: snapshot, update, deletion.", "record"
)
STATE_FAILURES = counter("anabranch_share_state_write_failures_total", "Records of states that were not written.")
STATE_PENDING = gauge("anabranch_share_state_writes_pending", "Records of states that are being written.")
DEFINITIONS = definitions_in(globals())


def collect(serving: Serving) -> Iterator[Metric]:
    """Yield the metrics of this area. A family without samples is only a place to wait."""
    most = serving.settings.admin.metrics_offsets_max
    rows: list[tuple[tuple[str, str, str], ShareFigures]] = []
    for led in islice(list(serving.share_partitions), most):
        if (figures := led.figures()) is not None:
            rows.append(((led.key.group_id, led.partition.topic, str(led.partition.index)), figures))
            if not len(rows) % SAMPLES_PER_PIECE:
                yield IN_FLIGHT.family(())
    yield from IN_FLIGHT.pieces((labels, figures.in_flight) for labels, figures in rows)
    yield from ACQUIRED.pieces((labels, figures.acquired) for labels, figures in rows)
    yield from ARCHIVING.pieces((labels, figures.archiving) for labels, figures in rows)
    yield from LAG.pieces((labels, figures.lag) for labels, figures in rows)
    yield from DELIVERIES.pieces((labels, figures.deliveries) for labels, figures in rows)
    dead_letters = serving.share_partitions.dead_letters
    yield from DEAD_LETTERS.pieces(
        ((group,), count) for group, count in islice(list(dead_letters.written.items()), most)
    )
    yield GIVEN_UP.single(dead_letters.given_up)
    states = serving.share_states
    yield STATES.single(states.state_count())
    yield STATE_SHARDS_LOADING.single(states.shards_loading)
    counts = states.counts
    written = {"snapshot": counts.snapshots, "update": counts.updates, "deletion": counts.deletions}
    yield STATE_WRITES.family([((record,), count) for record, count in written.items()])
    yield STATE_FAILURES.single(counts.failures)
    yield STATE_PENDING.single(counts.pending)
