"""Produce: append record batches, and answer when they are durable.

A request needs no task. Its batches are appended when it arrives, and the completion of the last batch's WAL block
sends the answer; blocks complete in order, so it covers the batches before. A coroutine continues the request only if
the storage is full, this node is still opening a partition, one has to be added to a transaction first, or records must
be inspected in a thread.
Meanwhile the connection starts no other request, so that batches keep the order of requests.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Refused, Verdict, split, topic_error
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.api.handlers.produce_response import (
    BatchItem,
    build_response,
    code_of,
    failure,
    refusal,
    refuse_all,
)
from anabranch.broker.api.handlers.produce_transaction import ProduceTransaction
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import AppendResult, InspectionWait, Partition, VerificationWait
from anabranch.broker.kafka.partitions.record_checks import PreparedBatch
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.topics.names import INTERNAL_TOPICS
from anabranch.broker.kafka.topics.parking import parked_until_s
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange, RefusedBatch
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError
from anabranch.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from anabranch.s3stream.errors import LogStalled, StorageError, StorageFull, StreamSealed
from anabranch.wal.interface import Durable, WalError

TOPIC_IDS_SINCE = 13
LEADERS_SINCE = 10
"""First version in which the answer names the leader of a partition that is led elsewhere (KIP-951)."""
SEALED_S = 3.0
"""Longest wait for the end of a partition's move to another node."""
SENT_BEHIND_MAX = 4
"""Batches of an idempotent producer that may follow one without its answer."""
REFUSED_PARTITIONS_MAX = 1000
_SENT_AGAIN = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS})
"""Refusals after which a client sends the batch again, and those that it has sent behind it."""


class _MoveWait(NamedTuple):
    """A batch that waits for the end of its partition's move to another node."""

    partition: Partition


class _OpeningWait(NamedTuple):
    """A batch that waits until this node has opened its partition."""

    topic: Topic
    partition_index: int


class _RoomWait(NamedTuple):
    """A batch that waits for room in the storage."""

    needs_flush: bool
    """True if there was none although clients were not asked to wait: the batch needs more room than is left."""


_Wait = InspectionWait | VerificationWait | _MoveWait | _OpeningWait | _RoomWait
"""Reason to wait of a batch. It is not appended yet, and no batch behind it is."""


