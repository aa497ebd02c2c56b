"""Produce: append record batches, and answer when they are durable.

A request needs no task. Its batches are appended when it arrives, and the completion of the last batch's WAL block
sends the answer; blocks complete in order, so it covers the batches before. A coroutine continues the request only if
the storage is full, this node is still opening a partition, one has to be added to a transaction first, or records must
be inspected in a thread.
Meanwhile the connection starts no other request, so that batches keep the order of requests.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.api.handlers.produce_response import (
    WITHOUT_LOG_START,
    BatchItem,
    build_response,
    code_of,
    failure,
    refusal,
    refuse_all,
)
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.partition import ADDS_TO_TRANSACTION_SINCE, Partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.partitions.record_checks import PreparationDeferred, PreparedBatch
from anabranch.broker.kafka.partitions.transactions import Verification
from anabranch.broker.kafka.topics.names import INTERNAL_TOPICS
from anabranch.broker.kafka.topics.parking import parked_until_s
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.kafka.transactions.errors import code_for_writer
from anabranch.broker.node.net.exchange import Exchange, RefusedBatch
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from anabranch.s3stream.errors import LogStalled, StorageError, StorageFull, StreamSealed
from anabranch.wal.interface import Durable, WalError

TOPIC_IDS_SINCE = 13
ABORTABLE_SINCE = 11
LEADERS_SINCE = 10
"""First version in which the answer names the leader of a partition that is led elsewhere (KIP-951)."""
SEALED_S = 3.0
"""Longest wait for the end of a partition's move to another node."""
SENT_BEHIND_MAX = 4
"""Batches of an idempotent producer that may follow one without its answer."""
REFUSED_PARTITIONS_MAX = 1000
_SENT_AGAIN = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS})
"""Refusals after which a client sends the batch again, and those that it has sent behind it."""
VERIFICATIONS_MAX = 5
"""Verifications of a batch whose answers a marker may overtake, before the client is told to try again."""


class _NotInTransaction(Exception):
    """The batch has to wait until its partition is added to the transaction, or another node has verified that."""


