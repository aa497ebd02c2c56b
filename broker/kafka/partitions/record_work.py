"""Inspection of the records of a batch: a little of it on the event loop, the rest in one thread, one batch at a time.

The decompressed size of a batch is unknown beforehand, as nothing in it is reliable. The loop therefore inspects a
batch only up to its budget for one turn, and hands a larger one to the thread. Batches run one at a time, so that all
of decompression together holds `bytes_max` at most.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from anabranch.protocol.batch import HEADER_BYTES, BatchHeader
from anabranch.protocol.compression import decompressed
from anabranch.protocol.errors import DecompressedTooLarge, ErrorCode, KafkaError
from anabranch.protocol.record_scan import RecordHead
from anabranch.wal.interface import Buffer

TURN_BYTES_MAX: Final = 128 * 1024
"""Bytes of records that the loop inspects in one turn, over all batches."""
RECORD_COST_BYTES: Final = 128
"""Bytes that each record counts for in addition to its own: the time for a record hardly depends on its size."""
RECORDS_PER_CHECK: Final = 10_000
RECORDS_MAX: Final = 1_000_000
"""Records of a batch that is inspected: about 2 s in the thread, which all partitions share."""

T = TypeVar("T")
Inspection = Callable[[memoryview], T]
"""A function of the decompressed records of a batch."""


class LoopBudgetExceeded(Exception):
    """The records exceed the loop's budget for this turn: inspect them in the thread."""


class RecordWorkStopped(KafkaError):
    """The node is stopping, and inspects no more records."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping")


class RecordWork:
    """Runs inspections. `bytes_max` limits the decompressed records of one batch."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_on_loop = 0
        """Bytes inspected on the loop since the start, including those of batches that exceeded the budget."""
        self.batches_in_thread = 0
        """Batches handed to the thread."""
        self._turn_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._turn = asyncio.Lock()
        """Held by the work that runs in the thread."""
        self._stopped = threading.Event()

    def inspect_on_loop(self, batch: Buffer, header: BatchHeader, inspection: Inspection[T]) -> T:
        """Inspect a batch now, on the loop. Raises LoopBudgetExceeded, InvalidRecord, and what `inspection` raises."""
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        left = TURN_BYTES_MAX - self._turn_bytes - header.record_count * RECORD_COST_BYTES
        if left < len(batch):  # compressed records are hardly smaller than their batch, but may have many small blocks
            raise LoopBudgetExceeded
        try:
            with _decompressed_records(batch, header, left) as data:
                if len(data) > left:
                    raise LoopBudgetExceeded
                self._spend(len(data))
                self._turn_bytes += header.record_count * RECORD_COST_BYTES
                return inspection(data)
        except DecompressedTooLarge:
            self._spend(left)
            raise LoopBudgetExceeded from None

    async def inspect_in_thread(self, batch: Buffer, header: BatchHeader, inspection: Inspection[T]) -> T:
        """Inspect a batch in the thread, as `run_in_thread` does.

        Raises DecompressedTooLarge, also for more than `RECORDS_MAX` records; InvalidRecord, RecordWorkStopped, and
        what `inspection` raises.
        """
        if header.record_count > RECORDS_MAX:
            raise DecompressedTooLarge(f"{header.record_count} records in a batch, {RECORDS_MAX} can be inspected")

        def inspect() -> T:
            with _decompressed_records(batch, header, self.bytes_max) as data:
                return inspection(data)

        return await self.run_in_thread(inspect)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread when its turn comes. If cancelled before that, it never runs and nothing is held.

        Raises RecordWorkStopped, and what `work` raises.
        """
        await self._turn.acquire()  # the executor's queue would keep cancelled work, and the frame it refers to
        if self._stopped.is_set():
            self._turn.release()
            raise RecordWorkStopped
        self.batches_in_thread += 1
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(self._end_turn)
        await asyncio.wait((done,))  # the turn ends with the work, even if this wait is cancelled
        return done.result()

    def interruptible(self, records: Iterable[RecordHead]) -> Iterator[RecordHead]:
        """Yield the same records until the node stops. Raises RecordWorkStopped then."""
        for at, record in enumerate(records):
            if not at % RECORDS_PER_CHECK and self._stopped.is_set():
                raise RecordWorkStopped
            yield record

    def close(self) -> None:
        """Start no more work, and interrupt the work under way."""
        self._stopped.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _end_turn(self, done: asyncio.Future[T]) -> None:
        self._turn.release()
        if not done.cancelled():
            done.exception()  # retrieved, in case the wait for it was cancelled

    def _spend(self, size_bytes: int) -> None:
        self._turn_bytes += size_bytes
        self.bytes_on_loop += size_bytes

    def _next_turn(self) -> None:
        self._turn_bytes = 0


def _decompressed_records(batch: Buffer, header: BatchHeader, bytes_max: int) -> AbstractContextManager[memoryview]:
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return decompressed(header.compression, packed, bytes_max=bytes_max)
