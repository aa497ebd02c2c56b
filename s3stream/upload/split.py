"""Decides which objects an upload block becomes. Pure: sizes in, plan out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.s3stream.model import ObjectKind


class RunSize(NamedTuple):
    """Size and destination of one stream's run in an upload block."""

    stream_id: int
    size_bytes: int
    store: str
    """Object store that the stream's data goes to."""
    uploads_alone: bool = False
    """True if the run becomes a stream object at any size."""


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """One object of an upload, with its streams in the order they are written."""

    kind: ObjectKind
    store: str
    stream_ids: Sequence[int]


def plan_split(runs: Iterable[RunSize], split_bytes: int) -> list[ObjectPlan]:
    """Plan a stream object for each run that has at least `split_bytes` or uploads alone.

    The other runs of each store become one stream set object, sorted by stream.
    """
    alone: list[ObjectPlan] = []
    together: dict[str, list[int]] = {}
    for run in sorted(runs):
        if run.uploads_alone or run.size_bytes >= split_bytes:
            alone.append(ObjectPlan(ObjectKind.SO, run.store, (run.stream_id,)))
        else:
            together.setdefault(run.store, []).append(run.stream_id)
    return [*alone, *(ObjectPlan(ObjectKind.SSO, store, ids) for store, ids in sorted(together.items()))]
