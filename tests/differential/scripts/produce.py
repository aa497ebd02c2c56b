"""Produce: valid batches and all kinds of invalid ones, and the resulting log."""

import struct
from collections.abc import Sequence

from crc32c import crc32c

from anabranch.protocol.batch import write_crc
from anabranch.protocol.compression import Compression
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from tests.differential.script import Script
from tests.support.frames import FAMILIES, as_batch
from tests.support.raw_client import batch_of

TIME_MS = 1_700_000_000_000
RECORD_BYTES = "max.decompressed.message.bytes"
Data = bytes | bytearray | None


def _request(
    topic: str, *data: Data, acks: int = -1, partition: int = 0, transactional_id: str | None = None
) -> ProduceRequest:
    partitions = [
        PartitionProduceData(index=partition, records=None if records is None else bytes(records)) for records in data
    ]
    topics = [TopicProduceData(name=topic, partition_data=partitions)]
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics, transactional_id=transactional_id)


def _by_id(topic_id: bytes, *data: Data) -> ProduceRequest:
    partitions = [
        PartitionProduceData(index=0, records=None if records is None else bytes(records)) for records in data
    ]
    topics = [TopicProduceData(topic_id=topic_id, partition_data=partitions)]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics)


def _fetch(topic: str, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 24)
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )


def _patched(batch: bytearray, position: int, layout: str, value: int, *, reseal: bool = True) -> bytearray:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    if reseal:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return changed


def _garbled(batch: bytearray, position: int) -> bytearray:
    changed = bytearray(batch)
    changed[position:] = b"\xff" * (len(batch) - position)
    write_crc(changed)
    return changed


def _keyed(*pairs: tuple[bytes | None, bytes | None]) -> bytearray:
    return build_batch([Record(key, value, TIME_MS) for key, value in pairs])


def produce_good(script: Script) -> None:
    topic_id = script.topic("pg-a", 2)
    for version in range(3, 13):
        script.call("one batch", _request("pg-a", batch_of(b"v%d" % version)), version)
    script.call("by id", _by_id(topic_id, batch_of(b"by id")), 13)
    for acks in (1, -1):
        script.call(f"acks {acks}", _request("pg-a", batch_of(b"x"), acks=acks), 9)
    script.ask_nothing(_request("pg-a", batch_of(b"acks 0"), acks=0), 9)
    script.call("after acks 0", _request("pg-a", batch_of(b"y")), 9)
    records = [
        Record(b"key", b"value", TIME_MS, (("h", b"1"), ("h", None), ("", b""))),
        Record(None, None, TIME_MS + 5),
    ]
    script.call("keys, headers and nulls", _request("pg-a", build_batch(records)), 9)
    for codec in Compression:
        batch = batch_of(b"compressible " * 50, b"more " * 50, compression=codec)
        script.call(f"compressed as {codec.name}", _request("pg-a", batch), 3, 7, 9)
    script.call("a base offset of the client's", _request("pg-a", batch_of(b"x", base_offset=77)), 9)
    script.call("a leader epoch of the client's", _request("pg-a", batch_of(b"x", leader_epoch=9)), 9)
    script.call("timestamps out of order", _request("pg-a", _out_of_order()), 9)
    script.call("no timestamps", _request("pg-a", build_batch([Record(None, b"x", -1)])), 9)
    both = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name="pg-a",
                partition_data=[PartitionProduceData(index=index, records=bytes(batch_of(b"p"))) for index in (1, 0)],
            ),
            TopicProduceData(
                name="pg-x", partition_data=[PartitionProduceData(index=0, records=bytes(batch_of(b"p")))]
            ),
        ],
    )
    script.call("several partitions and topics", both, 9)
    script.call("no topics", ProduceRequest(acks=-1, timeout_ms=5000), 3, 9)
    script.call("no partitions", _request("pg-a"), 9)
    script.call(
        "timeout zero", ProduceRequest(acks=-1, timeout_ms=0, topic_data=_request("pg-a", batch_of(b"z")).topic_data), 9
    )
    script.call("all of it", _fetch("pg-a"), 12)


def _out_of_order() -> bytearray:
    return build_batch([Record(None, b"%d" % at, TIME_MS + at) for at in (5, 0, 9, 3)])


