"""Tests of what a replica reads from objects that have changed since its reading."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from anabranch.broker.kafka.topics.replicas import ReplicaStream
from anabranch.s3stream.model import ReadResult, StreamBatch


@pytest.mark.parametrize(("offset", "end_offset", "expected"), [(0, 201, [150]), (160, 201, []), (0, 206, [150, 206])])
async def test_a_batch_that_compaction_has_made_across_the_end_is_left_out(
    offset: int, end_offset: int, expected: list[int]
) -> None:
    """The rest of its response says that there is nothing behind the end, and nothing is told that may be undecided."""
    batches = [StreamBatch(7, start, end, end - start, 0, b"") for start, end in ((0, 150), (150, 206)) if end > offset]
    storage: Any = Mock(read_committed=AsyncMock(return_value=ReadResult(batches, 206)))
    reading: Any = Mock(stream_id=7, start_offset=0, end_offset=end_offset)
    stream = ReplicaStream(reading, "t-0", storage)
    found = await stream.read(offset, 1 << 20, end_offset=end_offset)
    assert [batch.end_offset for batch in found.batches] == expected
    assert found.next_offset == (expected[-1] if expected else offset)
    assert stream.is_outdated is (not expected)
