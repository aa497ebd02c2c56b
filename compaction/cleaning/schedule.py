"""Decides when to clean streams by key, from their lags and dirty ratios. Pure.

The rules are Kafka's, with objects instead of segments. Data in stream objects is cleaned soon after its policy finds
it worthwhile: the dirty ratio is reached, or `max.compaction.lag.ms` is over. Data that cannot be cleaned yet is moved
in time: data that is in the log for longer than `CleanPolicy.cleanable_age_ms` is uploaded, and data that is in stream
set objects for longer is split off.

Attempts do not repeat without pause. A stream rests after each attempt for at least as long as the attempt took, and
longer each time that nothing was achieved. A stream is looked up in the catalog only when its committed end or its
policy has changed; everything else is decided from memory.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from anabranch.compaction.ages import newest_ms
from anabranch.compaction.interface import NEVER_MS, CleanPolicy, StreamTail
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind, RangeLocation


class CleaningNeed(NamedTuple):
    """Clean and dirty bytes of a stream's committed data, and when something is due."""

    clean_bytes: int
    dirty_bytes: int
    cleaned_ms: int
    """Time of the last cleaning, or -1."""
    clean_due_ms: int
    """Time from which `plan_cleaning` returns a plan for these objects; NEVER_MS: it never does."""
    split_due_ms: int
    """Time from which data in stream set objects should be in stream objects."""
    shared: AbstractSet[int] = frozenset()
    """Stream set objects with data of the stream."""

    @property
    def ratio(self) -> float:
        """Share of dirty bytes."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def assess_stream(
    ranges: Iterable[RangeLocation],
    policy: CleanPolicy,
    *,
    start_offset: int,
    unreadable: Collection[int] = (),
) -> CleaningNeed:
    """Compute the cleaning need from a stream's ranges, given in offset order.

    Objects in `unreadable` are never split or cleaned.
    """
    clean_bytes = dirty_bytes = 0
    cleaned_ms, ready_ms, oldest_ms = -1, 0, NEVER_MS
    clean_due_ms = split_due_ms = NEVER_MS
    shared: set[int] = set()
    at: int | None = None
    is_blocked = False
    for each in ranges:
        span, info = each.range, each.object
        is_blocked = is_blocked or (span.start_offset > start_offset if at is None else span.start_offset != at)
        at = span.end_offset
        if info.kind is ObjectKind.SSO:
            dirty_bytes += span.size_bytes
            is_blocked = True
            if info.object_id not in unreadable:
                shared.add(info.object_id)
                split_due_ms = min(split_due_ms, info.oldest_data_ms + policy.cleanable_age_ms)
            continue
        if info.object_id in unreadable:
            # Plans skip the whole stream while one of its objects is unreadable.
            is_blocked, clean_due_ms = True, NEVER_MS
        if not dirty_bytes and each.object.cleaned:
            clean_bytes += info.size_bytes
            cleaned_ms = max(cleaned_ms, info.committed_ms)
            continue
        dirty_bytes += info.size_bytes
        if is_blocked:
            continue
        ready_ms = max(ready_ms, newest_ms(each) + policy.lag_ms_min)
        oldest_ms = min(oldest_ms, info.oldest_data_ms)
        if dirty_bytes >= policy.dirty_ratio_min * (clean_bytes + dirty_bytes):
            clean_due_ms = min(clean_due_ms, ready_ms)
        else:
            clean_due_ms = min(clean_due_ms, max(ready_ms, oldest_ms + policy.lag_ms_max))
    return CleaningNeed(
        clean_bytes, dirty_bytes, cleaned_ms, min(clean_due_ms, NEVER_MS), min(split_due_ms, NEVER_MS), shared
    )


@dataclass(frozen=True, slots=True)
class CleaningState:
    """Cleaning need of a stream, and the results of earlier attempts."""

    policy: CleanPolicy
    committed_offset: int
    """Committed end at the last lookup; -1: look up again, because objects were replaced."""
    need: CleaningNeed
    looked_ms: int
    """Time of the last lookup on the steady clock."""
    rest_until_ms: int = 0
    """Time of the next attempt at the earliest, on the steady clock."""
    failures: int = 0
    """Number of attempts in a row that changed nothing."""

    def seen(self, policy: CleanPolicy, committed_offset: int, need: CleaningNeed, steady_ms: int) -> "CleaningState":
        """Return the state after another lookup."""
        return replace(self, policy=policy, committed_offset=committed_offset, need=need, looked_ms=steady_ms)

    def after_cleaning(self, settings: CompactionSettings, *, began_ms: int, ended_ms: int) -> "CleaningState":
        """Return the state after a cleaning. The stream rests at least as long as the cleaning took.

        Times are of the steady clock.
        """
        rest_until_ms = max(began_ms + settings.clean_backoff_ms, 2 * ended_ms - began_ms)
        return replace(self, committed_offset=-1, rest_until_ms=rest_until_ms, failures=0)

    def after_split(self) -> "CleaningState":
        """Return the state after a split. The stream may be cleaned at once."""
        return replace(self, committed_offset=-1, failures=0)

    def after_failure(self, settings: CompactionSettings, *, ended_ms: int) -> "CleaningState":
        """Return the state after an attempt that changed nothing.

        The rest doubles each time, up to the period of runs.
        """
        pause_ms = min(settings.clean_backoff_ms << min(self.failures, 16), settings.period_ms)
        rest_until_ms = ended_ms + max(settings.clean_backoff_ms, pause_ms)
        return replace(self, committed_offset=-1, rest_until_ms=rest_until_ms, failures=self.failures + 1)


class DueWork(NamedTuple):
    """Work to be done now."""

    look: Sequence[int]
    """Streams to look up in the catalog."""
    clean: Sequence[int]
    """Streams to clean, the dirtiest first."""
    split: Sequence[int]
    """Streams to move from stream set objects into stream objects."""
    upload: bool
    """True if waiting data should be uploaded."""
    wait_ms: int
    """Time until the next check."""


class ClockReadings(NamedTuple):
    """Times of the two clocks. Pauses use the steady one, because the wall clock may be set back."""

    wall_ms: int
    """Milliseconds since 1970, comparable with times of objects and records."""
    steady_ms: int
    """Milliseconds of a monotonic clock."""


def next_due(
    policies: Mapping[int, CleanPolicy],
    tails: Callable[[int], StreamTail | None],
    states: Mapping[int, CleaningState],
    now: ClockReadings,
    settings: CompactionSettings,
    *,
    upload_from_ms: int = 0,
) -> DueWork:
    """Return the work that is due. `tails` returns None for a stream that is not open here.

    No upload is requested before `upload_from_ms` on the steady clock.
    """
    look: list[tuple[int, int]] = []
    clean: list[tuple[float, int]] = []
    split: list[int] = []
    is_upload_due = False
    wait_ms = settings.clean_look_ms
    for stream_id, policy in policies.items():
        tail = tails(stream_id)
        if tail is None:
            continue
        # Appends do not notify the scheduler: streams with a short cleanable age are checked often.
        cleanable_age_ms = policy.cleanable_age_ms
        if cleanable_age_ms < wait_ms:
            wait_ms = cleanable_age_ms
        if cleanable_age_ms <= tail.waiting_ms:
            is_upload_due = True
        state = states.get(stream_id)
        if (
            state is None
            or state.committed_offset != tail.committed_offset
            or (state.policy is not policy and state.policy != policy)
        ):
            look.append((-1 if state is None else state.looked_ms, stream_id))
            continue
        need = state.need
        due_ms = min(need.clean_due_ms, need.split_due_ms)
        left_ms = max(due_ms - now.wall_ms, state.rest_until_ms - now.steady_ms)
        if left_ms > 0:
            wait_ms = min(wait_ms, left_ms)
        elif need.clean_due_ms <= now.wall_ms:
            clean.append((-need.ratio, stream_id))
        else:
            split.append(stream_id)
    return DueWork(
        look=[stream_id for _, stream_id in sorted(look)[: settings.clean_looks_max]],
        clean=[stream_id for _, stream_id in sorted(clean)],
        split=split,
        upload=is_upload_due and now.steady_ms >= upload_from_ms,
        wait_ms=max(wait_ms, settings.clean_poll_ms),
    )