def handle(
    serving: Serving, request: ProduceRequest, exchange: Exchange
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    """Append the batches, and answer when they are durable; with acks=0 there is no answer."""
    if not -1 <= request.acks <= 1:
        return refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    call = _ProduceCall(serving, request, exchange)
    wait = call.append_all()
    if wait is not None:
        return call.wait_and_finish(wait, exchange, answer=request.acks != 0)
    if request.acks == 0:
        exchange.complete(None)
        call.close_if_failed(exchange)
        return None
    durable = call.durable
    if durable is None:
        return call.response()
    durable.add_done_callback(lambda error: exchange.complete(call.response(error)))
    return None


class _ProduceCall:
    """Progress of one Produce request."""

    __slots__ = (
        "_api_version",
        "_connection",
        "_leaders",
        "_next",
        "_parked_until_s",
        "_prepared",
        "_results",
        "_sealed_until_s",
        "_serving",
        "_transaction",
        "_work",
        "durable",
    )

    def __init__(self, serving: Serving, request: ProduceRequest, exchange: Exchange) -> None:
        self._serving = serving
        self._api_version = exchange.api_version
        self._connection = exchange.connection
        self._work = _last_of_each([(topic, data) for topic in request.topic_data for data in topic.partition_data])
        transactional_id = request.transactional_id
        self._transaction = (
            None if transactional_id is None else ProduceTransaction(serving, transactional_id, exchange.api_version)
        )
        self._prepared: PreparedBatch | None = None
        """Result of the inspection of the current batch."""
        self._sealed_until_s: float | None = None
        """End of the time for which the request waits for moves; None if it has not begun."""
        self._parked_until_s: float | None = None
        """End of the time for which it waits for partitions that this node is opening; None if it has not begun."""
        self._next = 0
        self._results: list[PartitionProduceResponse] = []
        self._leaders: dict[int, Member] = {}
        """Nodes that results name as leaders."""
        self.durable: Durable | None = None
        """Completion of the last batch appended."""

    # appending

    def append_all(self) -> _Wait | None:
        """Append until all batches are done, or return what the next one waits for: call again afterwards."""
        work = self._work
        while self._next < len(work):
            _, data = work[self._next]
            outcome = self._append(data)
            if not isinstance(outcome, PartitionProduceResponse):
                return outcome
            self._answer(outcome)
        return None

    def _append(self, data: PartitionProduceData) -> PartitionProduceResponse | _Wait:
        """Append the current batch. Returns its answer, or what it waits for."""
        try:
            partition = self._serving.topics.partition(*self._place())
        except KafkaError as error:
            opening = self._opening() if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None
            return opening or failure(data.index, error.code, error.message)
        if partition.topic in INTERNAL_TOPICS:
            problem = f"Cannot append to internal topic {partition.topic}"
            return failure(data.index, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        try:
            appended = partition.append(
                data.records,
                self._api_version,
                None if self._transaction is None else self._transaction.verify,
                self._prepared,
                is_behind=bool(refused := self._connection.refused_batches) and self._place() in refused,
            )
        except KafkaError as error:
            return refusal(data.index, error, partition.log_start_offset)
        except StorageError as error:
            return self._refused_by_storage(error, partition)
        if not isinstance(appended, AppendResult):
            return appended
        self._connection.traffic.note_received(partition.stream.stream_id, len(data.records or ()))
        base_offset, _, append_time_ms, durable = appended
        if durable is not None:
            self.durable = durable
        return PartitionProduceResponse(
            index=data.index,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=partition.stream.start_offset,
        )

    def _opening(self) -> _OpeningWait | None:
        """Return the wait for a partition that this node is opening; None if it is not, or the time is over."""
        topics, (topic, index) = self._serving.topics, self._place()
        found = topics.get(topic)
        until_s = self._parked_until_s
        is_late = until_s is not None and asyncio.get_running_loop().time() >= until_s
        return None if found is None or is_late or not topics.is_opening(found, index) else _OpeningWait(found, index)

    def _refused_by_storage(self, error: StorageError, partition: Partition) -> PartitionProduceResponse | _Wait:
        """Return the answer for a batch that the storage refuses, or the wait after which it may take it."""
        match error:
            case StreamSealed():
                now_s = asyncio.get_running_loop().time()
                if self._sealed_until_s is None:
                    self._sealed_until_s = now_s + SEALED_S
                if now_s < self._sealed_until_s:
                    return _MoveWait(partition)
                return failure(partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is moving")
            case LogStalled():
                return failure(partition.index, ErrorCode.NOT_ENOUGH_REPLICAS, str(error))
            case StorageFull():
                return _RoomWait(needs_flush=self._serving.storage.writable)
        return failure(partition.index, code_of(error), str(error))

    # answers

    def _answer(self, result: PartitionProduceResponse) -> None:
        """Note the outcome of the current batch, and advance to the next."""
        if result.error_code or self._connection.refused_batches:
            result = self._keep_order(result)
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._api_version >= LEADERS_SINCE:
            result = self._with_leader(result)
        self._results.append(result)
        self._prepared = None
        if self._transaction is not None:
            self._transaction.begin_batch()
        self._next += 1

    def _place(self) -> tuple[str | bytes, int]:
        """Return the current batch's partition as the request names it."""
        topic, data = self._work[self._next]
        return topic.name if self._api_version < TOPIC_IDS_SINCE else topic.topic_id, data.index

    def _keep_order(self, result: PartitionProduceResponse) -> PartitionProduceResponse:
        """Refuse a batch that was sent behind a refused one like that one, and not as out of order.

        The partition may have been opened, or the log have caught up, between the two. To OUT_OF_ORDER_SEQUENCE_NUMBER
        librdkafka reacts with a new epoch, in which it repeats what is not acked in all partitions, also what is stored
        already.
        """
        refused, place = self._connection.refused_batches, self._place()
        if result.error_code in _SENT_AGAIN:
            if len(refused) >= REFUSED_PARTITIONS_MAX:
                refused.clear()
            refused[place] = RefusedBatch(ErrorCode(result.error_code), SENT_BEHIND_MAX)
        elif not result.error_code:
            refused.pop(place, None)
        elif result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and place in refused:
            code, left = refused.pop(place)
            if left > 1:  # what comes after the last one was sent when the client knew of the refusal
                refused[place] = RefusedBatch(code, left - 1)
            return failure(result.index, code, "an earlier batch was refused")
        return result

    def _with_leader(self, result: PartitionProduceResponse) -> PartitionProduceResponse:
        """Add the leader of the current batch's partition, if it has one."""
        found = find_leadership(self._serving, *self._place())
        if found is None or found.leader is None:
            return result
        self._leaders[found.leader.node_id] = found.leader
        leader = LeaderIdAndEpoch(leader_id=found.leader.node_id, leader_epoch=found.leader_epoch)
        return replace(result, current_leader=leader)

    def response(self, error: WalError | None = None) -> ProduceResponse:
        """Build the answer. With `error` the log has failed, and no batch counts as written."""
        return build_response(self._work, self._results, self._leaders.values(), self._connection.listener, error)

    def close_if_failed(self, exchange: Exchange) -> None:
        """With acks=0, report an error as Kafka does: close the connection."""
        if any(result.error_code for result in self._results):
            exchange.connection.refuse("a Produce request with acks=0 failed")

    # waiting

    async def wait_and_finish(self, wait: _Wait, exchange: Exchange, *, answer: bool) -> ProduceResponse | None:
        """Wait for what the current batch needs, append the rest, and answer when it is durable.

        When the client disconnects, batches that are not appended yet are dropped: the client sends again what was not
        answered, and requests of closed connections must not accumulate while the object store is away.
        """
        try:
            pending: _Wait | None = wait
            while pending is not None:
                with suppress(StorageError):  # the next attempt fails for the same reason, and answers with it
                    await self._wait_for(pending, exchange)
                if exchange.closed:
                    return None
                pending = self.append_all()
        finally:
            if self._transaction is not None:
                self._transaction.end_verification()
        if not answer:
            self.close_if_failed(exchange)
            return None
        if self.durable is None:
            return self.response()
        try:
            await self.durable
        except WalError as error:
            return self.response(error)
        return self.response()

    async def _wait_for(self, wait: _Wait, exchange: Exchange) -> None:
        """Return when the current batch may be appended, is answered, or the client has gone. Raises StorageError."""
        match wait:
            case VerificationWait():
                await self._verify(wait)
            case InspectionWait():
                await self._inspect(wait, exchange)
            case _MoveWait(partition):
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._sealed_until_s), _while_connected(exchange):
                        await partition.stream.until_unsealed()
            case _OpeningWait():
                await self._park(wait, exchange)
            case _RoomWait(needs_flush):
                storage = self._serving.storage
                async with _while_connected(exchange):
                    if needs_flush:
                        await storage.flush()
                    await storage.wait_writable()

    async def _verify(self, wait: VerificationWait) -> None:
        """Add the partition to the transaction, or verify that it is in it. A refusal is the answer for the batch."""
        assert self._transaction is not None, "only batches of a transaction are verified"
        try:
            await self._transaction.ask(wait.partition, wait.producer)
        except KafkaError as error:
            _, data = self._work[self._next]
            self._answer(failure(data.index, error.code, error.message))

    async def _inspect(self, wait: InspectionWait, exchange: Exchange) -> None:
        """Inspect the current batch's records in the thread. A refusal is the answer for the batch."""
        try:
            async with _while_connected(exchange):
                self._prepared = await wait.inspect()
        except KafkaError as error:
            _, data = self._work[self._next]
            self._answer(refusal(data.index, error, wait.partition.log_start_offset))

    async def _park(self, wait: _OpeningWait, exchange: Exchange) -> None:
        """Wait until the partition is open, or for as long as the request may wait for that."""
        if self._parked_until_s is None:
            self._parked_until_s = parked_until_s()
        serving = self._serving
        is_over = await serving.parking.wait_while(
            lambda: serving.topics.is_opening(*wait), exchange, self._parked_until_s
        )
        if not is_over:
            self._parked_until_s = 0.0


@asynccontextmanager
async def _while_connected(exchange: Exchange) -> AsyncIterator[None]:
    """End the body early when the client disconnects, or if it has disconnected before."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(0 if exchange.closed else None) as timeout:
            exchange.on_close = lambda: timeout.reschedule(loop.time())
            yield
    except TimeoutError:
        assert exchange.closed, "only a disconnect ends the wait early"
    finally:
        exchange.on_close = None


def _last_of_each(work: list[BatchItem]) -> list[BatchItem]:
    """Keep the last batch of a partition that occurs more than once, at the position of the first, as in Kafka."""
    if len(work) == 1:
        return work
    found = {(topic.name, topic.topic_id, data.index): (topic, data) for topic, data in work}
    return work if len(found) == len(work) else list(found.values())


def guard(caller: Caller, request: ProduceRequest) -> Verdict:
    """Check WRITE on the transactional id, if a batch is transactional, and on each topic."""
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not caller.may_transaction(AclOperation.WRITE, transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.acks == 0:
                return Passed(replace(request, topic_data=()), failure=_no_answer(code))
            return Refused(refuse_all(request, code))
    codes = {id(topic): topic_error(caller, AclOperation.WRITE, topic) for topic in request.topic_data}
    allowed, refused = split(request.topic_data, lambda topic: codes[id(topic)] is ErrorCode.NONE)
    if not refused:
        return Passed(request)
    passed = replace(request, topic_data=allowed)
    if request.acks == 0:
        return Passed(passed, failure=_no_answer(codes[id(refused[0])]))
    errors = [_unwritten(topic, codes[id(topic)]) for topic in refused]

    def amend(response: ProduceResponse) -> ProduceResponse:
        return replace(response, responses=[*response.responses, *errors])

    return Passed(passed, amend)


def _is_transactional(request: ProduceRequest) -> bool:
    """Return whether a batch is transactional, as far as its header can be read: its partition refuses it otherwise."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is None:
                continue
            try:
                if any(header.is_transactional for header, _ in iterate_batches(data.records)):
                    return True
            except (ProtocolError, KafkaError, CorruptBatch):
                continue
    return False


def _no_answer(code: ErrorCode) -> str:
    return f"a Produce request with acks=0 failed: {code.message}"


def _unwritten(topic: TopicProduceData, code: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1) for data in topic.partition_data
        ],
    )


API = declare(
    ProduceRequest,
    handle,
    guard=guard,
    relayed=True,
    local_version=12,  # the newest that names topics by name
    pipelined=True,
    metered=Metered.BYTES_AND_TIME,
)
