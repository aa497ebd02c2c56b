"""Planted bugs of what several nodes know of each other."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import DEAD, FENCED, LOST, UNREADABLE, VIEW, having

CLUSTER: Sequence[Planted] = (
    Planted(
        "change-dropped",
        "a node misses an opened partition if nothing else has changed since",
        [Edit("s3stream.catalog.changes", "streams.c.changed > seen)", "streams.c.changed > seen + 1)")],
        found_by=VIEW,
        seeds=20,
        adapt=having(nodes=2),
    ),
    Planted(
        "deletion-dropped",
        "a node misses the deletion of a topic if nothing else has changed since",
        [Edit("s3stream.catalog.changes", "last[ChangeKind.DELETION] > seen", "last[ChangeKind.DELETION] > seen + 1")],
        found_by=VIEW,
        seeds=50,
        adapt=having(nodes=2, churns=2),
    ),
    Planted(
        "stream-taken",
        "a node opens partitions that another node leads and has open",
        [
            Edit(
                "broker.topics.manager",
                "return {partition.leader, partition.owner} <= {self._node_id, -1}",
                "return True",
            ),
            Edit("s3stream.catalog.topics", ", streams.c.leader.in_((node_id, NOBODY)), or_(nobodys, own))", ")"),
        ],
        found_by=f"{LOST}|{FENCED}|{UNREADABLE}",
        seeds=20,
        adapt=having(nodes=2, idempotent=2),
    ),
    Planted(
        "stale-observation",
        "a node takes others for dead after an outage in which it heard of nobody",
        [
            Edit(
                "broker.cluster.liveness",
                "            elif broken:\n                before.since_s = now_s\n",
                "",
            )
        ],
        found_by=DEAD,
        seeds=50,
        adapt=having("catalog_away", nodes=3, seconds=60.0),
    ),
)
