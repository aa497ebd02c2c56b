"""The plan of a run: what the seed chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation.faults import CLUSTER_FAULTS, FAULTS, NEWER_FAULTS, PROCESS_FAULTS, TABLE_FAULTS

COUNTS = (
    "plain",
    "transactional",
    "committers",
    "deleters",
    "readers",
    "copiers",
    "churns",
    "classic_members",
    "consumer_members",
    "keyed",
    "expiring",
    "idempotent",
    "restless",
    "share_members",
    "streams_members",
    "tables",
    "table_topics",
)
"""Fields of a plan that count actors."""

OBJECT_LOG_SHARE = 0.25
RIVAL_SHARE = 0.1
GOES_BACK_SHARE = 0.1
PROCESSES_SHARE = 0.3


@dataclass(frozen=True)
class Plan:
    """Actors and faults of a run, and its length in virtual seconds."""

    seed: int
    seconds: float
    faults: Sequence[str]
    partitions: int
    plain: int
    idempotent: int
    transactional: int
    committers: int
    deleters: int
    readers: int
    copiers: int
    churns: int
    classic_members: int
    consumer_members: int
    keyed: int
    expiring: int
    delete_delay_ms: int
    first_offset: int
    """Offset at which new partitions begin: most runs cross a boundary of 31 or 32 bits."""
    window_bytes: int
    """First bound of the log's window: a small one has to grow."""
    settles: bool
    """Wait at the end until everything that is not needed is deleted, and check that it is."""
    nodes: int
    """Nodes of the cluster."""
    restless: int
    object_log: bool
    """Keep the nodes' logs in the object store, not on their disks."""
    rival: bool
    """Another cluster of the same name begins in the store at the same moment."""
    tables: int = 1
    """0: no topic of the other actors has a table."""
    table_topics: int = 0
    """Topics that live as tables: made, grown, altered, deleted and made again."""
    table_interval_ms: int = 1_000
    """Longest time that a record waits for its snapshot."""
    snapshot_retention_ms: int = 10_000
    share_members: int = 0
    """Members of a share group."""
    streams_members: int = 0
    """Members of a streams group."""
    goes_back: bool = False
    """Put the catalog back to an earlier state at the end of the faults, and rebuild it."""
    processes: bool = False
    """The nodes are processes of one machine: a parent starts them, and tells each which other one was killed."""

    def lines(self) -> list[str]:
        return [f"{name} = {value}" for name, value in vars(self).items()]


def plan_of(seed: int, nodes: int | None = None) -> Plan:
    """Choose a plan by the seed; with `nodes`, for so many nodes."""
    random = Random(f"plan/{seed}")
    plan = Plan(
        seed=seed,
        seconds=random.choice((10.0, 15.0, 30.0, 60.0)),
        faults=[kind for kind in FAULTS if random.random() < 0.35],
        partitions=random.choice((1, 2, 4)),
        plain=random.randint(0, 1),
        idempotent=random.randint(1, 2),
        transactional=random.randint(0, 2),
        committers=random.randint(0, 2),
        deleters=random.choice((0, 0, 1)),
        readers=random.randint(0, 2),
        copiers=random.choice((0, 0, 1)),
        churns=random.choice((0, 0, 1)),
        classic_members=random.choice((0, 0, 2, 3)),
        consumer_members=random.choice((0, 0, 2, 3)),
        keyed=random.choice((0, 0, 1)),
        expiring=random.choice((0, 0, 1)),
        delete_delay_ms=random.choice((20_000, 20_000, 200_000)),
        first_offset=random.choice((0, 2**31 - 30, 2**32 - 30, 2**40)),
        window_bytes=random.choice((4 << 10, 32 << 10, 4 << 20)),
        settles=random.random() < 0.2,
        nodes=random.choice((1, 1, 2, 3)),
        restless=Random(f"restless/{seed}").randint(0, 1),
        object_log=False,
        rival=False,
    )
    plan = replace(plan, share_members=Random(f"share/{seed}").choice((0, 0, 0, 2, 3)))
    plan = replace(plan, streams_members=Random(f"streams/{seed}").choice((0, 0, 0, 2, 3)))
    faults = [kind for kind in CLUSTER_FAULTS if random.random() < 0.5]
    plan = replace(plan, object_log=random.random() < OBJECT_LOG_SHARE)
    plan = replace(plan, faults=[*plan.faults, *(kind for kind in NEWER_FAULTS if random.random() < 0.35)])
    plan = replace(plan, rival=random.random() < RIVAL_SHARE)
    tables = Random(f"plan/tables/{seed}")
    plan = replace(
        plan,
        table_interval_ms=tables.choice((1_000, 1_000, 3_000)),
        snapshot_retention_ms=tables.choice((1_000, 10_000, 60_000)),
        faults=[*plan.faults, *(kind for kind in TABLE_FAULTS if tables.random() < 0.5)],
        table_topics=tables.choice((0, 1, 1)),
    )
    if nodes is not None:
        plan = replace(plan, nodes=nodes)
    plan = plan if plan.nodes == 1 else replace(plan, faults=[*plan.faults, *faults])
    processes = Random(f"plan/processes/{seed}")
    if plan.nodes > 1 and processes.random() < PROCESSES_SHARE:
        plan = with_processes(plan)
    return with_going_back(plan) if Random(f"plan/goes back/{seed}").random() < GOES_BACK_SHARE else plan


def with_going_back(plan: Plan) -> Plan:
    """Return the plan with a catalog that goes back.

    A rebuild brings back what was removed after the last manifest, and takes clocks for right. It is a command for logs
    on devices.
    """
    faults = [kind for kind in plan.faults if kind not in ("clock", "store_rot", "log_rot", "twin")]
    return replace(
        plan,
        goes_back=True,
        faults=faults,
        deleters=0,
        churns=0,
        table_topics=0,
        keyed=0,
        expiring=0,
        settles=False,
        object_log=False,
        rival=False,
    )


def with_processes(plan: Plan) -> Plan:
    """Return the plan with nodes that are processes of one machine: no second machine has their disks."""
    return replace(plan, processes=True, faults=[*(kind for kind in plan.faults if kind != "twin"), *PROCESS_FAULTS])


def with_nodes(plan: Plan, nodes: int) -> Plan:
    """Return the plan for so many nodes."""
    faults = [kind for kind in plan.faults if nodes > 1 or kind not in {*CLUSTER_FAULTS, *PROCESS_FAULTS}]
    return replace(plan, nodes=nodes, faults=faults, processes=plan.processes and nodes > 1)


def smaller(plan: Plan) -> list[Plan]:
    """Plans that have less: to find the smallest one that still fails."""
    found = [replace(plan, faults=[each for each in plan.faults if each != kind]) for kind in plan.faults]
    for name in COUNTS:
        if getattr(plan, name) > 0:
            without: dict[str, Any] = {name: 0}
            found.append(replace(plan, **without))
    if plan.nodes > 1:
        found += [with_nodes(plan, 1), with_nodes(plan, plan.nodes - 1)]
    if plan.goes_back:
        found.append(replace(plan, goes_back=False))
    if plan.processes:
        faults = [kind for kind in plan.faults if kind not in PROCESS_FAULTS]
        found.append(replace(plan, processes=False, faults=faults))
    if plan.object_log:
        found.append(replace(plan, object_log=False))
    if plan.rival:
        found.append(replace(plan, rival=False))
    if plan.partitions > 1:
        found.append(replace(plan, partitions=1))
    if plan.seconds > 10:
        found.append(replace(plan, seconds=plan.seconds / 2))
    return found
