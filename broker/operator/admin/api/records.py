"""Records of a topic: pages of them in both directions, and following as they arrive.

A search asks for page after page: each reads a limited number of bytes, and the node keeps nothing between them.

The setting `admin.records` says who may see the contents of records. A stream that follows a topic ends when its
client leaves or does not read, and there are few of them.
"""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from pydantic import AfterValidator, Field, StringConstraints

from anabranch.broker.api.handlers.leadership import NO_LEADER
from anabranch.broker.api.handlers.list_offsets import EARLIEST, LATEST
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.cluster import may_read_records
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model
from anabranch.broker.operator.admin.api.json_path import parse_condition
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.payloads import Decode
from anabranch.broker.operator.admin.api.record_bytes import WholeRecord, read_whole
from anabranch.broker.operator.admin.api.record_filter import RecordFilter, encodings_of_key, parse_header
from anabranch.broker.operator.admin.api.record_scan import FETCH_BYTES, RecordReader, RecordRow, RecordScan
from anabranch.broker.operator.admin.api.schemas import Schemas
from anabranch.broker.operator.admin.api.streams import HEARTBEAT_S, Heartbeat, LineStream, StreamEnd, Watchers
from anabranch.broker.operator.admin.api.topics import partition_index, topic_named

LIMIT_MAX: Final = 500
SCAN_BYTES_MAX: Final = 8 << 20
"""Bytes of batches that one request reads."""
PARTITIONS_MAX: Final = 200
"""Partitions that one request reads."""
TAILS_MAX: Final = 8
"""Streams of records at a time."""
TAIL_POLL_S: Final = 0.5
_OFFSET: Final = re.compile(r"\d{1,18}", re.ASCII)
_FROM: Final = r"^(earliest|latest|offset:\d{1,18}|offsets:\d{1,9}=\d{1,18}(,\d{1,9}=\d{1,18})*|time:\d{1,18})$"


def _checked_json(text: str) -> str:
    if text:
        parse_condition(text)
    return text


class TailQuery(Model):
    """Parameters of a stream of records."""

    partition: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """By default all, up to a limit."""
    from_: Annotated[str, Field(alias="from"), StringConstraints(pattern=_FROM)] = "latest"
    """`latest`: the end. `offset:N` and `time:MS` are for all partitions, `offsets:0=N,1=N` for those that it names, as
    `next` of an answer does."""
    contains: Annotated[str, Field(max_length=1000)] = ""
    """Text that key, value or a header contains."""
    key: Annotated[str, Field(max_length=1000)] | None = None
    """The whole key; an integer or a UUID is also found as the bytes of one."""
    header: Annotated[str, Field(max_length=1000)] = ""
    """`name`, or `name=value`, of a header."""
    json_: Annotated[str, Field(alias="json", max_length=1000), AfterValidator(_checked_json)] = ""
    """Path in the JSON of the value, and perhaps a comparison: `$.items[*].sku == "tea-3"`."""
    decode: Decode = "auto"
    """Format of values."""
    decode_key: Decode = "auto"
    """Format of keys."""

    @property
    def offsets(self) -> dict[int, int]:
        """Offsets by partition, if it names them."""
        kind, _, value = self.from_.partition(":")
        if kind != "offsets":
            return {}
        pairs = (pair.split("=") for pair in value.split(","))
        return {int(index): int(offset) for index, offset in pairs}

    @property
    def filter(self) -> RecordFilter:
        """The filter of the scan."""
        return RecordFilter(
            self.contains.encode(),
            None if self.key is None else encodings_of_key(self.key),
            parse_header(self.header) if self.header else None,
            parse_condition(self.json_) if self.json_ else None,
        )


