"""Fetch: responses, their sizes, sessions; and the look-ups of offsets."""

from collections.abc import Sequence
from typing import Any

from anabranch.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.records import Record, build_batch
from tests.differential.script import Script
from tests.support.raw_client import batch_of, produce_request

TIME_MS = 1_700_000_000_000
LARGE = 1 << 24


def _fill(script: Script, topic: str, *batches: bytearray, partition: int = 0) -> None:
    """Produce, one request a batch."""
    for batch in batches:
        response = script.ask(produce_request(topic, [batch], partition=partition), 9)
        assert not response.responses[0].partition_responses[0].error_code, response


def _leader_epoch(script: Script, topic: str) -> int:
    """The epoch of partition 0: where it begins to count is a broker's own."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return int(script.ask(request, 9).topics[0].partitions[0].leader_epoch)


def _partition(index: int = 0, offset: int = 0, bytes_max: int = LARGE, **fields: Any) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max, **fields)


def _fetch(
    *topics: FetchTopic, bytes_max: int = LARGE, min_bytes: int = 0, wait_ms: int = 0, **fields: Any
) -> FetchRequest:
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=bytes_max, topics=topics, **fields)


def _topic(name: str, *partitions: FetchPartition) -> FetchTopic:
    return FetchTopic(topic=name, partitions=partitions or (_partition(),))


def _topic_by_id(topic_id: bytes, *partitions: FetchPartition) -> FetchTopic:
    return FetchTopic(topic_id=topic_id, partitions=partitions or (_partition(),))


def fetch(script: Script) -> None:
    topic_id = script.topic("f-a", 2)
    _fill(script, "f-a", batch_of(b"a", b"b", b"c"), batch_of(b"d"), batch_of(b"e" * 500, b"f"))
    for version in range(4, 13):
        script.call("all", _fetch(_topic("f-a")), version)
    for version in range(13, 19):
        script.call("all by id", _fetch(_topic_by_id(topic_id)), version)
    for offset in (1, 2, 3, 4, 5, 6):
        script.call(f"from {offset}", _fetch(_topic("f-a", _partition(offset=offset))), 5, 12)
    for offset in (7, -1, -2, 2**40):
        script.call(f"out of range {offset}", _fetch(_topic("f-a", _partition(offset=offset))), 4, 12)
        script.call(f"out of range {offset} by id", _fetch(_topic_by_id(topic_id, _partition(offset=offset))), 13, 17)
    for size in (0, 1, 70, 80, 150, 200, 10_000):
        script.call(f"at most {size} bytes", _fetch(_topic("f-a"), bytes_max=size), 4, 12)
        script.call(f"at most {size} bytes of a partition", _fetch(_topic("f-a", _partition(bytes_max=size))), 4, 12)
    script.call("negative bytes", _fetch(_topic("f-a"), bytes_max=-1), 12)
    script.call("negative bytes of a partition", _fetch(_topic("f-a", _partition(bytes_max=-1))), 12)
    script.call("min bytes and no wait", _fetch(_topic("f-a", _partition(offset=6)), min_bytes=1000), 12)
    script.call("min bytes and a short wait", _fetch(_topic("f-a", _partition(offset=6)), min_bytes=1, wait_ms=50), 12)
    script.call("min bytes that are there", _fetch(_topic("f-a"), min_bytes=1, wait_ms=5000), 12)
    script.call("committed only", _fetch(_topic("f-a"), isolation_level=1), 4, 12)
    script.call("isolation level 2", _fetch(_topic("f-a"), isolation_level=2), 12)
    script.call("no topics", _fetch(), 4, 12)
    script.call("no partitions", _fetch(FetchTopic(topic="f-a", partitions=())), 4, 12)
    script.call("unknown topic", _fetch(_topic("f-x")), 4, 6, 12)
    script.call("unknown id", _fetch(_topic_by_id(b"\1" * 16)), 13, 17)
    script.call("unknown partition", _fetch(_topic("f-a", _partition(7))), 4, 12)
    script.call("unknown partition by id", _fetch(_topic_by_id(topic_id, _partition(7))), 13)
    script.call("known and unknown", _fetch(_topic("f-x"), _topic("f-a", _partition(1), _partition(0))), 12)
    epoch = _leader_epoch(script, "f-a")
    for ahead in (0, 1, 100):
        believed = _partition(current_leader_epoch=epoch + ahead)
        script.call(f"leader epoch {ahead} ahead", _fetch(_topic("f-a", believed)), 9, 12)
        last = _partition(offset=3, last_fetched_epoch=epoch + ahead)
        script.call(f"last fetched epoch {ahead} ahead", _fetch(_topic("f-a", last)), 12)
    script.call("the same partition twice", _fetch(_topic("f-a", _partition(0, 3), _partition(0, 4))), 4, 12)


def fetch_several(script: Script) -> None:
    """At least one batch in a response, however small the limit, and the order of partitions."""
    script.topic("fs-a", 3)
    script.topic("fs-b")
    for index in range(3):
        _fill(script, "fs-a", batch_of(b"%d" % index * 300), batch_of(b"x"), partition=index)
    _fill(script, "fs-b", batch_of(b"b" * 300))
    every = (_topic("fs-a", _partition(2), _partition(0), _partition(1)), _topic("fs-b"))
    script.call("in the order asked for", _fetch(*every), 4, 12)
    for size in (1, 300, 400, 500, 800, 1000):
        script.call(f"at most {size} bytes", _fetch(*every, bytes_max=size), 12)
    small = (_topic("fs-a", *[_partition(index, bytes_max=1) for index in (1, 0)]),)
    script.call("one byte a partition", _fetch(*small), 12)
    empty_first = (_topic("fs-a", _partition(0, 2), _partition(1, bytes_max=1)),)
    script.call("an empty one first", _fetch(*empty_first, bytes_max=1), 12)
    broken = (_topic("fs-a", _partition(0, 99), _partition(1)),)
    script.call("one out of range", _fetch(*broken, min_bytes=100_000, wait_ms=20_000), 12)


def fetch_sessions(script: Script) -> None:
    script.topic("fx-a", 2)
    script.topic("fx-b")
    _fill(script, "fx-a", batch_of(b"a"))
    full = (_topic("fx-a", _partition(0), _partition(1)), _topic("fx-b"))

    def session(
        name: str,
        session_id: int,
        epoch: int,
        *topics: FetchTopic,
        forgotten: Sequence[ForgottenTopic] = (),
        versions: Sequence[int] = (12,),
    ) -> Any:
        request = _fetch(*topics, session_id=session_id, session_epoch=epoch, forgotten_topics_data=forgotten)
        return script.call(name, request, *versions)

    found = session("a full request", 0, 0, *full).session_id
    session("nothing new but what was not consumed", found, 1)
    session("consumed", found, 2, _topic("fx-a", _partition(0, 1)))
    session("nothing new", found, 3)
    _fill(script, "fx-a", batch_of(b"b"), partition=1)
    session("new data", found, 4)
    session("again, it was not consumed", found, 5)
    session("one changes its offset", found, 6, _topic("fx-a", _partition(1, 1)))
    session("an epoch that was", found, 3)
    session("an epoch too new", found, 99)
    session("an unknown session", found + 1, 1)
    session("an unknown session to close", found + 1, -1)
    session("forget one", found, 7, forgotten=[ForgottenTopic(topic="fx-b", partitions=[0])])
    _fill(script, "fx-b", batch_of(b"c"))
    session("the forgotten has news", found, 8)
    session("take it back", found, 9, _topic("fx-b"))
    session("an unknown topic joins", found, 10, _topic("fx-x"))
    session("and is reported again", found, 11)
    session("one out of range", found, 12, _topic("fx-a", _partition(0, 50)))
    session("and again", found, 13)
    session("restart it", found, 0, *full)
    session("it is gone", found, 1)
    other = session("a second one", 0, 0, *full).session_id
    session("closed", other, -1, *full)
    session("after the end", other, 1)
    session("session-less", 0, -1, *full, versions=(7, 12))
    session("incremental without a session", 0, 5, *full)
    mine = session("named", 0, 0, _topic("fx-a")).session_id
    by_id = _topic_by_id(b"\2" * 16)
    session("switching to ids", mine, 1, by_id, versions=(13,))


def list_offsets(script: Script) -> None:
    script.topic("lo-a")
    script.topic("lo-empty")
    for batch in (
        build_batch([Record(None, b"v", TIME_MS + at) for at in (0, 10, 20)]),
        build_batch([Record(None, b"v", TIME_MS + at) for at in (50, 40, 30)]),
        build_batch([Record(None, b"v", TIME_MS + at) for at in (25, 45)]),
    ):
        _fill(script, "lo-a", batch)

    def ask(name: str, timestamp: int, *versions: int, topic: str = "lo-a", isolation: int = 0, **fields: int) -> None:
        partition = ListOffsetsPartition(partition_index=fields.pop("index", 0), timestamp=timestamp, **fields)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
        )
        script.call(name, request, *versions)

    names = {
        -1: "latest",
        -2: "earliest",
        -3: "largest time",
        -4: "earliest local",
        -5: "latest tiered",
        -6: "pending",
        -7: "unknown special",
    }
    for special, name in names.items():
        ask(name, special, *((1, 3) if special >= -2 else ()), 4, 6, 7, 8, 9, 10, 11)
        ask(f"{name} of an empty topic", special, 7, 11, topic="lo-empty")
    for timestamp in (0, TIME_MS - 1, TIME_MS, TIME_MS + 5, TIME_MS + 10, TIME_MS + 21, TIME_MS + 45, TIME_MS + 50):
        ask(f"at {timestamp - TIME_MS if timestamp else 0}", timestamp, 1, 5, 9)
    ask("past the end", TIME_MS + 51, 1, 9)
    ask("far past the end", 2**62, 9)
    ask("by time in an empty topic", TIME_MS, 9, topic="lo-empty")
    ask("latest committed", -1, 2, 9, isolation=1)
    ask("by time, committed", TIME_MS + 10, 2, 9, isolation=1)
    ask("unknown topic", -1, 1, 5, 9, topic="lo-x")
    ask("unknown partition", -1, 1, 9, index=5)
    epoch = _leader_epoch(script, "lo-a")
    for ahead in (0, 1, 100):
        ask(f"leader epoch {ahead} ahead", -1, 4, 9, current_leader_epoch=epoch + ahead)
    twice = [ListOffsetsPartition(partition_index=0, timestamp=special) for special in (-1, -2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="lo-a", partitions=twice)])
    script.call("a partition twice", request, 1, 9)
    script.call("no topics", ListOffsetsRequest(replica_id=-1), 1, 9)


def delete_records(script: Script) -> None:
    script.topic("dr-a", 2)
    script.topic("dr-compact", cleanup_policy="compact")
    _fill(script, "dr-a", batch_of(b"a", b"b", b"c"), batch_of(b"d"), batch_of(b"e"))

    def delete(name: str, offset: int, *versions: int, topic: str = "dr-a", index: int = 0) -> None:
        partition = DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=10_000
        )
        script.call(name, request, *versions)

    delete("up to 1", 1, 0)
    delete("up to 1 again", 1, 1)
    delete("before the start", 0, 2)
    delete("past the end", 6, 0, 2)
    delete("negative", -2, 2)
    delete("unknown topic", 0, 0, 2, topic="dr-x")
    delete("unknown partition", 0, 2, index=9)
    delete("compacted", 0, 2, topic="dr-compact")
    delete("an empty partition", -1, 2, index=1)
    script.call("read what is gone", _fetch(_topic("dr-a", _partition(offset=0))), 12)
    script.call("read inside the first batch", _fetch(_topic("dr-a", _partition(offset=1))), 12)
    for special in (-1, -2, -4, TIME_MS):
        partition = ListOffsetsPartition(partition_index=0, timestamp=special)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="dr-a", partitions=[partition])])
        script.call(f"look up {special}", request, 9)
    script.topic("dr-late")
    late = [Record(None, b"v", TIME_MS + at) for at in (100, 1, 2)]
    _fill(script, "dr-late", build_batch(late), batch_of(b"x", timestamp_ms=TIME_MS + 50))
    delete("the late record", 1, 2, topic="dr-late")
    partition = ListOffsetsPartition(partition_index=0, timestamp=TIME_MS + 20)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="dr-late", partitions=[partition])])
    script.call("look up what was later", request, 9)
    delete("up to the high watermark", -1, 2)
    script.call("nothing is left", _fetch(_topic("dr-a", _partition(offset=5))), 12)
    script.call("no topics", DeleteRecordsRequest(timeout_ms=1000), 2)


def offset_for_leader_epoch(script: Script) -> None:
    script.topic("le-a")
    _fill(script, "le-a", batch_of(b"a", b"b", b"c"))

    def ask(name: str, epoch: int, *versions: int, current: int = -1, topic: str = "le-a", index: int = 0) -> None:
        partition = OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
        topics = [OffsetForLeaderTopic(topic=topic, partitions=[partition])]
        script.call(name, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), *versions)

    epoch = _leader_epoch(script, "le-a")
    ask("the epoch", epoch, 2, 3, 4)
    ask("a later epoch", epoch + 50, 3, 4)
    ask("epoch -1", -1, 4)
    ask("its epoch is current", epoch, 4, current=epoch)
    ask("a later epoch is current", epoch, 4, current=epoch + 50)
    ask("unknown topic", 0, 4, topic="le-x")
    ask("unknown partition", 0, 4, index=9)


SCRIPTS = (fetch, fetch_several, fetch_sessions, list_offsets, delete_records, offset_for_leader_epoch)