def produce_bad(script: Script) -> None:
    topic_id = script.topic("pb-a")
    good = batch_of(b"one", b"two")
    script.call("unknown topic", _request("pb-x", good), 3, 9, 12)
    script.call("unknown partition", _request("pb-a", good, partition=7), 3, 9, 12)
    script.call("negative partition", _request("pb-a", good, partition=-1), 9)
    script.call("unknown id", _by_id(b"\1" * 16, good), 13)
    script.call("zero id", _by_id(bytes(16), good), 13)
    for acks in (2, -2, 100):
        script.call(f"acks {acks}", _request("pb-a", good, acks=acks), 3, 9, 12)
    first: dict[str, Data] = {
        "crc wrong": _patched(good, 17, ">I", 12345, reseal=False),
        "payload flipped": _patched(good, len(good) - 3, ">B", 0xAA, reseal=False),
        "magic 0": _patched(good, 16, ">b", 0),
        "magic 1": _patched(good, 16, ">b", 1),
        "magic 3": _patched(good, 16, ">b", 3),
        "magic -1": _patched(good, 16, ">b", -1),
        "length too long": _patched(good, 8, ">i", len(good)),
        "length too short": _patched(good, 8, ">i", len(good) - 20),
        "length less than a header": _patched(good, 8, ">i", 20),
        "length negative": _patched(good, 8, ">i", -5, reseal=False),
        "cut short": good[:-4],
        "only a length": good[:12],
        "three bytes": good[:3],
        "no bytes": b"",
        "garbage": b"garbage " * 20,
        "zeros": bytes(100),
    }
    for what, data in first.items():
        script.call(what, _request("pb-a", data), 3, 9)
    counts: dict[str, Data] = {
        "count too small": _patched(good, 57, ">i", 1),
        "count too large": _patched(good, 57, ">i", 3),
        "count zero": _patched(good, 57, ">i", 0),
        "count negative": _patched(good, 57, ">i", -1),
        "last offset delta too small": _patched(good, 23, ">i", 0),
        "last offset delta too large": _patched(good, 23, ">i", 5),
        "last offset delta negative": _patched(good, 23, ">i", -1),
        "control bit": _patched(good, 21, ">h", 0x20),
        "unknown codec 5": _patched(good, 21, ">h", 5),
        "unknown codec 7": _patched(good, 21, ">h", 7),
        "unknown attribute bits": _patched(good, 21, ">h", 0x700),
        "transactional bit without id": _patched(good, 21, ">h", 0x10),
        "record offsets with gaps": _gaps(),
    }
    for what, data in counts.items():
        script.call(what, _request("pb-a", data), 9)
    script.topic("pb-inside")
    inside: dict[str, Data] = {
        "count and delta too large": _patched(_patched(good, 57, ">i", 3), 23, ">i", 2),
        "count and delta too small": _patched(_patched(good, 57, ">i", 1), 23, ">i", 0),
        "gzip without gzip": _patched(good, 21, ">h", 1),
        "zstd without zstd": _patched(good, 21, ">h", 4),
        "garbage behind the first record": _garbled(batch_of(b"first", b"second"), 61 + 12),
        "garbage behind gzip's head": _garbled(batch_of(b"first", compression=Compression.GZIP), 61 + 10),
        "log append time bit": _patched(good, 21, ">h", 0x8),
    }
    for what, data in inside.items():
        script.call(what, _request("pb-inside", data), 9)
    script.call("two batches", _request("pb-a", good + good), 3, 9)
    script.call("a good batch and rubbish", _request("pb-a", good + b"rubbish"), 9)
    script.topic("pb-twice")
    script.call("the same partition twice", _request("pb-twice", good, good), 9)
    script.call("by id with no bytes", _by_id(topic_id, b""), 13)
    script.call("zstd in version 6", _request("pb-a", batch_of(b"z", compression=Compression.ZSTD)), 6)
    script.call("a transactional id", _request("pb-a", good, transactional_id="pb-txn"), 9)
    script.call("all of it", _fetch("pb-a"), 12)


