"""Results and plans of a run, as values and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.compaction.cleaning.plan import CleanPlan
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.execution import memory_for_blocks
from anabranch.compaction.joins.plan import JoinGroup
from anabranch.compaction.sets.run import SetPlan
from anabranch.s3stream.model import ObjectKind


@dataclass(frozen=True, slots=True)
class CompactionSummary:
    """Result of a run."""

    sso_before: int
    sso_after: int
    so_before: int
    so_after: int
    commits: int
    iterations: int
    bytes_read: int
    bytes_written: int
    bytes_copied: int
    streams_cleaned: int
    """Streams cleaned by the run itself. The other counts include work outside the run."""
    records_removed: int
    calls: Mapping[str, int]
    """Calls to all object stores during the run, by kind. They include other work of the node."""
    write_amplification: float
    """Bytes written per byte read or copied: 1 when everything was written once."""
    seconds: float
    left_alone: Sequence[int]
    """Objects that could not be read."""
    errors: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the admin port and `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Plan of a run, for display."""

    sets: Sequence[SetPlan]
    groups: Sequence[JoinGroup]
    cleanings: Sequence[CleanPlan] = ()
    """Cleanings by key of data that is in stream objects now."""

    def as_json(self, context: CompactionContext) -> dict[str, Any]:
        """Return the plan for the admin port and `--plan`."""
        return {
            "stream_sets": [_describe_sets(context, plan) for plan in self.sets],
            "stream_objects": [
                {
                    "stream_id": group.stream_id,
                    "objects": [each.object.object_id for each in group.objects],
                    "start_offset": group.objects[0].range.start_offset,
                    "end_offset": group.objects[-1].range.end_offset,
                    "size_bytes": sum(each.object.size_bytes for each in group.objects),
                }
                for group in self.groups
            ],
            "cleanings": [
                {
                    "stream_id": plan.stream_id,
                    "objects": [each.object.object_id for each in plan.objects],
                    "start_offset": plan.objects[0].range.start_offset,
                    "dirty_offset": plan.dirty_start,
                    "end_offset": plan.objects[-1].range.end_offset,
                    "size_bytes": sum(each.object.size_bytes for each in plan.objects),
                }
                for plan in self.cleanings
            ],
        }


def _describe_sets(context: CompactionContext, plan: SetPlan) -> dict[str, Any]:
    iterations = plan.iterations(context)
    writes = [write for iteration in iterations for write in iteration.writes]
    return {
        "store": plan.store,
        "inputs": [info.object_id for info in plan.inputs],
        "live_bytes": plan.survey.live_bytes,
        "dead_bytes": plan.survey.dead_bytes,
        "blocks": plan.survey.live_blocks,
        "streams": len(plan.survey.blocks),
        "memory_bytes": memory_for_blocks(context.settings),
        "stream_objects": sum(write.kind is ObjectKind.SO for write in writes),
        "stream_set_objects": int(any(write.kind is ObjectKind.SSO for write in writes)),
        "iterations": [
            {"size_bytes": each.size_bytes, "reads": len(each.reads), "outputs": len(each.writes)}
            for each in iterations
        ],
    }
