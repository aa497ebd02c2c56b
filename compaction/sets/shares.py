"""Divides the first level's plan into shares of about equal cost, for workers that execute them concurrently.

Pure. A share contains work for stream objects, or all work for the stream set object, since one writer writes an
object. Shares follow the order of streams: the blocks of neighbouring streams are adjacent in the inputs, so that a
worker reads each input in few calls.

The cost of a share is its size in bytes. Each block, and the call that writes a stream object, is added as the bytes
that could be moved in the meantime. A share costs about `memory_bytes` at most, so this setting decides how many there
are. But nearly every share reads from every input: where these calls would cost more than that, a share may cost as
much as they do, because more shares would multiply the calls and divide little.

Invariants: each live block is in exactly one share. The blocks of the stream set object are in stream order. A run is
cut only if it exceeds the memory, into parts of about equal size.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anabranch.compaction.blocks import BLOCK_COST_BYTES, LiveBlock
from anabranch.compaction.sets.plan import BlockRun, Iteration, IterationBuilder, Survey, contiguous_runs, is_own_object
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind


class _Part(NamedTuple):
    """Contiguous blocks that one share contains."""

    blocks: Sequence[LiveBlock]
    size_bytes: int
    cost_bytes: int


def plan_shares(
    found: Survey, settings: CompactionSettings, memory_bytes: int, now_ms: int
) -> list[Sequence[Iteration]]:
    """Return the iterations of each share, the most expensive share first, so that workers end at about the same time.

    `memory_bytes` limits the blocks of an iteration, unless a single block is larger. Raises PlanRefused.
    """
    parts: dict[ObjectKind, list[_Part]] = {ObjectKind.SO: [], ObjectKind.SSO: []}
    for run in contiguous_runs(found):
        is_own = is_own_object(run, found, settings, now_ms)
        write_cost = settings.call_cost_bytes if is_own else 0
        parts[ObjectKind.SO if is_own else ObjectKind.SSO] += [
            _Part(blocks, size, size + len(blocks) * BLOCK_COST_BYTES + write_cost)
            for blocks, size in _cut_evenly(run, memory_bytes)
        ]
    cost_max = max(settings.memory_bytes, settings.call_cost_bytes * len(found.inputs))
    shares = [(ObjectKind.SO, each) for each in _divide(parts[ObjectKind.SO], cost_max)]
    if parts[ObjectKind.SSO]:
        shares.append((ObjectKind.SSO, parts[ObjectKind.SSO]))
    shares.sort(key=lambda share: sum(part.cost_bytes for part in share[1]), reverse=True)
    return [list(_iterations(kind, some, memory_bytes)) for kind, some in shares]


def _divide(parts: Sequence[_Part], cost_max: int) -> list[list[_Part]]:
    """Divide parts, in their order, into groups of about equal cost. A part belongs where its middle is."""
    total = sum(part.cost_bytes for part in parts)
    groups: list[list[_Part]] = [[] for _ in range(-(-total // cost_max))]
    before = 0
    for part in parts:
        groups[(before + part.cost_bytes // 2) * len(groups) // total].append(part)
        before += part.cost_bytes
    return [group for group in groups if group]


def _iterations(kind: ObjectKind, parts: Sequence[_Part], memory_bytes: int) -> Iterator[Iteration]:
    builder = IterationBuilder()
    for number, part in enumerate(parts):
        if builder.size_bytes and builder.size_bytes + part.size_bytes > memory_bytes:
            yield builder.take()
        builder.add(kind, number if kind is ObjectKind.SO else 0, part.blocks, part.size_bytes)
    yield builder.take()


def _cut_evenly(run: BlockRun, bytes_max: int) -> Iterator[tuple[Sequence[LiveBlock], int]]:
    """Cut a run into parts of about equal size, and yield each with its size.

    No part is larger than `bytes_max`, unless a single block is.
    """
    target = -(-run.size_bytes // -(-run.size_bytes // bytes_max))
    part: list[LiveBlock] = []
    size = 0
    for block in run.blocks:
        added = block.entry.size_bytes
        if part and (size >= target or size + added > bytes_max):
            yield part, size
            part, size = [], 0
        part.append(block)
        size += added
    yield part, size