def produce_frames(script: Script) -> None:
    """Frames that not all readers can read: a few of those whose verdicts are recorded."""
    script.topic("pf-a")
    chosen = {
        "LZ4 of linked blocks": ("lz4: large: linked", 0),
        "LZ4 with a wrong checksum of its header": ("lz4: header checksum wrong", 1),
        "LZ4 with its size": ("lz4: flags", 0x68),
        "LZ4 with a dictionary": ("lz4: flags", 0x61),
        "LZ4 without an end": ("lz4: cut", 40),
        "LZ4 and other bytes": ("lz4: tail", 3),
        "snappy's framing format": ("snappy: framing format", 0),
        "snappy in two streams": ("snappy: xerial, several", 0),
        "zstd with a dictionary": ("zstd: descriptor", 0x21),
        "zstd of a large window": ("zstd: window", 0x90),
        "zstd behind a frame to skip": ("zstd: skippable", 1),
        "gzip and other bytes": ("gzip: tail", 3),
        "gzip in two members": ("gzip: several members", 0),
        "gzip without an end": ("gzip: cut", 40),
    }
    for what, (name, number) in chosen.items():
        family = FAMILIES[name]
        script.call(what, _request("pf-a", as_batch(family.codec, family.frames[number], like=family.like)), 9)
    script.call("all of it", _fetch("pf-a"), 12)


def _gaps() -> bytearray:
    return build_batch([Record(None, b"x", TIME_MS, offset=offset) for offset in (0, 2, 5)])


def produce_limits(script: Script) -> None:
    script.topic("pl-small", max_message_bytes="1000")
    for size in (900, 920, 930, 940, 1000, 2000):
        script.call(f"value of {size} bytes", _request("pl-small", batch_of(b"x" * size)), 9)
    script.topic("pl-default")
    for size in (1_048_500, 1_048_588, 1_100_000):
        script.call(f"value of {size} bytes", _request("pl-default", batch_of(b"x" * size)), 9)
    script.topic("pl-times", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    script.call("too old", _request("pl-times", batch_of(b"x")), 3, 8, 9)
    script.call("too new", _request("pl-times", batch_of(b"x", timestamp_ms=4_000_000_000_000)), 8, 9)
    mixed = build_batch([Record(None, b"x", 4_000_000_000_000), Record(None, b"y", TIME_MS)])
    script.call("both", _request("pl-times", mixed), 9)
    script.call("no timestamp", _request("pl-times", build_batch([Record(None, b"x", -1)])), 9)
    script.topic("pl-append", message_timestamp_type="LogAppendTime")
    script.call("log append time", _request("pl-append", batch_of(b"x", b"y")), 3, 9)
    script.call(
        "log append time, compressed", _request("pl-append", batch_of(b"x", b"y", compression=Compression.GZIP)), 9
    )
    script.call("what log append time has made of it", _fetch("pl-append"), 12)
    script.topic("pl-compact", cleanup_policy="compact")
    script.call("without a key", _request("pl-compact", batch_of(b"x")), 3, 8, 9)
    script.call("with keys", _request("pl-compact", _keyed((b"k", b"v"), (b"k", None))), 9)
    script.call(
        "one of them without a key", _request("pl-compact", _keyed((b"k", b"v"), (None, b"v"), (None, b"w"))), 9
    )
    compressed = build_batch([Record(None, b"v", TIME_MS)], compression=Compression.LZ4)
    script.call("compressed, without a key", _request("pl-compact", compressed), 9)
    script.topic("pl-zstd", compression_type="zstd")
    script.call("to be recompressed", _request("pl-zstd", batch_of(b"x" * 100)), 9)
    script.topic("pl-plain", compression_type="uncompressed")
    script.call("to be uncompressed", _request("pl-plain", batch_of(b"x" * 100, compression=Compression.ZSTD)), 9)
    script.call("uncompressed", _fetch("pl-plain"), 12)


def produce_large_records(script: Script) -> None:
    script.topic("lr", max_decompressed_message_bytes="100")
    for size in (93, 94, 95):
        for codec in Compression:
            batch = batch_of(b"a", b"x" * size, compression=codec)
            script.call(f"value of {size} bytes as {codec.name.lower()}", _request("lr", batch), 9)
    script.topic("lr-compact", max_decompressed_message_bytes="100", cleanup_policy="compact")
    keyless = build_batch([Record(None, b"a", TIME_MS), Record(b"k", b"x" * 200, TIME_MS)], compression=Compression.LZ4)
    script.call("one without a key before a large one", _request("lr-compact", keyless), 9)
    script.topic("lr-zstd", max_decompressed_message_bytes="100", compression_type="zstd")
    script.call("large, to be compressed", _request("lr-zstd", batch_of(b"x" * 200)), 9)
    script.call("large, to be recompressed", _request("lr-zstd", batch_of(b"x" * 200, compression=Compression.GZIP)), 9)
    script.call("what was accepted", _fetch("lr"), 12)
    script.call("described", _describe_size("lr"), 4)
    other = [AlterableConfig(name=RECORD_BYTES, config_operation=0, value="1000")]
    script.call("the default of brokers", _alter_broker(other), 1)
    script.topic("lr-default")
    script.until(_describe_size("lr-default"), 4, lambda answer: answer.results[0].configs[0].value == "1000")
    script.call("large for the default", _request("lr-default", batch_of(b"x" * 2000, compression=Compression.GZIP)), 9)
    none = [AlterableConfig(name=RECORD_BYTES, config_operation=1, value=None)]
    script.call("no default of brokers", _alter_broker(none), 1)
    script.until(_describe_size("lr-default"), 4, lambda answer: answer.results[0].configs[0].value != "1000")


def _describe_size(topic: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=[RECORD_BYTES])
    return DescribeConfigsRequest(resources=[resource], include_synonyms=True)


def _alter_broker(configs: Sequence[AlterableConfig]) -> IncrementalAlterConfigsRequest:
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource])


