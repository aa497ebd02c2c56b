"""Runs log compaction: plans, executes and commits the cleaning of a stream."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import structlog

from anabranch.compaction.cleaning.execute import CleanedOutputs, read_newest_keys, write_cleaned
from anabranch.compaction.cleaning.plan import CleanPlan, plan_cleaning
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.proof import prove_coverage
from anabranch.compaction.throttle import Throttle, yield_to_uploads
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NewObject

log = structlog.get_logger(__name__)


async def plan_cleanings(
    context: CompactionContext, cleaning: CleaningHooks, *, full: bool, stream_ids: Collection[int] | None = None
) -> list[CleanPlan]:
    """Return plans for the node's streams that are due or, if `full`, have any dirty data.

    `stream_ids` restricts the streams. Reads only the catalog.
    """
    policies = cleaning.policies()
    wanted = policies.keys() if stream_ids is None else policies.keys() & set(stream_ids)
    streams = await context.catalog.get_streams(sorted(wanted))
    plans = []
    for stream_id, info in streams.items():
        if info.node_id != context.identity.node_id:
            continue
        # Listed after the stream's state was read: newer data is past that state's end, and is not cleaned.
        objects = await context.catalog.list_stream_objects(stream_id)
        if any(each.object.object_id in context.left_alone for each in objects):
            continue
        policy = replace(policies[stream_id], dirty_ratio_min=0.0) if full else policies[stream_id]
        try:
            history = cleaning.history(info)
        except StorageError as error:
            log.warning(
                "compaction by key skips a stream whose snapshot cannot be read", stream_id=stream_id, error=str(error)
            )
            continue
        plan = plan_cleaning(info, objects, policy, history, context.now_ms())
        if plan is not None:
            plans.append(plan)
    return plans


async def run_cleaning(
    context: CompactionContext,
    plan: CleanPlan,
    cleaning: CleaningHooks,
    *,
    throttle: Throttle,
    under_pressure: Callable[[], bool],
) -> Sequence[NewObject]:
    """Execute a plan and commit it. Returns the outputs.

    Raises UnreadableInput, StoreError, CatalogError, CoverageError.
    """
    context.stats.pauses += await yield_to_uploads(under_pressure, context.settings, context.sleep)
    indexes = [await context.read_index(location.object) for location in plan.objects]
    newest = await read_newest_keys(context, plan, indexes, cleaning.codec, throttle)
    outputs = CleanedOutputs(
        context, context.store_for(plan.stream_id, context.store_of(plan.objects[0].object)), throttle
    )
    try:
        result = await write_cleaned(context, plan, indexes, newest, outputs, codec=cleaning.codec, throttle=throttle)
        live = [location.range for location in plan.objects]
        prove_coverage(live, outputs.made, {plan.stream_id: plan.stream_start})
    except Exception:
        await outputs.discard()
        raise
    finally:
        await outputs.abort()
    # A clone of the topic may refer to the same objects. Only this stream's ranges are swapped.
    inputs = [location.object.object_id for location in plan.objects]
    try:
        await outputs.prepared.commit(inputs, outputs.made, {plan.stream_id})
    finally:
        cleaning.on_cleaned(plan.stream_id, plan.objects[-1].range.end_offset)
    if result.vacated:
        cleaning.on_vacated(plan.stream_id, result.vacated)
    context.stats.streams_cleaned += 1
    context.stats.records_removed += result.records_removed
    if result.too_large:
        context.stats.batches_too_large += len(result.too_large)
        log.warning(
            "compaction by key kept batches unchanged that take too much memory to decode",
            stream_id=plan.stream_id,
            batches=len(result.too_large),
            first_offset=result.too_large[0].base_offset,
            memory_bytes=context.settings.memory_bytes,
        )
    return outputs.made
