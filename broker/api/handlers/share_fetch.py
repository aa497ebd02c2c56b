"""ShareFetch: acquire records as a member of a share group, wait for some, and acknowledge others (KIP-932).

As Fetch, a request whose records are in memory needs no task. One synchronous pass over the session's partitions reads
batches and acquires their records. Without any, the request waits at the share partitions, in the order of arrival,
until one of them has records, or the time is over. Acknowledgements are made durable meanwhile; the answer waits for
both.

The records are sent as whole batches of the log; the acquired ranges tell which of them the member has got.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

from anabranch.broker.api.access.caller import caller_of
from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_acknowledge import (
    RENEW_SINCE,
    Acknowledging,
    Errors,
    Failure,
    endpoints,
    leader_of,
    read_error,
    session_key,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.share.leader import ShareLeader
from anabranch.broker.kafka.share.partition.machine import Acquired, OffsetRange
from anabranch.broker.kafka.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, ShareSession, TopicPartition
from anabranch.broker.kafka.topics.parking import PARKED_S
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.batch import parse_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from anabranch.s3stream.errors import ObjectDamage, OffsetOutOfRange, StorageError, StreamFenced
from anabranch.s3stream.model import StreamBatch
from anabranch.wal.interface import Buffer

COLD_WAIT_MS_MIN: Final = 500
"""Minimum wait for data that has to be loaded, whatever the client's max wait."""
RECORD_LIMIT: Final = 1
"""Acquire mode in which the limit of records is strict (KIP-1206)."""


def handle(serving: Serving, request: ShareFetchRequest, exchange: Exchange) -> ShareFetchResponse | None:
    """Acquire records at once if there are some, otherwise wait for or load them."""
    try:
        key = session_key(serving, request, exchange)
        _check_renewal(request, exchange)
        session = _find_session(serving, key, request, exchange)
    except KafkaError as error:
        response = ShareFetchResponse(error_code=error.code)
        if error.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED and request.max_wait_ms > 0:
            # As in Kafka, so that members without a session do not ask all the time.
            asyncio.get_running_loop().call_later(request.max_wait_ms / 1000, exchange.complete, response)
            return None
        return response
    _ShareFetchCall(serving, request, exchange, key, session).begin()
    return None


def _check_renewal(request: ShareFetchRequest, exchange: Exchange) -> None:
    """Raise INVALID_REQUEST for a request that renews locks and fetches, too."""
    if exchange.api_version < RENEW_SINCE or not request.is_renew_ack:
        return
    if request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms:
        raise KafkaError(ErrorCode.INVALID_REQUEST)


def _find_session(
    serving: Serving, key: SessionKey, request: ShareFetchRequest, exchange: Exchange
) -> ShareSession | None:
    """Apply a request to the member's session; None if the request ends it. Raises KafkaError."""
    shares = serving.share_partitions
    sessions, epoch = shares.sessions, request.share_session_epoch
    if epoch == FINAL_EPOCH:
        sessions.require(key)
        return None
    wanted = [(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions]
    if epoch != INITIAL_EPOCH:
        forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        return sessions.advance(key, epoch, wanted, forgotten)
    if _acknowledges(request):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    session = sessions.begin(key, wanted, exchange.connection)
    exchange.connection.on_lost = shares.connection_lost
    return session


def _acknowledges(request: ShareFetchRequest) -> bool:
    return any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions)


@dataclass(slots=True, eq=False)
class _Read:
    """Result of reading one partition."""

    place: TopicPartition
    error: Failure | None = None
    led: ShareLeader | None = None
    fetch_offset: int = 0
    batches: Sequence[StreamBatch] = ()
    acquired: Sequence[Acquired] = ()
    records: Sequence[Buffer] = ()