def produce_idempotent(script: Script) -> None:
    script.topic("pi-a", 2)
    new = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    script.until(new, 3, lambda answer: not answer.error_code)  # Apache Kafka fetches its first block of ids
    producer = script.call("an id", new, 0, 1, 2, 3, 4, 5).producer_id

    def batch(sequence: int, *values: bytes, epoch: int = 0, producer_id: int = producer) -> bytearray:
        return batch_of(*(values or (b"v",)), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)

    def send(what: str, *batches: bytearray, versions: Sequence[int] = (9,)) -> ProduceResponse | None:
        answer: ProduceResponse | None = script.call(what, _request("pi-a", *batches), *versions)
        return answer

    send("first", batch(0))
    send("duplicate of the first", batch(0), versions=(3, 9, 12))
    send("second", batch(1, b"a", b"b"))
    send("duplicate of the second", batch(1, b"a", b"b"))
    send("part of the second", batch(1))
    send("second longer", batch(1, b"a", b"b", b"c"))
    send("a gap", batch(4), versions=(3, 9))
    for sequence in range(3, 9):
        send(f"sequence {sequence}", batch(sequence))
    for sequence in (8, 7, 6, 5, 4, 3, 1, 0):
        send(f"again sequence {sequence}", batch(sequence, *([b"a", b"b"] if sequence == 1 else [b"v"])))
    send("epoch 1 from 5", batch(5, epoch=1))
    send("epoch 1 from 0", batch(0, epoch=1))
    send("epoch 0 again", batch(9), versions=(3, 9, 11, 12))
    send("epoch 1 goes on", batch(1, epoch=1))
    send("epoch 3 from 0", batch(0, epoch=3))
    unknown = producer + 1_000_000
    send("unknown producer in the middle", batch(100, producer_id=unknown))
    send("and its next", batch(101, producer_id=unknown))
    send("and a gap", batch(103, producer_id=unknown))
    send("without sequence", batch(-1, producer_id=unknown))
    send("with a negative sequence", batch(-2, producer_id=unknown))
    send("with a negative epoch", batch(0, epoch=-1, producer_id=unknown))
    send("two of it at once", batch(1, epoch=3) + batch(2, epoch=3))
    other = producer + 2_000_000
    send("up to the largest sequence", batch(2**31 - 2, b"a", b"b", producer_id=other))
    send("wrapped around", batch(0, producer_id=other))
    send("wraps inside", batch(2**31 - 2, *[b"w"] * 5, producer_id=producer + 3_000_000))
    send("after that", batch(3, producer_id=producer + 3_000_000))
    script.call("the other partition", _request("pi-a", batch(0), partition=1), 9)
    script.call("all of it", _fetch("pi-a"), 12)


def init_producer_id(script: Script) -> None:
    def request(
        transactional_id: str | None = None, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
    ) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    script.until(request(), 3, lambda answer: not answer.error_code)
    script.call("new", request(), 0, 3, 5)
    script.call("timeout zero", request(timeout_ms=0), 3)
    script.call("timeout negative", request(timeout_ms=-1), 3)
    script.call("an id without epoch", request(producer_id=5), 3, 5)
    script.call("an epoch without id", request(epoch=5), 3, 5)
    script.call("id and epoch", request(producer_id=5, epoch=5), 3, 5)
    script.call("id and negative epoch", request(producer_id=5, epoch=-2), 3)
    script.call("empty transactional id", request(""), 0, 3, 5)


SCRIPTS = (
    produce_good,
    produce_bad,
    produce_frames,
    produce_limits,
    produce_large_records,
    produce_idempotent,
    init_producer_id,
)
