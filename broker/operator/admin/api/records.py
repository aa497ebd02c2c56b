"""Records of a topic: reading from an offset or time, and following as they arrive.

The setting `admin.records` says who may see the contents of records. A stream that follows a topic ends when its
client leaves or does not read, and there are few of them.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field, StringConstraints

from anabranch.broker.api.handlers.leadership import NO_LEADER
from anabranch.broker.api.handlers.list_offsets import EARLIEST, LATEST
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.cluster import may_read_records
from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Endpoint, Model
from anabranch.broker.operator.admin.api.offsets import Offsets
from anabranch.broker.operator.admin.api.payloads import Decode
from anabranch.broker.operator.admin.api.record_scan import (
    FETCH_BYTES,
    RecordFilter,
    RecordReader,
    RecordRow,
    RecordScan,
)
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
_FROM: Final = r"^(earliest|latest|offset:\d{1,18}|offsets:\d{1,9}=\d{1,18}(,\d{1,9}=\d{1,18})*|time:\d{1,18})$"


class RecordsQuery(Model):
    """Parameters of a read of records."""

    partition: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """By default all, up to a limit."""
    from_: Annotated[str, Field(alias="from"), StringConstraints(pattern=_FROM)] = "latest"
    """`latest`: the last ones that there are; of a stream, those that are to come. `offset:N` and `time:MS` are for all
    partitions, `offsets:0=N,1=N` for those that it names, as `next` of an answer does."""
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 100
    contains: Annotated[str, Field(max_length=1000)] = ""
    """Text that key, value or a header contains."""
    key: Annotated[str, Field(max_length=1000)] | None = None
    decode: Decode = "auto"

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
        return RecordFilter(self.contains.encode(), None if self.key is None else self.key.encode(), self.decode)


class RecordList(Model):
    """Records by time, and where to go on."""

    records: list[RecordRow]
    next: dict[str, int]
    """Offset to go on at, by partition."""
    end: bool
    """True if all partitions were read to their ends."""
    scanned: int
    """Records that were looked at."""
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
        self._reader = RecordReader(calls, offsets, schemas)
        self._watchers = Watchers(TAILS_MAX, "streams of records")
        self.endpoints = [
            Endpoint("GET", "/topics/{topic}/records", "Records.", self._read, RecordList, query=RecordsQuery),
            Endpoint(
                "GET",
                "/topics/{topic}/tail",
                "Records as they arrive, and lines with `heartbeat_ms` between them.",
                self._tail,
                None,
                query=RecordsQuery,
                stream=RecordRow,
                is_limited=False,
            ),
        ]

    def close(self) -> None:
        """Read no more records."""
        self._reader.close()

    async def _read(self, call: Call) -> RecordList:
        query, topic, indexes = self._checked(call)
        position = await self._start(call, topic, indexes, tail=query.limit)
        missing = _missing(indexes, position)
        scan = RecordScan(self._reader, topic, position, query.filter, call.user)
        await scan.run(query.limit, SCAN_BYTES_MAX)
        return RecordList(
            records=sorted(scan.rows, key=_by_time),
            next={str(index): offset for index, offset in sorted(position.items())},
            end=not (scan.unread or scan.failed or missing),
            scanned=scan.scanned,
            errors=[*missing.values(), *scan.errors],
            unreachable=sorted({self._calls.leader_of(topic, index) for index in missing} - {NO_LEADER}),
            more_partitions=query.partition is None and len(indexes) == PARTITIONS_MAX,
        )

    async def _tail(self, call: Call) -> web.StreamResponse:
        query, topic, indexes = self._checked(call)
        with self._watchers.enter():
            position = await self._start(call, topic, indexes, tail=0)
            missing = _missing(indexes, position)
            stream = LineStream(call)
            await stream.begin()
            loop = asyncio.get_running_loop()
            beat_s = -math.inf  # the first line comes at once, whatever arrives
            while not self._node.stopping and await stream.may_go_on():
                scan = RecordScan(self._reader, topic, position, query.filter, call.user)
                await scan.run(LIMIT_MAX, FETCH_BYTES * 4)
                for each in sorted(scan.rows, key=_by_time):
                    await stream.send(each)
                if self._node.serving.topics.get(topic) is None:
                    await stream.send(StreamEnd(error=f"the topic {topic!r} is deleted"))
                    break
                if loop.time() - beat_s >= HEARTBEAT_S:
                    beat_s = loop.time()
                    await stream.send(
                        Heartbeat(heartbeat_ms=self._node.serving.now_ms(), errors=[*missing.values(), *scan.errors])
                    )
                if not scan.unread:
                    await asyncio.sleep(TAIL_POLL_S)
            return await stream.end()

    def _checked(self, call: Call) -> tuple[RecordsQuery, str, Sequence[int]]:
        """Return query, topic and partitions of a request, if its user may read records."""
        if not may_read_records(self._node.serving, call):
            self._audit("denied", call, reason="admin.records")
            raise ApiError(HTTPStatus.FORBIDDEN, "you may not see records here: the setting admin.records says who may")
        query: RecordsQuery = call.query
        topic = topic_named(self._node.serving, call.path["topic"])
        self._audit("records read", call)
        if query.partition is not None and not query.offsets:
            return query, topic.name, [partition_index(topic, str(query.partition))]
        if named := query.offsets:
            indexes = [partition_index(topic, str(index)) for index in sorted(named)]
            return query, topic.name, indexes[:PARTITIONS_MAX]
        return query, topic.name, range(min(len(topic.info.partitions), PARTITIONS_MAX))

    def _audit(self, event: str, call: Call, **fields: str) -> None:
        known = {"listener": "admin", "resource_type": "TOPIC", "resource": call.path["topic"], **fields}
        self._node.serving.audit.record(event, principal=call.user.principal, host=call.user.host, **known)

    async def _start(self, call: Call, topic: str, indexes: Sequence[int], *, tail: int) -> dict[int, int]:
        """Return the first offset for each partition whose leader answers; `latest`: that many before the ends."""
        query: RecordsQuery = call.query
        kind, _, value = query.from_.partition(":")
        starts = await self._at(call, topic, indexes, EARLIEST)
        ends = await self._at(call, topic, indexes, LATEST)
        known = sorted(starts.keys() & ends.keys())
        if not known:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"no leader of topic {topic!r} answers: try again")
        if kind == "offset":
            return {index: min(max(int(value), starts[index]), ends[index]) for index in known}
        if named := query.offsets:
            return {index: min(max(named[index], starts[index]), ends[index]) for index in known}
        if kind == "time":
            found = await self._at(call, topic, indexes, int(value))
            return {index: found[index] if found.get(index, -1) >= 0 else ends[index] for index in known}
        if kind == "earliest":
            return {index: starts[index] for index in known}
        share = -(-tail // len(known))
        return {index: max(starts[index], ends[index] - share) for index in known}

    async def _at(self, call: Call, topic: str, indexes: Sequence[int], timestamp: int) -> Mapping[int, int]:
        found = await self._offsets.at(((topic, index) for index in indexes), timestamp, call.user)
        return {index: offset for (_, index), offset in found.offsets.items()}


def _missing(indexes: Sequence[int], position: Mapping[int, int]) -> Mapping[int, str]:
    """Return the partitions whose place is not known, each with a line to show."""
    return {index: f"partition {index}: its leader has not answered" for index in indexes if index not in position}


def _by_time(row: RecordRow) -> tuple[int, int, int]:
    return row.timestamp_ms, row.partition, row.offset
