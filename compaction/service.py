"""Runs compaction on a timer, when a backlog builds up, and on demand, one run at a time.

Single streams are also cleaned by key between and during runs, when they are due (`compaction.scheduler`), so that a
long run does not delay them. One stream is worked on at a time, and a run skips streams that were cleaned after it made
its plans.

A failed run never stops the node (`compaction.failures`). The inputs stay unchanged, and the next run tries again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

import structlog

from anabranch.compaction.cleaning.plan import CleanPlan
from anabranch.compaction.cleaning.run import plan_cleanings, run_cleaning
from anabranch.compaction.context import CompactionContext, CompactionProgress, CompactionStats, ReportProgress
from anabranch.compaction.execution import UnreadableInput
from anabranch.compaction.failures import FailurePolicy
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.joins.plan import JoinGroup
from anabranch.compaction.joins.run import plan_joins, run_join
from anabranch.compaction.proof import CoverageError
from anabranch.compaction.report import CompactionPlan, CompactionSummary
from anabranch.compaction.sets.plan import PlanRefused
from anabranch.compaction.sets.run import SetSelection, plan_sets, run_sets
from anabranch.compaction.throttle import Throttle, run_rate
from anabranch.s3stream.errors import (
    CatalogDamaged,
    CatalogError,
    CatalogUnavailable,
    NodeFenced,
    StorageError,
)
from anabranch.s3stream.store.interface import CallCounts

log = structlog.get_logger(__name__)
P = TypeVar("P", JoinGroup, CleanPlan)
UNREADABLE_INPUTS_MAX = 100
"""Unreadable objects that one run skips before it gives up."""
CALL_KINDS = ("get", "put", "head", "list", "delete", "multipart", "part", "part_copy")


class CompactionService:
    """Compaction of one node."""

    def __init__(self, context: CompactionContext, *, under_pressure: Callable[[], bool] = lambda: False) -> None:
        """Create the service; `run` starts the timer. `under_pressure` returns whether uploads cannot keep up."""
        self._context = context
        self._under_pressure = under_pressure
        self._failures = FailurePolicy(context)
        self._running = asyncio.Lock()
        self._on_stream = asyncio.Lock()
        """Held while a stream's objects are replaced."""
        self._cleaned_meanwhile: set[int] = set()
        """Streams cleaned since the current run began."""
        self._wanted = asyncio.Event()
        self.last: CompactionSummary | None = None
        """Summary of the last finished run."""
        self.progress: CompactionProgress | None = None
        """Progress of the current run."""

    @property
    def context(self) -> CompactionContext:
        """Components and counters."""
        return self._context

    @property
    def stats(self) -> CompactionStats:
        """Counters since the node started."""
        return self._context.stats

    @property
    def is_running(self) -> bool:
        """True during a run."""
        return self._running.locked()

    def trigger(self) -> None:
        """Start a timed run now."""
        self._wanted.set()

    async def run(self) -> None:
        """Compact forever, after each period and earlier when many stream set objects wait. Cancel to stop.

        Raises NodeFenced: another process owns the node's id.
        """
        while True:
            await self._wait()
            try:
                await self.run_timed()
            except NodeFenced:
                raise
            except StorageError as error:
                self._context.stats.runs_failed += 1
                log.warning("compaction failed", error=str(error))

    async def run_timed(self) -> CompactionSummary:
        """Run once as the timer does: throttled, and without rewriting what can wait. Raises StorageError."""
        return await self._run(full=False, report=_no_progress)

    async def run_once(self, progress: ReportProgress | None = None) -> CompactionSummary:
        """Compact everything, unthrottled, after the current run. Raises StorageError."""
        return await self._run(full=True, report=progress or _no_progress)

    async def clean_stream(self, stream_id: int) -> bool:
        """Clean a stream by key at the rate of a timed run, if it is due.

        Returns whether it was cleaned. Raises StorageError.
        """
        cleaning = self._context.cleaning
        assert cleaning is not None, "only the scheduler of a node with policies calls this"
        is_cleaned = False
        async with self._on_stream:
            for plan in await plan_cleanings(self._context, cleaning, full=False, stream_ids=(stream_id,)):
                size_bytes = sum(each.object.size_bytes for each in plan.objects)
                throttle = Throttle(run_rate(size_bytes, self._context.settings), self._context.sleep)
                clean = self._cleaner(cleaning, full=False)
                is_cleaned = await self._failures.attempt("compaction by key", plan, clean, throttle, [])
            if is_cleaned:
                self._cleaned_meanwhile.add(stream_id)
        return is_cleaned

    async def split(self, selection: SetSelection) -> bool:
        """Move the selected streams' data into stream objects.

        Returns whether anything was committed. Raises StorageError.
        """
        commits_before = self.stats.commits
        async with self._running:
            await self._compact_sets(full=False, report=_no_progress, errors=[], selection=selection)
        return self.stats.commits > commits_before

    async def plan(self) -> CompactionPlan:
        """Return the plan of `run_once`. Changes nothing."""
        while True:
            try:
                sets = await plan_sets(self._context, full=True)
            except UnreadableInput as error:
                await self._failures.leave_alone(error, [])
            else:
                groups = await plan_joins(self._context, full=True)
                cleaning = self._context.cleaning
                cleanings = await plan_cleanings(self._context, cleaning, full=True) if cleaning is not None else []
                return CompactionPlan(sets, groups, cleanings)

    async def _wait(self) -> None:
        settings = self._context.settings
        loop = asyncio.get_running_loop()
        due = loop.time() + settings.period_ms / 1000
        while (left := due - loop.time()) > 0:
            step = min(left, settings.backlog_check_ms / 1000) if settings.backlog_check_ms else left
            try:
                async with asyncio.timeout(step):
                    await self._wanted.wait()
                break
            except TimeoutError:
                if settings.backlog_check_ms and await self._backlog() >= settings.backlog_objects:
                    break
        self._wanted.clear()

    async def _backlog(self) -> int:
        context = self._context
        try:
            found = await context.catalog.list_node_ssos(
                context.identity.node_id, limit=context.settings.backlog_objects
            )
        except CatalogError as error:
            log.warning("compaction cannot count its backlog; it waits for the period", error=str(error))
            return 0
        return len(found)

    async def _run(self, *, full: bool, report: ReportProgress) -> CompactionSummary:
        async with self._running:
            context = self._context
            loop = asyncio.get_running_loop()
            began = loop.time()
            counts_before = await context.catalog.count_objects()
            stats_before = asdict(context.stats)
            calls_before = self._calls()
            errors: list[str] = []
            context.stats.contiguous_runs += 1
            self._cleaned_meanwhile.clear()

            def note(progress: CompactionProgress) -> None:
                self.progress = progress
                report(progress)

            try:
                await self._compact_sets(full=full, report=note, errors=errors)
                # Before the second level, which then need not join what is cleaned here.
                streams_cleaned = await self._clean_streams(full=full, report=note, errors=errors)
                await self._compact_streams(full=full, report=note, errors=errors)
            finally:
                self.progress = None
            counts = await context.catalog.count_objects()
            done = {key: value - stats_before[key] for key, value in asdict(context.stats).items()}
            moved = done["bytes_read"] + done["bytes_copied"]
            self.last = CompactionSummary(
                sso_before=counts_before.get("SSO committed", (0, 0))[0],
                sso_after=counts.get("SSO committed", (0, 0))[0],
                so_before=counts_before.get("SO committed", (0, 0))[0],
                so_after=counts.get("SO committed", (0, 0))[0],
                commits=done["commits"],
                iterations=done["iterations"],
                bytes_read=done["bytes_read"],
                bytes_written=done["bytes_written"],
                bytes_copied=done["bytes_copied"],
                streams_cleaned=streams_cleaned,
                records_removed=done["records_removed"],
                calls={key: value - calls_before[key] for key, value in self._calls().items()},
                write_amplification=round((done["bytes_written"] + done["bytes_copied"]) / moved, 3) if moved else 0.0,
                seconds=round(loop.time() - began, 3),
                left_alone=sorted(context.left_alone),
                errors=errors,
            )
            say = log.info if self.last.commits or errors else log.debug
            say("compaction done", **{key: value for key, value in self.last.as_json().items() if key != "calls"})
            return self.last

    async def _compact_sets(
        self, *, full: bool, report: ReportProgress, errors: list[str], selection: SetSelection | None = None
    ) -> None:
        for _ in range(UNREADABLE_INPUTS_MAX):
            try:
                for plan in await plan_sets(self._context, full=full, selection=selection):
                    with self._context.tracing.compaction("sets", (info.object_id for info in plan.inputs)):
                        await run_sets(
                            self._context, plan, timed=not full, under_pressure=self._under_pressure, report=report
                        )
            except UnreadableInput as error:
                await self._failures.leave_alone(error, errors)
            except (CoverageError, PlanRefused) as error:
                self._failures.refuse("stream sets", error, errors)
                return
            except (NodeFenced, CatalogUnavailable, CatalogDamaged):
                raise
            except CatalogError as error:
                # One of their topics was cloned in the meantime, for example. The next run takes that into account.
                log.warning(
                    "compaction of stream set objects was given up; the next run plans it again", reason=str(error)
                )
                errors.append(str(error))
                return
            else:
                return

    async def _compact_streams(self, *, full: bool, report: ReportProgress, errors: list[str]) -> None:
        groups = await plan_joins(self._context, full=full)

        async def join(group: JoinGroup, throttle: Throttle) -> None:
            pressure = self._under_pressure if not full else _no_pressure
            with self._context.tracing.compaction("join", (each.object.object_id for each in group.objects)):
                await run_join(self._context, group, throttle=throttle, under_pressure=pressure)

        await self._each("stream objects", groups, join, full=full, report=report, errors=errors)

    async def _clean_streams(self, *, full: bool, report: ReportProgress, errors: list[str]) -> int:
        """Clean the streams that are due, and return how many were cleaned."""
        cleaning = self._context.cleaning
        if cleaning is None:
            return 0
        plans = await plan_cleanings(self._context, cleaning, full=full)
        clean = self._cleaner(cleaning, full=full)
        return await self._each("compaction by key", plans, clean, full=full, report=report, errors=errors)

    def _cleaner(self, cleaning: CleaningHooks, *, full: bool) -> Callable[[CleanPlan, Throttle], Awaitable[None]]:
        async def clean(plan: CleanPlan, throttle: Throttle) -> None:
            pressure = self._under_pressure if not full else _no_pressure
            with self._context.tracing.compaction("by key", (each.object.object_id for each in plan.objects)):
                await run_cleaning(self._context, plan, cleaning, throttle=throttle, under_pressure=pressure)

        return clean

    async def _each(
        self,
        stage: str,
        plans: Sequence[P],
        execute: Callable[[P, Throttle], Awaitable[None]],
        *,
        full: bool,
        report: ReportProgress,
        errors: list[str],
    ) -> int:
        """Execute the plans in order, and return how many succeeded. A failed plan does not stop the others.

        Raises StorageError for what would stop the others too, such as an unavailable catalog.
        """
        total = sum(each.object.size_bytes for plan in plans for each in plan.objects)
        throttle = Throttle(0 if full else run_rate(total, self._context.settings), self._context.sleep)
        done = succeeded = 0
        for plan in plans:
            async with self._on_stream:
                if plan.stream_id not in self._cleaned_meanwhile:
                    succeeded += await self._failures.attempt(stage, plan, execute, throttle, errors)
            done += sum(each.object.size_bytes for each in plan.objects)
            report(CompactionProgress(stage, done, total))
        return succeeded

    def _calls(self) -> dict[str, int]:
        counts: Sequence[CallCounts] = [store.calls for store in self._context.stores.values()]
        return {kind: sum(getattr(each, kind) for each in counts) for kind in CALL_KINDS}


def _no_pressure() -> bool:
    """Ignore upload pressure: a run on demand does not wait for uploads."""
    return False


def _no_progress(_: CompactionProgress) -> None:
    """Ignore the progress."""
