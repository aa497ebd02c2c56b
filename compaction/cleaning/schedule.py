"""Decides when streams are cleaned by key: by their lags and by how much of them is dirty. Pure.

Kafka's rules, with objects in the place of segments. Data is cleaned soon once it is in stream objects and its policy
finds it worthwhile: the dirty ratio is reached, or `max.compaction.lag.ms` is over. What keeps it from there has a
limit, too: data that waits in the log, or lies in stream set objects, for longer than `CleanPolicy.cleanable_age_ms` is
uploaded, or moved.

Nothing repeats without end: a stream rests after each attempt, at least as long as the attempt took, and longer each
time when it achieved nothing. What is known of a stream is looked up again only when its committed end, or its policy,
has changed; all else is decided from memory.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from compaction.ages import is_cleaned, newest_ms
from compaction.interface import NEVER_MS, CleanPolicy, StreamTail
from compaction.settings import CompactionSettings
from s3stream.model import ObjectKind, RangeLocation


class CleaningNeed(NamedTuple):
    """What of a stream's committed data is not cleaned, and when to do something about it."""

    clean_bytes: int
    dirty_bytes: int
    cleaned_ms: int
    """When it was cleaned last, or -1."""
    clean_due_ms: int
    """From when on `plan_cleaning` has a plan, as far as objects tell; NEVER_MS: not before there are others."""
    split_due_ms: int
    """From when on data in stream set objects should be in stream objects."""
    shared: AbstractSet[int] = frozenset()
    """Those stream set objects."""

    @property
    def ratio(self) -> float:
        """Share of the bytes that is dirty."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


def assess_stream(
    ranges: Iterable[RangeLocation],
    policy: CleanPolicy,
    *,
    start_offset: int,
    unreadable: Collection[int] = (),
) -> CleaningNeed:
    """Look over a stream's ranges, from its start on in the order of offsets; `unreadable` objects stay as they are."""
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
            # Plans leave out the stream as long as one of its objects is.
            is_blocked, clean_due_ms = True, NEVER_MS
        if not dirty_bytes and is_cleaned(each):
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
    """What was seen of a stream, and how the attempts to clean it went."""

    policy: CleanPolicy
    committed_offset: int
    """Committed end when it was looked at; -1: look again, objects were replaced."""
    need: CleaningNeed
    looked_ms: int
    """When, on the steady clock."""
    rest_until_ms: int = 0
    """Nothing is attempted before, on the steady clock."""
    failures: int = 0
    """Attempts in a row that changed nothing."""

    def seen(self, policy: CleanPolicy, committed_offset: int, need: CleaningNeed, steady_ms: int) -> "CleaningState":
        """After another look."""
        return replace(self, policy=policy, committed_offset=committed_offset, need=need, looked_ms=steady_ms)

    def after_cleaning(self, settings: CompactionSettings, *, began_ms: int, ended_ms: int) -> "CleaningState":
        """It was cleaned: it rests at least as long as that took. Times are of the steady clock."""
        rest_until_ms = max(began_ms + settings.clean_backoff_ms, 2 * ended_ms - began_ms)
        return replace(self, committed_offset=-1, rest_until_ms=rest_until_ms, failures=0)

    def after_split(self) -> "CleaningState":
        """It has left the stream set objects: it may be cleaned at once."""
        return replace(self, committed_offset=-1, failures=0)

    def after_failure(self, settings: CompactionSettings, *, ended_ms: int) -> "CleaningState":
        """An attempt changed nothing: it rests, twice as long each time, up to the period of runs."""
        pause_ms = min(settings.clean_backoff_ms << min(self.failures, 16), settings.period_ms)
        rest_until_ms = ended_ms + max(settings.clean_backoff_ms, pause_ms)
        return replace(self, committed_offset=-1, rest_until_ms=rest_until_ms, failures=self.failures + 1)


class DueWork(NamedTuple):
    """What is to be done now."""

    look: Sequence[int]
    """Streams of whose objects too little is known."""
    clean: Sequence[int]
    """Streams to clean, the dirtiest first."""
    split: Sequence[int]
    """Streams to bring from stream set objects into stream objects."""
    upload: bool
    """Whether data should be uploaded that waits for it."""
    wait_ms: int
    """When to look at the agenda again."""


class ClockReadings(NamedTuple):
    """What time it is. The wall clock may be set back, so that whatever is only paced goes by the steady one."""

    wall_ms: int
    """Since 1970: what objects and records tell."""
    steady_ms: int
    """Since some moment."""


def next_due(
    policies: Mapping[int, CleanPolicy],
    tails: Callable[[int], StreamTail | None],
    states: Mapping[int, CleaningState],
    now: ClockReadings,
    settings: CompactionSettings,
    *,
    upload_from_ms: int = 0,
) -> DueWork:
    """What the streams want; `tails` gives None for one that is not open here.

    No upload is asked for before `upload_from_ms` on the steady clock.
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
        # Appends tell nobody: what should be uploaded soon is looked for often.
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
