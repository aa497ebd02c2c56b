"""AlterReplicaLogDirs (KIP-113): only the current directory is accepted, since a node has one directory."""

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.log_dir import log_dir
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(serving: Serving, request: AlterReplicaLogDirsRequest, _exchange: Exchange) -> AlterReplicaLogDirsResponse:
    """Answer each partition once; of repeated entries the last counts."""
    codes: dict[str, dict[int, ErrorCode]] = {}
    for requested in request.dirs:
        for topic in requested.topics:
            for index in topic.partitions:
                codes.setdefault(topic.name, {})[index] = _code(serving, requested.path, topic.name, index)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in partitions.items()
                ],
            )
            for name, partitions in codes.items()
        ]
    )


def _code(serving: Serving, path: str, topic: str, index: int) -> ErrorCode:
    if path != log_dir(serving):
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        serving.topics.partition(topic, index)
    except KafkaError as error:
        # As in Kafka, which has kept the code of its first version for replicas on other nodes.
        is_elsewhere = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code
    return ErrorCode.NONE


def refusal(request: AlterReplicaLogDirsRequest, _version: int) -> AlterReplicaLogDirsResponse:
    """Return the answer to a client that is not authorized."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=CLUSTER_DENIED)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


API = declare(AlterReplicaLogDirsRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal))