class _ShareFetchCall:
    """Progress of one ShareFetch."""

    def __init__(
        self,
        serving: Serving,
        request: ShareFetchRequest,
        exchange: Exchange,
        key: SessionKey,
        session: ShareSession | None,
    ) -> None:
        self._serving = serving
        self._request = request
        self._exchange = exchange
        self._key = key
        self._session = session
        self._caller = caller_of(serving, exchange)
        self._places = () if session is None else session.in_turn(request.share_session_epoch)
        self._fetches = session is not None and not (exchange.api_version >= RENEW_SINCE and request.is_renew_ack)
        self._reads: list[_Read] = []
        self._has_all = False
        """True if as many records were read as the member asks for."""
        self._leaders: dict[TopicPartition, ShareLeader] = {}
        """Share partitions of the session that this node leads."""
        self._opening = False
        """True if this node is still opening a partition of the session."""
        self._errors: Errors | None = None
        """Results of the acknowledgements, once there are all of them."""
        self._fetched = False
        """True once the records are final."""
        self._timer: asyncio.TimerHandle | None = None
        self._waits_at: list[ShareLeader] = []

    # the course of a request

    def begin(self) -> None:
        """Begin acknowledgements, and acquire records, or wait for them."""
        if _acknowledges(self._request):
            Acknowledging(self._serving, self._exchange, self._key, self._request, self._acknowledged).begin()
        else:
            self._errors = {}
        if not self._fetches:
            self._end()
            return
        cold = self._read()
        if cold:
            self._serving.share_partitions.spawn(self._load(cold))
        elif self._is_enough() or self._request.max_wait_ms <= 0 or self._exchange.connection.draining:
            self._end()
        else:
            self._wait()

    def _acknowledged(self, errors: Errors) -> None:
        self._errors = errors
        self._respond_if_complete()

    def _end(self) -> None:
        """Acquire what was read last, and fetch no more.

        A client over a quota gets an empty answer, as in Kafka. But nothing is acquired for it, so that other members
        get the records.
        """
        if self._fetches and not self._exchange.closed:
            if self._exchange.throttle_fetch(self._expected_bytes()):
                self._reads = []
            else:
                self._acquire()
        self._fetched = True
        self._respond_if_complete()

    def _respond_if_complete(self) -> None:
        if self._fetched and self._errors is not None:
            response = self._response(self._errors)
            if self._request.share_session_epoch == FINAL_EPOCH:
                self._serving.share_partitions.end_session(self._key, partial(self._exchange.complete, response))
            else:
                self._exchange.complete(response)

    # reading

    def _read(self) -> list[_Read]:
        """Read in memory what may be acquired. Returns the reads whose data has to be loaded."""
        self._reads, self._opening = [], False
        ready: list[_Read] = []
        for place in self._places:
            read = _Read(place)
            try:
                led = self._leader_of(place)
            except KafkaError as error:
                if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._is_opening(place):
                    self._opening = True
                else:
                    read.error = Failure(error.code)
                    self._reads.append(read)
                continue
            offset = led.fetch_offset()
            if offset is not None:
                read.led, read.fetch_offset = led, offset
                self._reads.append(read)
                ready.append(read)
        return self._read_some(ready)

    def _read_some(self, ready: Sequence[_Read]) -> list[_Read]:
        """Read partitions until there are as many records as the member asks for. Returns the reads as `_read`."""
        bytes_max, left = self._bytes_max(len(ready)), max(self._request.max_records, 1)
        cold = []
        for read in ready:
            if left <= 0:
                break
            assert read.led is not None, "only partitions that were found are read"
            count, end_offset = read.led.reach(left)
            if not _read_cached(read, bytes_max, end_offset):
                cold.append(read)
            elif read.batches and read.batches[-1].end_offset >= end_offset:
                left -= count
        self._has_all = left <= 0
        return cold

    def _bytes_max(self, partitions: int) -> int:
        """Return the share of each partition in the size of the response."""
        wanted = min(self._request.max_bytes, self._serving.settings.fetch.response_bytes_max)
        return max(self._exchange.fetch_bytes_max(wanted) // max(partitions, 1), 1)

    def _leader_of(self, place: TopicPartition) -> ShareLeader:
        """Return a share partition that this node leads, loaded or not. Raises KafkaError."""
        if code := read_error(self._serving, self._caller, place):
            raise KafkaError(code)
        partition = self._serving.topics.partition(*place)
        led = self._leaders.get(place)
        if led is None or led.partition is not partition:
            led = self._leaders[place] = self._serving.share_partitions.open(self._key.group_id, partition)
        if led.error is not None:
            raise led.error
        return led

    def _is_opening(self, place: TopicPartition) -> bool:
        topics = self._serving.topics
        topic = topics.get(place[0])
        return topic is not None and topics.is_opening(topic, place[1])

    def _is_enough(self) -> bool:
        """Return whether to answer now: all records that were asked for, or of the least size, or an error."""
        if self._has_all or any(read.error is not None for read in self._reads):
            return True
        size_bytes = sum(len(batch.payload) for read in self._reads for batch in read.batches)
        return size_bytes > 0 and size_bytes >= self._request.min_bytes

    def _expected_bytes(self) -> int:
        """Return the size of the batches with as many records as the member asks for."""
        size_bytes, left = 0, self._request.max_records
        for read in self._reads:
            for batch in read.batches:
                if left <= 0:
                    return size_bytes
                size_bytes += len(batch.payload)
                left -= batch.end_offset - max(batch.base_offset, read.fetch_offset)
        return size_bytes

    def _acquire(self) -> None:
        """Acquire records of what was read, at most as many as the member asks for."""
        left = self._request.max_records
        for read in self._reads:
            if read.led is None or not read.batches or left <= 0:
                continue
            read.acquired = read.led.acquire(
                self._key.member_id,
                [OffsetRange(batch.base_offset, batch.end_offset - 1) for batch in read.batches],
                fetch_offset=read.fetch_offset,
                records_max=left,
                batch_records=self._request.batch_size,
                is_limit_strict=self._request.share_acquire_mode == RECORD_LIMIT,
                aborted=_aborted(read) if read.led.reads_committed else (),
            )
            left -= sum(each.last_offset - each.first_offset + 1 for each in read.acquired)
            if read.acquired:
                first_offset, last_offset = read.acquired[0].first_offset, read.acquired[-1].last_offset
                read.records = [
                    batch.payload
                    for batch in read.batches
                    if batch.base_offset <= last_offset and batch.end_offset > first_offset
                ]
                size_bytes = sum(map(len, read.records))
                read.led.partition.note_sent(size_bytes)
                self._exchange.connection.traffic.note_sent(read.led.partition.stream.stream_id, size_bytes)

    async def _load(self, cold: Sequence[_Read]) -> None:
        """Load records that are not in memory while the client waits, and acquire them."""
        bytes_max = self._bytes_max(len(cold))
        for read in cold:
            assert read.led is not None, "only partitions that were found are read"
            read.led.is_being_read = True
        try:
            async with (
                asyncio.timeout(max(self._request.max_wait_ms, COLD_WAIT_MS_MIN) / 1000),
                asyncio.TaskGroup() as group,
            ):
                for read in cold:
                    group.create_task(_load(read, bytes_max))
        except TimeoutError:
            pass  # the loads continue into the cache, and the client fetches again
        finally:
            for read in cold:
                assert read.led is not None, "as above"
                read.led.is_being_read = False
                read.led.changed()
        self._end()

    # waiting

    def _wait(self) -> None:
        """Wait at every share partition until one has records, or the time is over."""
        wait_s = self._request.max_wait_ms / 1000
        if self._opening:
            if not self._serving.parking.enter(self.look_again, self._exchange.frame_bytes):
                self._end()
                return
            wait_s = max(wait_s, PARKED_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._finish)
        self._exchange.on_close = self._stop_waiting
        self._exchange.on_drain = self._finish
        self._wait_at_leaders()

    def _wait_at_leaders(self) -> None:
        for led in self._leaders.values():
            if led not in self._waits_at:
                led.wait(self)
                self._waits_at.append(led)

    def look_again(self) -> None:
        """Answer if there are records now. Called by share partitions, and when this node has opened a partition."""
        if self._timer is None:
            return
        cold = self._read()
        if cold:
            self._stop_waiting()
            self._serving.share_partitions.spawn(self._load(cold))
        elif self._is_enough():
            self._stop_waiting()
            self._end()
        else:
            self._wait_at_leaders()

    def _finish(self) -> None:
        self._stop_waiting()
        self._read()
        self._end()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for led in self._waits_at:
            led.leave(self)
        self._waits_at.clear()
        self._serving.parking.leave(self.look_again)
        self._exchange.on_close = self._exchange.on_drain = None

    # answering

    def _response(self, errors: Errors) -> ShareFetchResponse:
        """Build the answer: partitions with records, errors or acknowledgements, and those new in the session."""
        leaders: dict[int, Member] = {}
        data = {read.place: self._partition(read, leaders) for read in self._reads if self._is_news(read)}
        for place, error in errors.items():
            _add_acknowledgement(data, place, error)
        topics = [
            ShareFetchableTopicResponse(topic_id=topic_id, partitions=[data[place] for place in places])
            for topic_id, places in groupby(sorted(data), key=lambda place: place[0])
        ]
        size_bytes = sum(len(payload) for read in self._reads for payload in read.records)
        self._serving.fetched_bytes += size_bytes
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self._serving.share_partitions.lock_ms(self._key.group_id),
            responses=topics,
            node_endpoints=endpoints(leaders, self._exchange, NodeEndpoint),
        )

    def _is_news(self, read: _Read) -> bool:
        """Return whether the answer must name a partition, and note in the session that it does."""
        session = self._session
        assert session is not None, "only sessions read"
        is_first = self._request.share_session_epoch == INITIAL_EPOCH
        is_due = is_first or session.partitions.get(read.place, False)
        has_records = bool(read.acquired) and not is_first
        session.note_answered(read.place, has_error=read.error is not None, has_records=has_records)
        return is_due or bool(read.acquired) or read.error is not None

    def _partition(self, read: _Read, leaders: dict[int, Member]) -> PartitionData:
        if read.error is not None:
            leader_id, epoch = leader_of(self._serving, read.place, read.error.code, leaders)
            return PartitionData(
                partition_index=read.place[1],
                error_code=read.error.code,
                error_message=read.error.message,
                current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
                records=b"",
            )
        return PartitionData(
            partition_index=read.place[1],
            records=read.records or b"",
            acquired_records=[
                AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                for first, last, count in read.acquired
            ],
        )


