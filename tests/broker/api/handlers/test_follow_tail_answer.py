"""The answer of a leader to one question of a replica: how large it gets, and when it waits."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.api.handlers.follow_tail import ABORTED_MAX, FOLLOW_TAIL
from anabranch.broker.kafka.partitions.transactions import PartitionTransactions
from anabranch.broker.node.peers.links import RESPONSE_BYTES_MAX
from anabranch.protocol.codec import encode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.internal.follow_tail import (
    FollowedPartition,
    FollowTailRequest,
    FollowTailResponse,
)
from anabranch.s3stream.model import ReadResult, StreamBatch
from tests.support.virtual_time import run_virtual

BYTES_MAX = 900_000


class Led:
    """A partition whose records so far belong to open transactions; the markers of all follow, in one batch."""

    def __init__(self, stream_id: int, transactions: int, *, marker_bytes: int = 0) -> None:
        self.stream_id = stream_id
        self.transactions = PartitionTransactions()
        for producer_id in range(transactions):
            self.transactions.write(producer_id, producer_id, 0)
        self.told = transactions
        for producer_id in range(transactions):
            self.transactions.end(producer_id, transactions + producer_id, 0, aborted=True)
        end = 2 * transactions
        self._batch = StreamBatch(stream_id, self.told, end, transactions, 0, memoryview(bytes(marker_bytes)))
        self.stream = self
        self.high_watermark = self.last_stable_offset = end
        self.log_start_offset = 0
        self.waited = 0

    def read_cached(self, offset: int, _bytes_max: int) -> ReadResult:
        batches = (self._batch,) if offset < self.high_watermark else ()
        return ReadResult(batches, self.high_watermark)

    def check_leader_epoch(self, _epoch: int) -> None: ...

    def note_sent(self, _size_bytes: int) -> None: ...

    def add_listener(self, _listener: object) -> None:
        self.waited += 1

    def remove_listener(self, _listener: object) -> None: ...


async def ask(*partitions: Led, window_offset: int = 0, at_end: bool = False) -> FollowTailResponse:
    followers = SimpleNamespace(note=lambda *_: None, sent_bytes=0)
    serving: Any = SimpleNamespace(
        topics=SimpleNamespace(partition=lambda _topic, index: partitions[index]),
        replicas=SimpleNamespace(followers=followers),
        ownership=SimpleNamespace(is_proved=True),
    )
    wanted = [
        FollowedPartition(
            topic_id=bytes(16),
            index=index,
            leader_epoch=5,
            window_offset=window_offset,
            offset=each.high_watermark if at_end else each.told,
        )
        for index, each in enumerate(partitions)
    ]
    request = FollowTailRequest(node_id=2, wait_ms=500, bytes_max=BYTES_MAX, partitions=wanted)
    unused: Any = None
    response = await FOLLOW_TAIL.function(serving, request, unused)
    assert isinstance(response, FollowTailResponse)
    return response


def test_an_answer_fits_into_the_link_however_many_transactions_were_aborted_at_a_time() -> None:
    """As when an application ends whose producers have written to many partitions."""
    partitions = [Led(index, ABORTED_MAX, marker_bytes=100_000) for index in range(60)]

    response = run_virtual(ask(*partitions))

    assert len(encode(response, 0)) < RESPONSE_BYTES_MAX - 1024
    assert len(response.partitions[0].aborted) == ABORTED_MAX
    assert response.partitions[-1].error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "it is followed no more"


def test_transactions_that_fit_are_told_without_records() -> None:
    partitions = [Led(0, 100, marker_bytes=800_000), *(Led(index, 100, marker_bytes=100_000) for index in range(1, 20))]

    response = run_virtual(ask(*partitions))

    assert [(each.error_code, len(each.aborted)) for each in response.partitions] == [(0, 100)] * 20
    assert [bool(each.records) for each in response.partitions] == [True] + [False] * 19


@pytest.mark.parametrize("is_new", [True, False])
def test_a_replica_that_knows_nothing_of_a_partition_is_answered_at_once(*, is_new: bool) -> None:
    """A reader waits there for the first answer."""
    partition = Led(0, 1)

    async def seconds() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await ask(partition, window_offset=-1 if is_new else 2, at_end=True)
        return loop.time() - began_s

    assert (run_virtual(seconds()), partition.waited) == ((0, 0) if is_new else (0.5, 1))