def handle(
    node: Node, request: ProduceRequest, exchange: Exchange
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse | None] | None:
    """Append the batches, and answer when they are durable; with acks=0 there is no answer."""
    if not -1 <= request.acks <= 1:
        return refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS)
    call = _ProduceCall(node, request, exchange)
    if not call.append_all():
        return call.wait_and_finish(exchange, answer=request.acks != 0)
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
        "_joining",
        "_leaders",
        "_needs_flush",
        "_next",
        "_node",
        "_opening",
        "_parked_until_s",
        "_preparation",
        "_prepared",
        "_results",
        "_sealed",
        "_sealed_until_s",
        "_transactional_id",
        "_verification",
        "_verifications",
        "_verify",
        "_work",
        "durable",
        "failed",
    )

    def __init__(self, node: Node, request: ProduceRequest, exchange: Exchange) -> None:
        self._node = node
        self._api_version = exchange.api_version
        self._connection = exchange.connection
        self._work = _last_of_each([(topic, data) for topic in request.topic_data for data in topic.partition_data])
        self._transactional_id = request.transactional_id
        self._verify = None if request.transactional_id is None else self._verify_transaction
        self._joining: tuple[Partition, Producer] | None = None
        """Partition to add to the producer's transaction, or to verify, before the next batch can be appended."""
        self._verification: tuple[Partition, Verification] | None = None
        """Verification of the current batch's partition, or of an earlier one. The coordinator has agreed."""
        self._verifications = 0
        """Number of verifications for the current batch."""
        self._preparation: PreparationDeferred | None = None
        """Inspection to run in the thread before the next batch can be appended."""
        self._prepared: PreparedBatch | None = None
        """Result of that inspection."""
        self._sealed: Partition | None = None
        """Partition whose move has to end before the next batch can be appended."""
        self._sealed_until_s: float | None = None
        """End of the time for which the request waits for moves; None if it has not begun."""
        self._opening: tuple[Topic, int] | None = None
        """Partition that this node has to open before the next batch can be appended."""
        self._parked_until_s: float | None = None
        """End of the time for which the request waits for such partitions; None if it has not begun."""
        self._next = 0
        self._results: list[PartitionProduceResponse] = []
        self._leaders: dict[int, Member] = {}
        """Nodes that results name as leaders."""
        self.durable: Durable | None = None
        """Completion of the last batch appended."""
        self._needs_flush = False
        """True if there was no room for the current batch, though clients were not told to wait."""
        self.failed = False

    def append_all(self) -> bool:
        """Append until all batches are done (True) or one has to wait (False): call again after the wait.

        A batch waits for room in the storage, for its partition to be open or added to the transaction, or for the
        thread.
        """
        work = self._work
        while self._next < len(work):
            topic, data = work[self._next]
            try:
                result = self._append(topic, data)
            except StreamSealed:
                if not self._parks_on_seal(topic, data.index):
                    self._answer(self._failure(data, ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is moving"))
                    continue
                return False
            except LogStalled as error:
                self._answer(self._failure(data, ErrorCode.NOT_ENOUGH_REPLICAS, str(error)))
                continue
            except StorageFull:
                self._needs_flush = self._node.storage.writable
                return False
            except _NotInTransaction:
                return False
            except PreparationDeferred as beside:
                self._preparation = beside
                return False
            except KafkaError as error:
                if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._awaits_opening(topic, data.index):
                    return False
                result = self._refusal(topic, data, error)
            except StorageError as error:
                result = self._failure(data, code_of(error), str(error))
            self._answer(result)
        return True

    def _answer(self, result: PartitionProduceResponse) -> None:
        """Note the outcome of the current batch, and advance to the next."""
        if result.error_code or self._connection.refused_batches:
            result = self._keep_order(result)
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._api_version >= LEADERS_SINCE:
            result = self._with_leader(result)
        self._results.append(result)
        self._prepared = None
        self._verifications = 0
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

    def _append(self, topic: TopicProduceData, data: PartitionProduceData) -> PartitionProduceResponse:
        partition = self._find(topic, data.index)
        if partition.topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
        base_offset, _, append_time_ms, durable = partition.append(
            data.records,
            self._api_version,
            self._verify,
            self._prepared,
            is_behind=bool(refused := self._connection.refused_batches) and self._place() in refused,
        )
        if durable is not None:
            self.durable = durable
        return PartitionProduceResponse(
            index=data.index,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=partition.stream.start_offset,
        )

    def _with_leader(self, result: PartitionProduceResponse) -> PartitionProduceResponse:
        """Add the leader of the current batch's partition, if it has one."""
        requested, data = self._work[self._next]
        topic = requested.name if self._api_version < TOPIC_IDS_SINCE else requested.topic_id
        found = find_leadership(self._node, topic, data.index)
        if found is None or found.leader is None:
            return result
        self._leaders[found.leader.node_id] = found.leader
        leader = LeaderIdAndEpoch(leader_id=found.leader.node_id, leader_epoch=found.leader_epoch)
        return dataclasses.replace(result, current_leader=leader)

    def _find(self, topic: TopicProduceData, index: int) -> Partition:
        topics = self._node.topics
        if self._api_version < TOPIC_IDS_SINCE:
            return topics.partition(topic.name, index)
        found = topics.get_by_id(topic.topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topics.partition_of(found, index)

    def _parks_on_seal(self, topic: TopicProduceData, index: int) -> bool:
        """Return whether the current batch waits for the end of its partition's move."""
        now_s = asyncio.get_running_loop().time()
        if self._sealed_until_s is None:
            self._sealed_until_s = now_s + SEALED_S
        self._sealed = self._find(topic, index)
        return now_s < self._sealed_until_s

    async def _wait_for_move(self, partition: Partition, exchange: Exchange) -> None:
        """Wait until the partition's move has ended, or for as long as the request may wait for that."""
        self._sealed = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._sealed_until_s), _while_connected(exchange):
                await partition.stream.until_unsealed()

    def _awaits_opening(self, topic: TopicProduceData, index: int) -> bool:
        """Return whether the current batch has to wait until this node has opened the partition."""
        topics = self._node.topics
        found = topics.get(topic.name) if self._api_version < TOPIC_IDS_SINCE else topics.get_by_id(topic.topic_id)
        until_s = self._parked_until_s
        is_late = until_s is not None and asyncio.get_running_loop().time() >= until_s
        if found is None or is_late or not topics.is_opening(found, index):
            return False
        self._opening = found, index
        return True

    async def _park(self, topic: Topic, index: int, exchange: Exchange) -> None:
        """Wait until the partition is open, or for as long as the request may wait for that."""
        self._opening = None
        if self._parked_until_s is None:
            self._parked_until_s = parked_until_s()
        node = self._node
        is_over = await node.parking.wait_while(
            lambda: node.topics.is_opening(topic, index), exchange, self._parked_until_s
        )
        if not is_over:
            self._parked_until_s = 0.0

    def _refusal(
        self, topic: TopicProduceData, data: PartitionProduceData, error: KafkaError
    ) -> PartitionProduceResponse:
        """Answer for a batch that its partition refuses, with log start offset and the records at fault."""
        self.failed = True
        if error.code in WITHOUT_LOG_START:
            return failure(data.index, error.code, error.message)
        return refusal(data.index, error, self._find(topic, data.index).log_start_offset)

    def _failure(self, data: PartitionProduceData, code: ErrorCode, message: str) -> PartitionProduceResponse:
        self.failed = True
        return failure(data.index, code, message)

    def _verify_transaction(self, partition: Partition, producer_id: int, epoch: int) -> None:
        """Check with the coordinator that the transaction is open and includes the partition. Raises KafkaError."""
        assert self._transactional_id is not None, "a transaction has an id"
        where, producer = TopicPartition(partition.topic, partition.index), Producer(producer_id, epoch)
        if self._is_verified(partition, producer):
            return
        if self._verifications == VERIFICATIONS_MAX:
            raise self._transaction_error(KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
        try:
            self._node.transactions.verify(self._transactional_id, producer, where)
        except KafkaError as error:
            adds = self._api_version >= ADDS_TO_TRANSACTION_SINCE
            if adds or self._node.verifier.leads_elsewhere(self._transactional_id):
                self._joining = partition, producer
                raise _NotInTransaction from None
            raise self._transaction_error(error) from None

    def _is_verified(self, partition: Partition, producer: Producer) -> bool:
        """Return whether the coordinator has agreed to the batch, and no marker has ended the transaction since."""
        if self._verification is None:
            return False
        verified, verification = self._verification
        return (
            verified is partition
            and verification.producer == producer
            and partition.transactions.is_valid(verification)
        )

    def _end_verification(self) -> None:
        if self._verification is not None:
            partition, verification = self._verification
            self._verification = None
            partition.transactions.end_verification(verification)

    def _transaction_error(self, error: KafkaError) -> KafkaError:
        abortable = self._api_version >= ABORTABLE_SINCE
        code = code_for_writer(error.code, knows_abortable=abortable, retry=ErrorCode.NOT_ENOUGH_REPLICAS)
        if code == ErrorCode.CONCURRENT_TRANSACTIONS and self._api_version < ADDS_TO_TRANSACTION_SINCE:
            code = ErrorCode.NOT_ENOUGH_REPLICAS  # the client would not try again
        not_added = code == ErrorCode.INVALID_TXN_STATE
        return KafkaError(code, "Partition was not added to the transaction" if not_added else error.message)

    async def _join_transaction(self, partition: Partition, producer: Producer) -> None:
        """Add the partition to the transaction, durably, or verify that it is in it.

        A refusal becomes the answer for the batch.
        """
        self._joining = None
        assert self._transactional_id is not None, "a transaction has an id"
        self._end_verification()
        self._verifications += 1
        transactions = partition.transactions
        self._verification = partition, transactions.begin_verification(producer)
        try:
            await self._node.verifier.ask(
                self._transactional_id,
                producer,
                TopicPartition(partition.topic, partition.index),
                add=self._api_version >= ADDS_TO_TRANSACTION_SINCE,
                marked_by=transactions.coordinator_epoch(producer.producer_id),
            )
        except (KafkaError, StorageError) as error:
            self._end_verification()
            _, data = self._work[self._next]
            if isinstance(error, KafkaError):
                error = self._transaction_error(error)
                self._answer(self._failure(data, error.code, error.message))
            else:
                self._answer(self._failure(data, ErrorCode.NOT_ENOUGH_REPLICAS, str(error)))

    async def _prepare(self, preparation: PreparationDeferred, exchange: Exchange) -> None:
        """Inspect the current batch's records in the thread. A refusal becomes the answer for the batch."""
        self._preparation = None
        try:
            async with _while_connected(exchange):
                self._prepared = await preparation.run()
        except KafkaError as error:
            self._answer(self._refusal(*self._work[self._next], error))

    async def wait_and_finish(self, exchange: Exchange, *, answer: bool) -> ProduceResponse | None:
        """Wait for what the current batch needs, append the rest, and answer when it is durable.

        When the client disconnects, batches that are not appended yet are dropped: the client sends again what was not
        answered, and requests of closed connections must not accumulate while the object store is away.
        """
        try:
            if not await self._append_rest(exchange):
                return None
        finally:
            self._end_verification()
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

    async def _append_rest(self, exchange: Exchange) -> bool:
        """Return True when all batches are appended, False if the client has disconnected before."""
        while True:
            try:
                if self._joining is not None:
                    await self._join_transaction(*self._joining)
                elif self._sealed is not None:
                    await self._wait_for_move(self._sealed, exchange)
                elif self._opening is not None:
                    await self._park(*self._opening, exchange)
                elif self._preparation is not None:
                    await self._prepare(self._preparation, exchange)
                else:
                    await self._wait_for_room(exchange)
            except StorageError:
                pass  # the next attempt fails for the same reason, and answers with it
            if exchange.closed:
                return False
            if self.append_all():
                return True

    async def _wait_for_room(self, exchange: Exchange) -> None:
        """Return when an append may succeed, or the client has disconnected. Raises StorageError."""
        storage = self._node.storage
        async with _while_connected(exchange):
            if self._needs_flush:  # the batch needs more room than is left
                await storage.flush()
            await storage.wait_writable()

    def close_if_failed(self, exchange: Exchange) -> None:
        """With acks=0, report an error as Kafka does: close the connection."""
        if self.failed:
            exchange.connection.refuse("a Produce request with acks=0 failed")

    def response(self, error: WalError | None = None) -> ProduceResponse:
        """Build the answer. With `error` the log has failed, and no batch counts as written."""
        return build_response(self._work, self._results, self._leaders.values(), self._connection.listener, error)


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
