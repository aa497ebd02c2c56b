"""The native lane of Produce, if this node may use it.

The lane takes a frame whose every batch is of the usual kind, and does what dispatcher, handler, partition and stream
would do with it (`native/src/lane.rs`). It returns False, having changed nothing, for any other frame. What stands
between the dispatcher and the handler on some nodes (guards, traces, tests that let a handler fail) has no place in it,
so such nodes have none; while quotas are active, `Metering` does not use it.
"""

from collections.abc import Callable

import structlog

from anabranch.broker.api.declaration import Handlers
from anabranch.broker.api.handlers import produce
from anabranch.broker.api.handlers.produce_response import build_response, failure
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange
from anabranch.native import native_part
from anabranch.protocol.codec import decode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.produce import KEY, ProduceRequest
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.interface import Buffer, WalError, WriteAheadLog
from anabranch.wal.log import DeltaWal

_log = structlog.get_logger("requests")
Take = Callable[[Connection, Buffer], bool]


def make_lane(serving: Serving, wal: WriteAheadLog, handlers: Handlers) -> Take | None:
    """Return the lane; None if there is no native part, or if the node's Produce is not the plain one on a device."""
    module = native_part().module
    if module is None or handlers[KEY] != produce.API or not isinstance(wal, DeltaWal):
        return None

    journal = serving.storage.journal

    def abort(connection: Connection, error: Exception, is_torn: bool) -> None:  # noqa: FBT001 - called by position
        """Close a connection whose request met a bug half-way.

        Other clients' requests go on, unless the log may have a batch that its stream does not know. The next batch
        would be appended with the same offsets, so the storage stops, and a recovery decides.
        """
        if is_torn:
            journal.stop(StorageStopped(f"a batch was appended in part: {error}"))
        serving.request_failures += 1
        _log.error("request failed", api=produce.API.api.name, exc_info=error)
        connection.refuse(f"internal error in {produce.API.api.name}")

    take: Take = module.ProduceLane(serving.topics, journal, serving.requests, answer_failed, abort).take
    return take


def answer_failed(exchange: Exchange, frame: Buffer, error: WalError) -> None:
    """Answer a request whose batches were appended, but not written: the log has failed with `error`."""
    request, _ = decode(ProduceRequest, frame, exchange.api_version, exchange.header_end)
    work = [(topic, data) for topic in request.topic_data for data in topic.partition_data]
    results = [failure(data.index, ErrorCode.KAFKA_STORAGE_ERROR, str(error)) for _, data in work]
    exchange.complete(build_response(work, results, (), exchange.listener, error))
