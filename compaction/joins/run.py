"""Carries out the second level: groups of a stream's objects become one each, group by group, a commit for each."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import dropwhile

from compaction.ages import is_cleaned, is_young
from compaction.joins.execute import Joined, execute_join, survey_join
from compaction.joins.plan import StreamGroup, plan_groups
from compaction.node import CompactionNode
from compaction.outputs import Drafts
from compaction.proof import prove_coverage, prove_totals
from compaction.throttle import Throttle, yield_to_uploads
from s3stream.model import NewObject, RangeLocation
from s3stream.object.format import BLOCK_HEADER
from s3stream.object.writer_id import CompactionWriter


async def plan_streams(node: CompactionNode, *, full: bool) -> list[StreamGroup]:
    """What the second level would join now; reads only the catalog."""
    settings = node.settings
    # A lone object may be worth rewriting for what lies before the stream's start.
    stream_ids = await node.catalog.list_compactable_streams(node.node_id, objects_min=1, limit=settings.streams_max)
    by_key = node.cleaning.policies() if node.cleaning is not None else {}
    # What a clone of the topic refers to as well stays as it is: joining it would make two of it.
    apart = node.left_alone | await node.catalog.shared_objects()
    groups: list[StreamGroup] = []
    streams = await node.catalog.get_streams(stream_ids)
    for stream_id in stream_ids:
        if stream_id not in streams:
            continue
        start = streams[stream_id].start_offset
        found = await node.catalog.list_stream_objects(stream_id)
        if stream_id in by_key:
            # Log compaction joins what it cleans, and must know it again. What is too young for it would look young
            # for longer. What is between, because too little is dirty, is joined here.
            policy, now_ms = by_key[stream_id], node.now_ms()
            found = [each for each in dropwhile(is_cleaned, found) if not is_young(each, policy, now_ms)]
        for objects in _joinable(found, apart):
            groups += [
                StreamGroup(stream_id, start, group) for group in plan_groups(objects, start, settings, full=full)
            ]
        await asyncio.sleep(0)
    return groups


def _joinable(objects: Sequence[RangeLocation], apart: Collection[int]) -> Iterator[Sequence[RangeLocation]]:
    """Divide the objects at those that stay apart, and at what bears another stream's id."""
    some: list[RangeLocation] = []
    for each in objects:
        if each.object.object_id in apart or each.stored_stream_id != each.range.stream_id:
            yield some
            some = []
        else:
            some.append(each)
    yield some


async def execute_group(
    node: CompactionNode, group: StreamGroup, *, throttle: Throttle, under_pressure: Callable[[], bool]
) -> NewObject | None:
    """Join a group and commit; None when it turns out that there is nothing to gain.

    Raises BadInput, StoreError, CatalogError, CoverageError.
    """
    store = node.store_of(group.objects[0].object)
    target = node.store_for(group.stream_id, store)
    workshop = node.workshop(store, throttle, target=target)
    join = await survey_join(group, workshop)
    if join is None:
        return None
    node.stats.pauses += await yield_to_uploads(under_pressure, node.settings, node.sleep)
    drafts = Drafts(node, target)
    oldest_ms = min(location.object.oldest_data_ms for location in group.objects)
    (output,) = await drafts.prepare(1, CompactionWriter(node.new_writer_id(), oldest_ms))
    try:
        joined = await execute_join(join, output, workshop)
    except Exception:
        await drafts.discard()
        raise
    return await commit_join(node, group, drafts, joined)


async def commit_join(node: CompactionNode, group: StreamGroup, drafts: Drafts, joined: Joined) -> NewObject:
    """Prove what was made, and swap it for the group's objects. Raises CoverageError and CatalogError."""
    try:
        live = [location.range for location in group.objects]
        prove_coverage(live, [joined.output], {group.stream_id: group.stream_start})
        prove_totals(joined.read, joined.written, BLOCK_HEADER.size)
    except Exception:
        await drafts.discard()
        raise
    node.stats.bytes_copied += joined.copied_bytes
    node.stats.bytes_written += joined.rewritten_bytes
    await drafts.commit([location.object.object_id for location in group.objects], [joined.output])
    return joined.output
