"""A member of a share group that speaks ShareFetch and ShareAcknowledge itself, for the topic `t` of one partition."""

from collections.abc import Sequence
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import share_acknowledge, share_fetch
from anabranch.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from anabranch.protocol.messages.share_fetch import PartitionData, ShareFetchRequest, ShareFetchResponse
from tests.support.raw_client import RawClient

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = "sharers"
LONG_MS = 20_000


class Member:
    """A member of the group, with the epochs of its session."""

    def __init__(self, node: Node, client: RawClient, name: str) -> None:
        self.client = client
        self.name = name
        self.epoch = 0
        self.topic_id = node.serving.topics.require("t").topic_id

    def _next(self) -> int:
        epoch = self.epoch
        self.epoch += 1
        return epoch

    async def begin(self) -> None:
        """Begin a session, without waiting for records."""
        assert (await self.fetch_all(max_wait_ms=0)).error_code == ErrorCode.NONE

    async def fetch(
        self, *acknowledged: tuple[int, int, Sequence[int]], version: int = 2, **fields: Any
    ) -> PartitionData:
        """Fetch, and return what is answered of the partition."""
        response = await self.fetch_all(*acknowledged, version=version, **fields)
        assert response.error_code == ErrorCode.NONE, response
        [topic] = response.responses
        [partition] = topic.partitions
        return partition

    async def fetch_all(
        self, *acknowledged: tuple[int, int, Sequence[int]], version: int = 2, **fields: Any
    ) -> ShareFetchResponse:
        batches = [
            share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, types in acknowledged
        ]
        values: dict[str, Any] = {
            "share_session_epoch": self._next(),
            "max_records": 100,
            "batch_size": 100,
            "max_bytes": 1 << 20,
            "min_bytes": 1,
            "max_wait_ms": LONG_MS,
            **fields,
        }
        topic = share_fetch.FetchTopic(
            topic_id=self.topic_id, partitions=[share_fetch.FetchPartition(acknowledgement_batches=batches)]
        )
        request = ShareFetchRequest(group_id=GROUP, member_id=self.name, topics=[topic], **values)
        response: ShareFetchResponse = await self.client.call(request, version)
        return response

    async def acknowledge(self, first: int, last: int, *types: int, version: int = 2, **fields: Any) -> int:
        """Acknowledge, and return the error code."""
        batch = share_acknowledge.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(types)
        )
        topic = share_acknowledge.AcknowledgeTopic(
            topic_id=self.topic_id, partitions=[share_acknowledge.AcknowledgePartition(acknowledgement_batches=[batch])]
        )
        values: dict[str, Any] = {"share_session_epoch": self._next(), **fields}
        request = ShareAcknowledgeRequest(group_id=GROUP, member_id=self.name, topics=[topic], **values)
        response = await self.client.call(request, version)
        if response.error_code:
            return int(response.error_code)
        return int(response.responses[0].partitions[0].error_code)


def ranges(partition: PartitionData) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records]
