"""DescribeLogDirs: stored bytes of each partition. A node has one log directory, its data directory.

A replica has nothing stored. One that follows a partition lists it with the offsets that it lacks.
"""

import shutil
from collections.abc import Container, Iterator, Mapping

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.log_dir import log_dir
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.tail_partition import TailPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from anabranch.s3stream.errors import StorageError

UNKNOWN_BYTES = -1
"""Size of an object store, which has none, or of a disk that is away."""


async def handle(serving: Serving, request: DescribeLogDirsRequest, _exchange: Exchange) -> DescribeLogDirsResponse:
    """Describe those of the requested partitions that this node leads or follows; null requests all."""
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for requested in request.topics:
            wanted.setdefault(requested.topic, set()).update(requested.partitions)
    partitions = _led(serving, wanted)
    try:
        committed = await serving.catalog.stream_bytes([partition.stream.stream_id for partition in partitions])
    except StorageError:
        return DescribeLogDirsResponse(
            results=(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir(serving)),)
        )
    sizes: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in partitions:
        stream = partition.stream
        size = committed.get(stream.stream_id, 0) + stream.uncommitted_bytes
        described = DescribeLogDirsPartition(partition_index=partition.index, partition_size=size)
        sizes.setdefault(partition.topic, []).append(described)
    for name, tail in _followed(serving, wanted):
        described = DescribeLogDirsPartition(partition_index=tail.led.index, offset_lag=tail.lag)
        sizes.setdefault(name, []).append(described)
    total_bytes, usable_bytes = _room(serving)
    result = DescribeLogDirsResult(
        log_dir=log_dir(serving),
        topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in sizes.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=(result,))


def _led(serving: Serving, wanted: Mapping[str, Container[int]] | None) -> list[Partition]:
    if wanted is None:
        return list(serving.topics.led_partitions())
    found = [topic for name in wanted if (topic := serving.topics.get(name)) is not None]
    return [
        partition
        for topic in found
        for partition in topic.partitions
        if partition is not None and partition.index in wanted[topic.name]
    ]


def _followed(serving: Serving, wanted: Mapping[str, Container[int]] | None) -> Iterator[tuple[str, TailPartition]]:
    for tail in serving.replicas.tails:
        topic, index = serving.topics.get(tail.led.topic_id), tail.led.index
        if topic is None or topic.partitions[index] is not None:  # deleted, or led here since
            continue
        if wanted is None or index in wanted.get(topic.name, ()):
            yield topic.name, tail


def _room(serving: Serving) -> tuple[int, int]:
    """Return total and usable bytes of the objects' file system, if they are in one and it is there."""
    if serving.settings.objects.store != "local":
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    try:
        usage = shutil.disk_usage(serving.settings.objects_path)
    except OSError:  # the disk is not mounted: the store waits for it
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return usage.total, usage.free


def refusal(_request: DescribeLogDirsRequest, _version: int) -> DescribeLogDirsResponse:
    """Return the answer to a client that is not authorized."""
    return DescribeLogDirsResponse(error_code=CLUSTER_DENIED)


API = declare(DescribeLogDirsRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE, refusal), relayed=True)
