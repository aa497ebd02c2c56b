"""Cleans streams by key when they are due. `compaction.cleaning.schedule` decides; this module acts."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from anabranch.compaction.cleaning.plan import OBJECTS_MAX
from anabranch.compaction.cleaning.schedule import CleaningState, ClockReadings, DueWork, assess_stream, next_due
from anabranch.compaction.interface import CleaningHooks, CleanPolicy, StreamTail
from anabranch.compaction.service import CompactionService
from anabranch.compaction.sets.run import SetSelection
from anabranch.s3stream.errors import NodeFenced, StorageError

log = structlog.get_logger(__name__)


class CleaningScheduler:
    """Checks the streams of a node periodically, and has the service clean those that are due."""

    def __init__(
        self,
        service: CompactionService,
        cleaning: CleaningHooks,
        *,
        tails: Callable[[int], StreamTail | None],
        request_upload: Callable[[], None],
        steady_ms: Callable[[], int],
    ) -> None:
        """Create a scheduler; `run` starts it.

        `tails` returns the state of an open stream. `request_upload` starts an upload of all waiting data, and returns
        at once. `steady_ms` is a monotonic clock for pauses.
        """
        self._service = service
        self._context = service.context
        self._cleaning = cleaning
        self._tails = tails
        self._request_upload = request_upload
        self._steady_ms = steady_ms
        self._policies: Mapping[int, CleanPolicy] = {}
        self._look_over_ms = steady_ms()
        """Time of the next check of all streams."""
        self._upload_from_ms = 0
        """Time before which no upload is requested."""
        self.states: dict[int, CleaningState] = {}
        """State of the streams that are compacted by key."""

    async def run(self) -> None:
        """Clean what is due, forever. Cancel to stop.

        Raises NodeFenced: another process owns the node's id.
        """
        while True:
            await self._context.sleep(await self.turn() / 1000)

    async def turn(self) -> int:
        """Do what is due now. Returns the ms until the next turn. Raises NodeFenced."""
        settings = self._context.settings
        policies = self._choose_policies()
        agenda = self._agenda(policies)
        if agenda.upload:
            self._upload_from_ms = self._steady_ms() + settings.clean_backoff_ms
            self._request_upload()
        if agenda.look:
            await self._look(policies, agenda.look)
            agenda = self._agenda(policies)
        for stream_id in agenda.clean[: settings.clean_turn_max]:
            await self._clean(stream_id)
        if agenda.split and not self._service.is_running:
            await self._split(agenda.split)
        if len(agenda.clean) > settings.clean_turn_max:
            return 0
        return max(0, min(agenda.wait_ms, self._look_over_ms - self._steady_ms()))

    def _choose_policies(self) -> Mapping[int, CleanPolicy]:
        """Return the policies of the streams to check now.

        These are all streams from time to time, and in between those that need checks more often.
        """
        now_ms, settings = self._steady_ms(), self._context.settings
        if now_ms < self._look_over_ms:
            return {key: each for key, each in self._policies.items() if each.cleanable_age_ms < settings.clean_look_ms}
        self._look_over_ms = now_ms + settings.clean_look_ms
        self._policies = self._cleaning.policies()
        for gone in self.states.keys() - self._policies.keys():
            del self.states[gone]
        return self._policies

    def _agenda(self, policies: Mapping[int, CleanPolicy]) -> DueWork:
        context = self._context
        now = ClockReadings(context.now_ms(), self._steady_ms())
        return next_due(policies, self._tails, self.states, now, context.settings, upload_from_ms=self._upload_from_ms)

    async def _look(self, policies: Mapping[int, CleanPolicy], stream_ids: Sequence[int]) -> None:
        """Look up the ranges of streams in the catalog, and assess them. After an error the next turn tries again."""
        context = self._context
        try:
            for stream_id in stream_ids:
                tail = self._tails(stream_id)
                if tail is None:
                    continue
                ranges = await context.catalog.find_ranges(
                    stream_id, tail.start_offset, tail.committed_offset, limit=OBJECTS_MAX
                )
                need = assess_stream(
                    ranges,
                    policies[stream_id],
                    start_offset=tail.start_offset,
                    unreadable=context.left_alone,
                )
                before = self.states.get(stream_id)
                if before is None:
                    before = CleaningState(policies[stream_id], -1, need, 0)
                self.states[stream_id] = before.seen(
                    policies[stream_id], tail.committed_offset, need, self._steady_ms()
                )
        except StorageError as error:
            log.warning("cannot look up the streams to clean by key; the next turn tries again", reason=str(error))

    async def _clean(self, stream_id: int) -> None:
        began_ms = self._steady_ms()
        if await self._attempt((stream_id,), self._service.clean_stream(stream_id)):
            self.states[stream_id] = self.states[stream_id].after_cleaning(
                self._context.settings, began_ms=began_ms, ended_ms=self._steady_ms()
            )

    async def _split(self, stream_ids: Sequence[int]) -> None:
        objects = frozenset().union(*(self.states[stream_id].need.shared for stream_id in stream_ids))
        if await self._attempt(stream_ids, self._service.split(SetSelection(objects, frozenset(stream_ids)))):
            for stream_id in stream_ids:
                self.states[stream_id] = self.states[stream_id].after_split()

    async def _attempt(self, stream_ids: Sequence[int], work: Awaitable[bool]) -> bool:
        """Return whether the work changed anything. If not, the streams rest."""
        context = self._context
        is_changed = False
        try:
            is_changed = await work
        except NodeFenced:
            raise
        except StorageError as error:
            context.stats.runs_failed += 1
            log.warning("compaction by key failed", streams=list(stream_ids), reason=str(error))
        except Exception:
            # The contents of one stream, which a client wrote, must not stop the node.
            context.stats.runs_failed += 1
            log.exception("compaction by key failed", streams=list(stream_ids))
        if not is_changed:
            for stream_id in stream_ids:
                self.states[stream_id] = self.states[stream_id].after_failure(
                    context.settings, ended_ms=self._steady_ms()
                )
        return is_changed
