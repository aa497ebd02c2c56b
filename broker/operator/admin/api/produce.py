"""One record produced to a topic: a small one, by hand, to try something out."""

import base64
import binascii
from http import HTTPStatus
from typing import Annotated, Final, Literal

from pydantic import Field

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model, check
from anabranch.broker.operator.admin.api.topics import partition_index, topic_named
from anabranch.client.partitioner import partition_of_key
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch

KEY_CHARACTERS_MAX: Final = 64 << 10
VALUE_CHARACTERS_MAX: Final = 900_000
"""Longest value. The link between nodes takes a mebibyte."""
HEADERS_MAX: Final = 100
TIMEOUT_MS: Final = 8_000
ALL_REPLICAS: Final = -1


class NewHeader(Model):
    """A header of a record to produce."""

    name: Annotated[str, Field(max_length=1000)]
    value: Annotated[str, Field(max_length=KEY_CHARACTERS_MAX)] | None = None


class NewRecord(Model):
    """A record to produce."""

    partition: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """By default the one that Java's clients choose for the key; without a key, one after the other."""
    key: Annotated[str, Field(max_length=KEY_CHARACTERS_MAX)] | None = None
    value: Annotated[str, Field(max_length=VALUE_CHARACTERS_MAX)] | None = None
    """Null: a tombstone, which deletes the key in a compacted topic."""
    headers: list[NewHeader] = Field(default_factory=list, max_length=HEADERS_MAX)
    encoding: Literal["text", "base64"] = "text"
    """Encoding of key, value and values of headers."""


class Produced(Model):
    """Place of a record that was produced."""

    partition: int
    offset: int
    timestamp_ms: int


class ProduceEndpoints:
    """Endpoint that produces records."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        self._turn = 0
        """Number of records without a key and a partition so far."""
        self.endpoints = [
            Endpoint("POST", "/topics/{topic}/records", "Produce a record.", self._produce, Produced, body=NewRecord),
        ]

    async def _produce(self, call: Call) -> Produced:
        wanted: NewRecord = call.body
        topic = topic_named(self._serving, call.path["topic"])
        record = Record(
            key=_bytes(wanted.key, wanted.encoding, "key"),
            value=_bytes(wanted.value, wanted.encoding, "value"),
            timestamp_ms=self._serving.now_ms(),
            headers=tuple((each.name, _bytes(each.value, wanted.encoding, "headers")) for each in wanted.headers),
        )
        index = self._choose(wanted.partition, record.key, len(topic.info.partitions))
        partition_index(topic, str(index))
        data = PartitionProduceData(index=index, records=memoryview(build_batch([record])))
        request = ProduceRequest(
            acks=ALL_REPLICAS,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=topic.name, partition_data=[data])],
        )
        answer = await self._calls.call(self._calls.needed_leader(topic.name, index), request, call.user)
        (result,) = answer.responses[0].partition_responses
        check(result.error_code, result.error_message)
        appended_ms: int = result.log_append_time_ms
        return Produced(
            partition=index,
            offset=result.base_offset,
            timestamp_ms=appended_ms if appended_ms >= 0 else record.timestamp_ms,
        )

    def _choose(self, wanted: int | None, key: bytes | None, count: int) -> int:
        if wanted is not None:
            return wanted
        if key is not None:
            return partition_of_key(key, count)
        self._turn += 1
        return self._turn % count


def _bytes(text: str | None, encoding: str, where: str) -> bytes | None:
    if text is None or encoding == "text":
        return None if text is None else text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{where}: not base64") from None
