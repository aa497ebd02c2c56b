"""Looking into the records of a batch: a little of it on the event loop, all else beside it, one batch at a time.

A batch tells nothing reliable about what it unfolds to. So the loop takes a batch on only as far as its share of a turn
goes, and what turns out to be more is handed to one thread. One at a time: what decompression holds is bounded by
`bytes_max`, whoever asks for it.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from protocol.batch import HEADER_BYTES, BatchHeader
from protocol.compression import decompressed
from protocol.errors import DecompressedTooLarge, ErrorCode, KafkaError
from protocol.record_scan import RecordHead
from wal.interface import Buffer

TURN_BYTES: Final = 128 * 1024
"""Bytes of records that the loop goes through in one turn at most, however many batches they are in ..."""
RECORD_COST_BYTES: Final = 128
"""... where each record counts for so many more: small ones take as long as larger ones."""
RECORDS_PER_CHECK: Final = 10_000

T = TypeVar("T")
Look = Callable[[memoryview], T]
"""What is done with the records of a batch, decompressed."""


class TooMuchForTheLoop(Exception):
    """The records are more than the loop goes through in a turn: look into them beside it."""


class RecordWorkStopped(KafkaError):
    """The node is stopping, and looks into nothing more."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the node is stopping")


class RecordWork:
    """Where the records of batches are looked into. `bytes_max` is what those of one batch may unfold to."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_here = 0
        """Bytes gone through on the loop since the start; records that are given up half-way included."""
        self.batches_beside = 0
        """Batches handed to the thread."""
        self._turn_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._turn = asyncio.Lock()
        """Of whose work is in the thread."""
        self._stopped = threading.Event()

    def here(self, batch: Buffer, header: BatchHeader, look: Look[T]) -> T:
        """Look into a batch now, on the loop. Raises TooMuchForTheLoop, CorruptBatch, and what `look` raises."""
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        left = TURN_BYTES - self._turn_bytes - header.record_count * RECORD_COST_BYTES
        if left <= 0:
            raise TooMuchForTheLoop
        try:
            with _records(batch, header, left) as data:
                if len(data) > left:
                    raise TooMuchForTheLoop
                self._spend(len(data))
                self._turn_bytes += header.record_count * RECORD_COST_BYTES
                return look(data)
        except DecompressedTooLarge:
            self._spend(left)
            raise TooMuchForTheLoop from None

    def beside(self, batch: Buffer, header: BatchHeader, look: Look[T]) -> T:
        """Look into a batch, in the thread. Raises DecompressedTooLarge, CorruptBatch, and what `look` raises."""
        with _records(batch, header, self.bytes_max) as data:
            return look(data)

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in the thread when its turn comes. Cancelled before that, it is never begun, and nothing is kept.

        Raises RecordWorkStopped, and what `work` raises.
        """
        await self._turn.acquire()  # not the executor's queue: what is cancelled would stay in that, and hold its frame
        if self._stopped.is_set():
            self._turn.release()
            raise RecordWorkStopped
        self.batches_beside += 1
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(self._next)
        await asyncio.wait((done,))  # cancelled or not, the turn ends with the work
        return done.result()

    def interruptible(self, records: Iterable[RecordHead]) -> Iterator[RecordHead]:
        """The same records, as long as the node does not stop. Raises RecordWorkStopped."""
        for at, record in enumerate(records):
            if not at % RECORDS_PER_CHECK and self._stopped.is_set():
                raise RecordWorkStopped
            yield record

    def close(self) -> None:
        """Begin nothing more, and end soon what is under way."""
        self._stopped.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self, done: asyncio.Future[T]) -> None:
        self._turn.release()
        if not done.cancelled():
            done.exception()  # seen, though nobody may wait for it any more

    def _spend(self, size_bytes: int) -> None:
        self._turn_bytes += size_bytes
        self.bytes_here += size_bytes

    def _next_turn(self) -> None:
        self._turn_bytes = 0


def _records(batch: Buffer, header: BatchHeader, bytes_max: int) -> AbstractContextManager[memoryview]:
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return decompressed(header.compression, packed, bytes_max=bytes_max)
