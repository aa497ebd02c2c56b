"""Compaction of the node that is asked: its state, its plan, and a run on request."""

from pydantic import RootModel

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api.endpoints import ROOT_CONFIG, Call, Endpoint, Model
from anabranch.compaction.report import CompactionSummary


class CompactionProgress(Model):
    """Progress of a run."""

    stage: str
    done_bytes: int
    total_bytes: int


class Compaction(Model):
    """Compaction."""

    running: bool
    progress: CompactionProgress | None
    commits: int
    objects_in: int
    objects_out: int


class CompactionWithLast(Compaction):
    """Compaction, with its last run."""

    last: CompactionSummary | None


class CompactionRun(RootModel[CompactionSummary]):
    """Result of a run."""

    model_config = ROOT_CONFIG


class Iteration(Model):
    """A part of the work on stream set objects that fits into memory."""

    size_bytes: int
    reads: int
    outputs: int


class SetsToCompact(Model):
    """Stream set objects of a store that become at most one, and stream objects."""

    store: str
    inputs: list[int]
    """Ids of the objects."""
    live_bytes: int
    dead_bytes: int
    """Data past retention."""
    blocks: int
    """Live blocks."""
    streams: int
    memory_bytes: int
    stream_objects: int
    stream_set_objects: int
    iterations: list[Iteration]


class ObjectsToJoin(Model):
    """Stream objects that become one."""

    stream_id: int
    objects: list[int]
    start_offset: int
    end_offset: int
    size_bytes: int


class StreamToClean(Model):
    """A stream of a compacted topic, to be cleaned by key."""

    stream_id: int
    objects: list[int]
    start_offset: int
    dirty_offset: int
    """Start of the records that were not cleaned yet."""
    end_offset: int
    size_bytes: int


class CompactionPlan(Model):
    """Work that a run would do."""

    stream_sets: list[SetsToCompact]
    stream_objects: list[ObjectsToJoin]
    cleanings: list[StreamToClean]


class CompactionEndpoints:
    """Endpoints of compaction."""

    def __init__(self, node: Node) -> None:
        self._node = node
        path, plan = "/compaction", "/compaction/plan"
        self.endpoints = [
            Endpoint("GET", path, "Compaction of this node.", self._state, CompactionWithLast),
            Endpoint("POST", path, "Compact all objects of this node.", self._run, CompactionRun, is_limited=False),
            Endpoint("GET", plan, "What a run would do.", self._plan, CompactionPlan, is_limited=False),
        ]

    async def _state(self, _: Call) -> CompactionWithLast:
        return compaction_with_last(self._node)

    async def _run(self, _: Call) -> CompactionRun:
        return CompactionRun(await self._node.upkeep.compaction.run_once())

    async def _plan(self, _: Call) -> CompactionPlan:
        plan = await self._node.upkeep.compaction.plan()
        return CompactionPlan.model_validate(plan.as_json(self._node.upkeep.compaction_context))


def compaction_state(node: Node) -> Compaction:
    """Describe the node's compaction."""
    progress, stats = node.upkeep.compaction.progress, node.upkeep.compaction.stats
    return Compaction(
        running=node.upkeep.compaction.is_running,
        progress=None if progress is None else CompactionProgress(**progress._asdict()),
        commits=stats.commits,
        objects_in=stats.objects_in,
        objects_out=stats.objects_out,
    )


def compaction_with_last(node: Node) -> CompactionWithLast:
    """Describe the node's compaction with its last run."""
    return CompactionWithLast(**dict(compaction_state(node)), last=node.upkeep.compaction.last)
