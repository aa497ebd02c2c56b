"""Planted bugs of what several nodes know of each other."""

from collections.abc import Sequence

from tests.simulation.plan import Plan, with_going_back
from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import DEAD, FENCED, LOST, REPLICA, SEQUENCE, UNDECIDED, UNREADABLE, VIEW, having

REPLICAS = "anabranch.broker.kafka.topics.replicas"


def moving_and_going_back(plan: Plan) -> Plan:
    """Return the plan with several nodes whose partitions move, and a catalog that goes back."""
    return having("move", nodes=3, idempotent=2)(with_going_back(plan))


CLUSTER: Sequence[Planted] = (
    Planted(
        "marks-not-compared",
        "a start does not compare the catalog with what uploads have left in the store",
        [Edit("anabranch.s3stream.maintain.manifest_store", "check_has(marks)", "check_has(type(marks)())")],
        found_by=f"goes on with a catalog that has gone back|{LOST}",
        seeds=5,
        adapt=with_going_back,
    ),
    Planted(
        "last-owner-ignored",
        "a rebuild takes the owners that the newest manifest names",
        [
            Edit(
                "anabranch.s3stream.maintain.last_owners",
                "if known is None or known.epoch >= found.epoch",
                "if known is not None or known.epoch >= found.epoch",
            )
        ],
        found_by=LOST,
        seeds=20,
        adapt=moving_and_going_back,
    ),
    Planted(
        "owner-not-marked",
        "the target of a move serves a partition when only the catalog knows that it has it",
        [
            Edit(
                "anabranch.broker.cluster.handover.target",
                "        await self._storage.owner_marks.put(each.info for each in answers"
                " if isinstance(each, OpenStream))\n",
                "",
            )
        ],
        found_by=LOST,
        seeds=20,
        adapt=moving_and_going_back,
    ),
    Planted(
        "change-dropped",
        "a node misses an opened partition if nothing else has changed since",
        [Edit("anabranch.s3stream.catalog.changes", "streams.c.changed > seen)", "streams.c.changed > seen + 1)")],
        found_by=VIEW,
        seeds=20,
        adapt=having(nodes=2),
    ),
    Planted(
        "deletion-dropped",
        "a node misses the deletion of a topic if nothing else has changed since",
        [
            Edit(
                "anabranch.s3stream.catalog.changes",
                "last[ChangeKind.DELETION] > seen",
                "last[ChangeKind.DELETION] > seen + 1",
            )
        ],
        found_by=VIEW,
        seeds=50,
        adapt=having(nodes=2, churns=2),
    ),
    Planted(
        "stream-taken",
        "a node opens partitions that another node leads and has open",
        [
            Edit(
                "anabranch.broker.kafka.topics.manager",
                "return {partition.leader, partition.owner} <= {self._node_id, -1}",
                "return True",
            ),
            Edit(
                "anabranch.s3stream.catalog.topics",
                ", streams.c.leader.in_((node_id, NOBODY)), or_(nobodys, own))",
                ")",
            ),
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
                "anabranch.broker.node.peers.liveness",
                "            elif pause_s >= DEAD_AFTER_S / 2:\n"
                "                before.since_s = now_s + (RECONNECTION_S if pause_s >= DEAD_AFTER_S else 0.0)\n",
                "",
            )
        ],
        found_by=DEAD,
        seeds=50,
        adapt=having("catalog_away", nodes=3, seconds=60.0),
    ),
    Planted(
        "taken-before-recovery",
        "a new leader opens partitions whose newest records are in the log of a dead node",
        [
            Edit(
                "anabranch.broker.kafka.topics.manager",
                "return {partition.leader, partition.owner} <= {self._node_id, -1}",
                "return partition.leader in {self._node_id, -1}",
            ),
            Edit("anabranch.s3stream.catalog.topics", ", or_(nobodys, own))", ")"),
        ],
        found_by=f"{LOST}|{FENCED}|{UNREADABLE}",
        seeds=20,
        adapt=having("kill", nodes=3, idempotent=2, seconds=30.0),
    ),
    Planted(
        "released-too-early",
        "a recovery releases partitions before their records are in objects",
        [
            Edit(
                "anabranch.broker.cluster.membership.log_recovery",
                "                if left:\n                    await self._release(wal, node, left)",
                "                if left:\n                    await self._release(wal, node, set())",
            )
        ],
        found_by=f"{LOST}|{FENCED}|{UNREADABLE}",
        seeds=20,
        adapt=having("kill", nodes=3, idempotent=2, seconds=30.0),
    ),
    Planted(
        "recovered-without-state",
        "a recovery commits records with the partition's state from before them",
        [
            Edit(
                "anabranch.broker.cluster.membership.log_recovery",
                "self.work, self.now_ms, state)",
                "self.work, self.now_ms, state)\n        stream.snapshot_source = lambda: stream.snapshot",
            )
        ],
        found_by=f"{SEQUENCE}|{LOST}|{UNDECIDED}",
        seeds=20,
        adapt=having("kill", nodes=3, idempotent=2, seconds=30.0),
    ),
    Planted(
        "replica-unstable",
        "a replica serves READ_COMMITTED readers past the last stable offset",
        [
            Edit(
                REPLICAS,
                "max(transactions.last_stable_offset(reading.end_offset), reading.start_offset)",
                "reading.end_offset",
            )
        ],
        found_by=UNDECIDED,
        seeds=30,
        adapt=having(nodes=2, transactional=3, readers=2),
    ),
    Planted(
        "replica-fenced",
        "a node that is cut off or was fenced goes on to serve what it has once read of other nodes' partitions",
        [
            Edit(
                REPLICAS,
                "None if found is None or now_s - found.asked_s > VALID_S else found",
                "found",
            )
        ],
        found_by=REPLICA,
        seeds=30,
        adapt=having("cut", "move", nodes=2, readers=3, seconds=60.0),
    ),
    Planted(
        "replica-truncated",
        "a replica goes on with the start and the end of its first reading",
        [
            Edit(
                REPLICAS,
                "for stream_id, reading in found.items():\n",
                "for stream_id, reading in "
                "{**found, **{each: held.reading for each, held in self._partitions.items()}}.items():\n",
            )
        ],
        found_by=REPLICA,
        seeds=30,
        adapt=having(nodes=2, deleters=3, readers=2),
    ),
)
