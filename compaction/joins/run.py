"""Runs the second level: each group of a stream's objects is joined into one, with a commit for each group."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import dropwhile

from anabranch.compaction.ages import is_young
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.joins.execute import JoinedObject, execute_join, read_join_inputs
from anabranch.compaction.joins.plan import JoinGroup, plan_groups
from anabranch.compaction.outputs import PreparedOutputs
from anabranch.compaction.proof import prove_coverage, prove_totals
from anabranch.compaction.throttle import Throttle, yield_to_uploads
from anabranch.s3stream.model import NewObject, RangeLocation
from anabranch.s3stream.object.format import BLOCK_HEADER
from anabranch.s3stream.object.writer_id import CompactionWriter


async def plan_joins(context: CompactionContext, *, full: bool) -> list[JoinGroup]:
    """Return the groups that the second level would join now. Reads only the catalog."""
    settings = context.settings
    # A single object may be worth rewriting to drop what is before the stream's start.
    stream_ids = await context.catalog.list_compactable_streams(
        context.identity.node_id, objects_min=1, limit=settings.streams_max
    )
    by_key = context.cleaning.policies() if context.cleaning is not None else {}
    # Objects that a clone of the topic also refers to are not joined: that would duplicate their data.
    apart = context.left_alone | await context.catalog.shared_objects()
    groups: list[JoinGroup] = []
    streams = await context.catalog.get_streams(stream_ids)
    for stream_id in stream_ids:
        if stream_id not in streams:
            continue
        start = streams[stream_id].start_offset
        found = await context.catalog.list_stream_objects(stream_id)
        if stream_id in by_key:
            # Log compaction joins what it cleans, and must recognise it later. Data that is too young for it would
            # look young for longer. Data in between, of which too little is dirty, is joined here.
            policy, now_ms = by_key[stream_id], context.now_ms()
            found = [
                each
                for each in dropwhile(lambda each: each.object.cleaned, found)
                if not is_young(each, policy, now_ms)
            ]
        for objects in _joinable(found, apart):
            groups += [JoinGroup(stream_id, start, group) for group in plan_groups(objects, start, settings, full=full)]
        await asyncio.sleep(0)
    return groups


def _joinable(objects: Sequence[RangeLocation], apart: Collection[int]) -> Iterator[Sequence[RangeLocation]]:
    """Divide the objects at those that must not be joined, and at those that contain another stream's id."""
    some: list[RangeLocation] = []
    for each in objects:
        if each.object.object_id in apart or each.stored_stream_id != each.range.stream_id:
            yield some
            some = []
        else:
            some.append(each)
    yield some


async def run_join(
    context: CompactionContext, group: JoinGroup, *, throttle: Throttle, under_pressure: Callable[[], bool]
) -> NewObject | None:
    """Join a group and commit it. Returns None if joining would gain nothing.

    Raises UnreadableInput, StoreError, CatalogError, CoverageError.
    """
    store = context.store_of(group.objects[0].object)
    target = context.store_for(group.stream_id, store)
    execution = context.execution_context(store, throttle, target=target)
    join = await read_join_inputs(group, execution)
    if join is None:
        return None
    context.stats.pauses += await yield_to_uploads(under_pressure, context.settings, context.sleep)
    prepared = PreparedOutputs(context, target)
    oldest_data_ms = min(location.object.oldest_data_ms for location in group.objects)
    (output,) = await prepared.prepare(1, CompactionWriter(context.new_writer_id(), oldest_data_ms))
    try:
        joined = await execute_join(join, output, execution)
    except Exception:
        await prepared.discard()
        raise
    return await commit_join(context, group, prepared, joined)


async def commit_join(
    context: CompactionContext, group: JoinGroup, prepared: PreparedOutputs, joined: JoinedObject
) -> NewObject:
    """Prove that the output contains the group's data, and swap it for the group's objects.

    Raises CoverageError and CatalogError.
    """
    try:
        live = [location.range for location in group.objects]
        prove_coverage(live, [joined.output], {group.stream_id: group.stream_start})
        prove_totals(joined.read, joined.written, BLOCK_HEADER.size)
    except Exception:
        await prepared.discard()
        raise
    context.stats.bytes_copied += joined.copied_bytes
    context.stats.bytes_written += joined.rewritten_bytes
    await prepared.commit([location.object.object_id for location in group.objects], [joined.output])
    return joined.output
