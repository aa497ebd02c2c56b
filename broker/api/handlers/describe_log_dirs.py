"""DescribeLogDirs: stored bytes of each partition. A node has one log directory, its data directory."""

import shutil

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.log_dir import log_dir
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import Partition
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
    """Describe those of the requested partitions that this node leads; null requests all."""
    partitions = _requested(serving, request)
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
    total_bytes, usable_bytes = _room(serving)
    result = DescribeLogDirsResult(
        log_dir=log_dir(serving),
        topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in sizes.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=(result,))


def _requested(serving: Serving, request: DescribeLogDirsRequest) -> list[Partition]:
    if request.topics is None:
        return list(serving.topics.led_partitions())
    indexes: dict[str, set[int]] = {}
    for requested in request.topics:
        indexes.setdefault(requested.topic, set()).update(requested.partitions)
    found = [topic for name in indexes if (topic := serving.topics.get(name)) is not None]
    return [
        partition
        for topic in found
        for partition in topic.partitions
        if partition is not None and partition.index in indexes[topic.name]
    ]


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