class RecordsQuery(TailQuery):
    """Parameters of a page of records."""

    direction: Literal["forward", "backward"] | None = None
    """`backward`: the records before `from`. By default so from `latest`, and forward from elsewhere."""
    since_ms: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Earliest timestamp."""
    until_ms: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """End before the first record of this time or later."""
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 100

    @property
    def backward(self) -> bool:
        """True if the records before `from` are wanted."""
        return self.from_ == "latest" if self.direction is None else self.direction == "backward"

    @property
    def filter(self) -> RecordFilter:
        """The filter of the scan."""
        return super().filter._replace(since_ms=self.since_ms)


class RecordList(Model):
    """Records by time, and where to go on."""

    records: list[RecordRow]
    next: dict[str, int]
    """Offset to go on at, in the same direction, by partition."""
    end: bool
    """True if all partitions were read to their ends, or backwards to their beginnings."""
    scanned: int
    """Records that were looked at."""
    remaining: int
    """Offsets that are left to look at."""
    read_bytes: int
    """Bytes of batches that were read for this."""
    errors: list[str]
    """Failures, with partition and reason."""
    unreachable: list[int]
    more_partitions: bool
    """True if the topic has more partitions than are read at once: name one."""


class RecordEndpoints:
    """Endpoints that read records."""

    def __init__(self, node: Node, calls: Calls, offsets: Offsets, schemas: Schemas) -> None:
        self._node = node
        self._calls = calls
        self._offsets = offsets
        self._reader = RecordReader(calls, schemas)
        self._watchers = Watchers(TAILS_MAX, "streams of records")
        self.endpoints = [
            Endpoint("GET", "/topics/{topic}/records", "Records.", self._read, RecordList, query=RecordsQuery),
            Endpoint(
                "GET",
                "/topics/{topic}/partitions/{partition}/records/{offset}",
                "A record, whole, in base64.",
                self._whole,
                WholeRecord,
            ),
            Endpoint(
                "GET",
                "/topics/{topic}/tail",
                "Records as they arrive, and lines with `heartbeat_ms` between them.",
                self._tail,
                None,
                query=TailQuery,
                stream=RecordRow,
                is_limited=False,
            ),
        ]

    def close(self) -> None:
        """Read no more records."""
        self._reader.close()

    async def _read(self, call: Call) -> RecordList:
        query, topic, indexes = self._checked(call)
        bounds = await self._bounds(call, topic, indexes, query.since_ms, query.until_ms)
        position = await self._start(call, topic, bounds)
        missing = _missing(indexes, position)
        limits = {index: each.start if query.backward else each.stop for index, each in bounds.items()}
        scan = self._scan(call, topic, position, limits, backward=query.backward)
        await scan.run(query.limit, SCAN_BYTES_MAX)
        return RecordList(
            records=sorted(scan.rows, key=_by_time),
            next={str(index): offset for index, offset in sorted(position.items())},
            end=not (scan.unread or scan.failed or missing),
            scanned=scan.scanned,
            remaining=scan.remaining,
            read_bytes=scan.read_bytes,
            errors=[*missing.values(), *scan.errors],
            unreachable=sorted({self._calls.leader_of(topic, index) for index in missing} - {NO_LEADER}),
            more_partitions=query.partition is None and len(indexes) == PARTITIONS_MAX,
        )

    async def _whole(self, call: Call) -> WholeRecord:
        topic = self._allowed(call)
        index = partition_index(topic, call.path["partition"])
        if not _OFFSET.fullmatch(call.path["offset"]):
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{call.path['offset']!r} is no offset")
        return await read_whole(self._reader, topic.name, index, int(call.path["offset"]), call.user)

    async def _tail(self, call: Call) -> web.StreamResponse:
        _, topic, indexes = self._checked(call)
        with self._watchers.enter():
            position = await self._start(call, topic, await self._bounds(call, topic, indexes))
            missing = _missing(indexes, position)
            stream = LineStream(call)
            await stream.begin()
            loop = asyncio.get_running_loop()
            beat_s = -math.inf  # the first line comes at once, whatever arrives
            while not self._node.stopping and await stream.may_go_on():
                ends = await self._at(call, topic, list(position), LATEST)
                scan = self._scan(call, topic, position, ends)
                await scan.run(LIMIT_MAX, FETCH_BYTES * 4)
                for each in sorted(scan.rows, key=_by_time):
                    await stream.send(each)
                if self._node.serving.topics.get(topic) is None:
                    await stream.send(StreamEnd(error=f"the topic {topic!r} is deleted"))
                    break
                if loop.time() - beat_s >= HEARTBEAT_S:
                    beat_s = loop.time()
                    errors = [*missing.values(), *_missing(list(position), ends).values(), *scan.errors]
                    await stream.send(Heartbeat(heartbeat_ms=self._node.serving.now_ms(), errors=errors))
                if not scan.unread:
                    await asyncio.sleep(TAIL_POLL_S)
            return await stream.end()

    def _scan(
        self, call: Call, topic: str, position: dict[int, int], limits: Mapping[int, int], *, backward: bool = False
    ) -> RecordScan:
        query: TailQuery = call.query
        decoder = self._reader.decoder(query.decode, query.decode_key)
        return RecordScan(self._reader, topic, position, limits, query.filter, decoder, call.user, backward=backward)

    def _checked(self, call: Call) -> tuple[Any, str, Sequence[int]]:
        """Return query, topic and partitions of a request, if its user may read records."""
        topic = self._allowed(call)
        query: TailQuery = call.query
        if query.partition is not None and not query.offsets:
            return query, topic.name, [partition_index(topic, str(query.partition))]
        if named := query.offsets:
            indexes = [partition_index(topic, str(index)) for index in sorted(named)]
            return query, topic.name, indexes[:PARTITIONS_MAX]
        return query, topic.name, range(min(len(topic.info.partitions), PARTITIONS_MAX))

    def _allowed(self, call: Call) -> Topic:
        """Return the topic of a request, if its user may read records."""
        if not may_read_records(self._node.serving, call):
            self._audit("denied", call, reason="admin.records")
            raise ApiError(HTTPStatus.FORBIDDEN, "you may not see records here: the setting admin.records says who may")
        topic = topic_named(self._node.serving, call.path["topic"])
        self._audit("records read", call)
        return topic

    def _audit(self, event: str, call: Call, **fields: str) -> None:
        known = {"listener": "admin", "resource_type": "TOPIC", "resource": call.path["topic"], **fields}
        self._node.serving.audit.record(event, principal=call.user.principal, host=call.user.host, **known)

    async def _bounds(
        self, call: Call, topic: str, indexes: Sequence[int], since_ms: int | None = None, until_ms: int | None = None
    ) -> dict[int, range]:
        """Return the offsets of each partition whose leader answers, in a range of time."""
        starts = await self._at(call, topic, indexes, EARLIEST)
        ends = await self._at(call, topic, indexes, LATEST)
        known = starts.keys() & ends.keys()
        for time_ms, edges in ((since_ms, starts), (until_ms, ends)):
            if time_ms is not None:
                found = await self._at(call, topic, indexes, time_ms)
                known &= found.keys()
                edges.update({index: found[index] if found[index] >= 0 else ends[index] for index in known})
        if not known:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"no leader of topic {topic!r} answers: try again")
        return {index: range(starts[index], ends[index]) for index in sorted(known)}

    async def _start(self, call: Call, topic: str, bounds: Mapping[int, range]) -> dict[int, int]:
        """Return the offset of each partition at which a scan begins, within its bounds."""
        query: TailQuery = call.query
        kind, _, value = query.from_.partition(":")
        wanted: Mapping[int, int] = query.offsets
        if kind == "time":
            found = await self._at(call, topic, list(bounds), int(value))
            wanted = {index: offset for index, offset in found.items() if offset >= 0}
        elif kind == "offset":
            wanted = dict.fromkeys(bounds, int(value))
        elif kind == "earliest":
            wanted = dict.fromkeys(bounds, 0)
        return {
            index: max(offsets.start, min(wanted.get(index, offsets.stop), offsets.stop))
            for index, offsets in bounds.items()
        }

    async def _at(self, call: Call, topic: str, indexes: Sequence[int], timestamp: int) -> dict[int, int]:
        found = await self._offsets.at(((topic, index) for index in indexes), timestamp, call.user)
        return {index: offset for (_, index), offset in found.offsets.items()}


def _missing(indexes: Sequence[int], position: Mapping[int, int]) -> Mapping[int, str]:
    """Return the partitions whose place is not known, each with a line to show."""
    return {index: f"partition {index}: its leader has not answered" for index in indexes if index not in position}


def _by_time(row: RecordRow) -> tuple[int, int, int]:
    return row.timestamp_ms, row.partition, row.offset