def _add_acknowledgement(
    data: dict[TopicPartition, PartitionData], place: TopicPartition, error: Failure | None
) -> None:
    """Add the result of a partition's acknowledgements to what is answered of it."""
    known = data.get(place) or PartitionData(partition_index=place[1], records=b"")
    if error is not None:
        known = replace(known, acknowledge_error_code=error.code, acknowledge_error_message=error.message)
    data[place] = known


def _read_cached(read: _Read, bytes_max: int, end_offset: int) -> bool:
    """Read what is in memory, up to the batch before an offset. Returns False if the data has to be loaded."""
    led = read.led
    assert led is not None, "only partitions that were found are read"
    end_offset = min(end_offset, led.end_offset)
    if read.fetch_offset >= end_offset:
        return True
    try:
        found = led.partition.stream.read_cached(read.fetch_offset, bytes_max, end_offset=end_offset)
    except OffsetOutOfRange:
        return True  # the log's start has moved: the next pass follows it
    if found is None:
        return False
    read.batches = found.batches
    return True


async def _load(read: _Read, bytes_max: int) -> None:
    """Load what is not in memory."""
    led = read.led
    assert led is not None, "only partitions that were found are read"
    partition = led.partition
    try:
        found = await partition.stream.read(read.fetch_offset, bytes_max, end_offset=led.end_offset)
    except OffsetOutOfRange:
        pass  # the log's start has moved: the next request follows it
    except ObjectDamage:
        read.error = Failure(ErrorCode.CORRUPT_MESSAGE)
    except StreamFenced:
        read.error = Failure(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    except StorageError as error:
        partition.note_read(error)
        read.error = Failure(ErrorCode.KAFKA_STORAGE_ERROR)
    else:
        partition.note_read(None)
        partition.note_loaded(found.batches)
        read.batches = found.batches


def _aborted(read: _Read) -> Sequence[OffsetRange]:
    """Return the batches among those read that belong to aborted transactions."""
    led = read.led
    assert led is not None, "only partitions that were found are read"
    transactions = led.partition.transactions
    entries = list(transactions.aborted_between(read.batches[0].base_offset, read.batches[-1].end_offset))
    if not entries:
        return ()
    aborted = []
    for batch in read.batches:
        header = parse_batch(batch.payload)
        if header.is_transactional and any(
            entry.producer_id == header.producer_id and entry.first_offset <= batch.base_offset < entry.last_offset
            for entry in entries
        ):
            aborted.append(OffsetRange(batch.base_offset, batch.end_offset - 1))
    return aborted


API = declare(ShareFetchRequest, handle, guard=open_to_all, reads=True)
