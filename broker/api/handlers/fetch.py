"""Fetch: read record batches, and wait for more if there are too few.

A request whose data is in memory needs no task. One synchronous pass over its partitions takes batches from the log
cache. If they are enough, the request is answered at once; otherwise it listens for changes of its partitions, and
repeats the pass when enough was appended or its time is over. Only data that has to be loaded makes it a coroutine. If
the wait ends first, its loads continue into the cache.

A partition that another node leads is read as far as this node is a replica of it: from objects, after a look at the
catalog about once a second, and where these end, from the tail that the leader tells this node. A leader names a
replica in the client's rack (KIP-392) instead of data that it has in objects only, and instead of newer data if the
replica follows. Where the replica's knowledge ends, it names the leader in the same way: by an error franz-go and
KafkaJS would not go back to it.

A request also waits for partitions that this node is still opening, unless it has data from other partitions.

Batches are sent as the buffers that they are read into, without a copy.

Invariant: the parts of an answer are consistent. High watermark, last stable offset, log start offset and aborted
transactions are read in the turn of the loop in which the answer is built. The data is read in the same turn, or was
read before and is still past the log's start. High watermark and last stable offset only grow. An aborted transaction
is kept while any of its offsets is past the start, or a cache may hold its records.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from anabranch.broker.api.access.caller import caller_of
from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.fetch_response import READ_COMMITTED, PartitionRead, build_response
from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.fetch_sessions import NO_SESSION, FetchPlan, FetchTarget, Key
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.parking import PARKED_S
from anabranch.broker.kafka.topics.replicas import FRESH_S, NEW_S, PlacedPartition, RackReader, ReplicaPartition
from anabranch.broker.kafka.topics.tail_partition import TailPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse
from anabranch.s3stream.errors import ObjectDamage, OffsetOutOfRange, StorageError, StreamFenced
from anabranch.s3stream.model import StreamBatch

REPLICAS_SINCE = 11
"""First version of clients that know replicas."""
COLD_WAIT_MS_MIN = 500
"""Minimum wait for data that has to be loaded, whatever the client's max wait."""


def handle(
    serving: Serving, request: FetchRequest, exchange: Exchange
) -> FetchResponse | Coroutine[Any, Any, FetchResponse] | None:
    """Answer at once if there is enough data, otherwise wait or load."""
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)  # there are no followers
    try:
        plan = serving.fetch_sessions.plan(request, exchange.api_version, serving.now_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if request.rack_id and request.rack_id != exchange.connection.traffic.rack:
        exchange.connection.enter_rack(request.rack_id)
    call = _FetchCall(serving, request, exchange, plan)
    call.read_cached()
    if call.outdated or call.ends:
        return call.refresh_and_respond()
    if call.cold:
        return call.load_and_respond()
    if call.is_enough:
        return call.respond()
    call.wait()
    return None


def _denied(serving: Serving, exchange: Exchange, plan: FetchPlan) -> Collection[Key]:
    """Return the partitions of topics that the client may not read. Each request checks all of its session."""
    caller = caller_of(serving, exchange)
    if caller is None:
        return ()
    denied = set()
    for target in plan.targets:
        topic, _ = target.key
        name = topic if isinstance(topic, str) else caller.name_of("", topic)
        if name is not None and not caller.may_topic(AclOperation.READ, name):
            denied.add(target.key)
    return denied


class _FetchCall:
    """Progress of one Fetch request."""

    __slots__ = (
        "_bytes_grown",
        "_bytes_max",
        "_denied",
        "_exchange",
        "_failed",
        "_is_last_look",
        "_may_follow",
        "_may_refresh",
        "_min_bytes",
        "_opening",
        "_plan",
        "_reader",
        "_reads",
        "_redirected",
        "_request",
        "_scheduled",
        "_seen",
        "_serving",
        "_size_bytes",
        "_timer",
        "_unchanged",
        "cold",
        "ends",
        "outdated",
    )

    def __init__(self, serving: Serving, request: FetchRequest, exchange: Exchange, plan: FetchPlan) -> None:
        self._serving = serving
        self._request = request
        self._exchange = exchange
        self._plan = plan
        self._denied = _denied(serving, exchange, plan)
        self._bytes_max = exchange.fetch_bytes_max(min(request.max_bytes, serving.settings.fetch.response_bytes_max))
        self._min_bytes = min(request.min_bytes, self._bytes_max)
        self._reads: list[PartitionRead] = []
        self._unchanged: list[Partition] = []
        """Partitions of an incremental session of which the client knows everything, and which no read is made for."""
        self._size_bytes = 0
        self._failed = False
        self._opening = False
        """True if this node is still opening a partition, and nothing else has failed: worth a wait."""
        self.cold: list[PartitionRead] = []
        """Partitions whose data has to be loaded."""
        self.outdated: list[int] = []
        """Streams of other nodes that have to be looked at in the catalog."""
        self.ends: dict[int, int] = {}
        """Streams of other nodes that are to be followed, from these offsets on: objects end there."""
        self._may_refresh = self._may_follow = True
        self._is_last_look = request.max_wait_ms <= 0
        """True if the request is answered after this pass, whatever it brings."""
        self._reader: RackReader | None = None
        if request.rack_id and serving.settings.fetch.replica_selector != "leader":
            connection = exchange.connection
            name = f"{connection.host} {connection.port}"  # many consumers may have one client id
            self._reader = RackReader(name, request.rack_id, exchange.listener, exchange.started)
        self._redirected = False
        """True if the client shall read a partition from another node."""
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._bytes_grown = 0
        self._seen: dict[Partition | TailPartition, int] = {}

    @property
    def is_enough(self) -> bool:
        """True if the request should be answered now: enough bytes, an error, or no time to wait."""
        return (
            self._size_bytes >= self._min_bytes
            or self._failed
            or self._redirected
            or self._request.max_wait_ms <= 0
            or not self._plan.targets
            or self._exchange.connection.draining
        )

    # reading

    def read_cached(self) -> None:
        """Take what is in the log cache, in one pass over all partitions."""
        reads: list[PartitionRead] = []
        unchanged: list[Partition] = []
        self._reads, self._unchanged, self.cold, self.outdated, self.ends = reads, unchanged, [], [], {}
        self._size_bytes = 0
        self._failed = self._opening = self._redirected = False
        topics, denied, is_incremental = self._serving.topics, self._denied, self._plan.incremental
        for target in self._plan.targets:
            if denied and target.key in denied:
                self._refuse(target, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            try:
                partition = topics.partition(*target.key)
                if target.current_leader_epoch != partition.leader_epoch:
                    partition.check_leader_epoch(target.current_leader_epoch)
                stream = partition.stream
                if target.fetch_offset != stream.confirmed_offset or target.last_fetched_epoch >= 0:
                    reads.append(self._read_partition(target, partition))
                elif (
                    is_incremental
                    and target.sent_high_watermark == target.fetch_offset
                    and target.sent_log_start_offset == stream.start_offset
                    and not target.sent_error
                ):
                    # As most of a session: no call is made, and no object is created for them.
                    unchanged.append(partition)
                else:
                    reads.append(PartitionRead(target, partition))
            except KafkaError as error:
                code = error.code
                if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    code = self._read_replica(target)
                if code != ErrorCode.NONE:
                    self._refuse(target, code)
            except OffsetOutOfRange:
                self._refuse(target, ErrorCode.OFFSET_OUT_OF_RANGE)

    def _refuse(self, target: FetchTarget, code: ErrorCode) -> None:
        """Note that a partition cannot be read."""
        self._reads.append(PartitionRead(target, None, code))
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._is_opening(target):
            self._opening = True
        else:
            self._failed = True

    def _is_opening(self, target: FetchTarget) -> bool:
        topic, index = target.key
        topics = self._serving.topics
        found = topics.get(topic)
        return found is not None and topics.is_opening(found, index)

    def _read_partition(self, target: FetchTarget, partition: Partition) -> PartitionRead:
        """Read a partition from the log cache. Raises KafkaError, OffsetOutOfRange."""
        read = PartitionRead(target, partition)
        stream, offset = partition.stream, target.fetch_offset
        if not stream.start_offset <= offset <= stream.next_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        end_offset = self._end_offset(partition)
        if self._check_divergence(read, partition) or offset >= end_offset:
            return read
        bytes_max = min(target.bytes_max, self._bytes_max - self._size_bytes)
        if bytes_max <= 0 and self._size_bytes:
            return read
        found = stream.read_cached(offset, bytes_max, end_offset=end_offset)
        if self._reader is not None:
            read.preferred_replica = self._choose_replica(target, partition, self._reader, is_cached=found is not None)
        if read.preferred_replica >= 0:
            self._redirected = True
        elif found is None:
            self.cold.append(read)
        else:
            self._take(read, found.batches, bytes_max)
        return read

    def _choose_replica(self, target: FetchTarget, partition: Partition, reader: RackReader, *, is_cached: bool) -> int:
        """Return the node that the client shall read from, what only objects have or newer records; -1: this one."""
        replicas, offset = self._serving.replicas, target.fetch_offset
        if offset < partition.stream.requested_start:
            return -1  # replicas may know it as deleted, and send the client back again and again
        if is_cached:
            return replicas.choose_follower(*target.key, offset, reader, partition.leader_epoch)
        is_committed = self._request.isolation_level == READ_COMMITTED
        if offset >= partition.readable_in_objects(committed=is_committed):
            return -1
        return replicas.choose(*target.key, offset, reader)

    def _read_replica(self, target: FetchTarget) -> ErrorCode:
        """Let a partition be read that another node leads; returns the error if it cannot be."""
        replicas = self._serving.replicas
        placed = replicas.find(*target.key) if self._exchange.api_version >= REPLICAS_SINCE else None
        if placed is None:  # it may have been a replica when the reader was sent here
            return self._return_to_leader(target, None)
        tail = replicas.tail(placed, target.fetch_offset, target.current_leader_epoch)
        return self._read_objects(target, placed) if tail is None else self._read_tail(target, tail)

    def _read_objects(self, target: FetchTarget, placed: PlacedPartition) -> ErrorCode:
        """Let the objects of another node's partition be read; returns the error if they cannot be."""
        replicas, stream_id = self._serving.replicas, placed.stream_id
        partition, offset = replicas.get(placed), target.fetch_offset
        is_behind = partition is not None and (
            offset >= self._end_offset(partition) or target.current_leader_epoch > partition.leader_epoch
        )
        if self._may_refresh and replicas.is_older(stream_id, NEW_S if is_behind else FRESH_S):
            self.outdated.append(stream_id)
            return ErrorCode.NONE
        if partition is None:
            return self._return_to_leader(target, partition)
        try:
            partition.check_leader_epoch(target.current_leader_epoch)
        except KafkaError as error:
            return error.code
        if offset < partition.log_start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if is_behind and self._may_follow:
            self.ends[stream_id] = offset
            return ErrorCode.NONE
        if is_behind:
            return self._return_to_leader(target, partition)
        read = PartitionRead(target, partition)
        self._reads.append(read)
        self.cold.append(read)
        return ErrorCode.NONE

    def _return_to_leader(self, target: FetchTarget, partition: ReplicaPartition | TailPartition | None) -> ErrorCode:
        """Name the leader to a reader that this replica has nothing for; returns the error if that cannot be."""
        leader = self._leader_of(target)
        if leader < 0:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._reads.append(PartitionRead(target, partition, preferred_replica=leader))
        self._redirected = True
        return ErrorCode.NONE

    def _leader_of(self, target: FetchTarget) -> int:
        """Return the node that leads a partition, for a reader that was sent here; otherwise -1.

        A reader without a rack, or of an earlier leader epoch, was not sent here: it shall ask for the leader anew. One
        of a later epoch knows the leader, which may be this node before it knows itself.
        """
        knows_replicas = self._request.rack_id and self._exchange.api_version >= REPLICAS_SINCE
        found = find_leadership(self._serving, *target.key) if knows_replicas else None
        if found is None or found.leader is None or target.current_leader_epoch not in {-1, found.leader_epoch}:
            return -1
        return found.leader.node_id if found.leader.node_id != self._serving.node_id else -1

    def _read_tail(self, target: FetchTarget, tail: TailPartition) -> ErrorCode:
        """Let the newest records be read of a partition that this node follows; returns the error if they cannot be."""
        offset = target.fetch_offset
        try:
            tail.check_leader_epoch(target.current_leader_epoch)
        except KafkaError as error:
            return error.code
        if offset < tail.log_start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset > tail.high_watermark and self._is_last_look:  # the client may know a later one from the leader
            return self._return_to_leader(target, tail)
        read = PartitionRead(target, tail)
        self._reads.append(read)
        bytes_max = min(target.bytes_max, self._bytes_max - self._size_bytes)
        if bytes_max > 0 or not self._size_bytes:
            self._take(read, tail.read(offset, bytes_max, end_offset=self._end_offset(tail)), bytes_max)
        return ErrorCode.NONE

    def _end_offset(self, partition: Partition | ReplicaPartition | TailPartition) -> int:
        if self._request.isolation_level == READ_COMMITTED:
            return partition.last_stable_offset
        return partition.high_watermark

    def _take(self, read: PartitionRead, batches: Sequence[StreamBatch], bytes_max: int) -> None:
        """Keep what was read. Only the first batch of a response may exceed the limits (KIP-74)."""
        if not batches or (self._size_bytes and len(batches[0].payload) > bytes_max):
            return
        read.batches = batches
        read.records = [batch.payload for batch in batches]
        self._size_bytes += sum(map(len, read.records))

    def _check_divergence(self, read: PartitionRead, partition: Partition) -> bool:
        """Return whether the client's last fetched epoch diverges from the log (KIP-595): it must truncate."""
        target = read.target
        if target.last_fetched_epoch < 0:
            return False
        epoch, end_offset = partition.epochs.end_offset_of(target.last_fetched_epoch, partition.high_watermark)
        if epoch == target.last_fetched_epoch and end_offset >= target.fetch_offset:
            return False
        if epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        read.diverging = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        self._failed = True
        return True

    # loading

    async def refresh_and_respond(self) -> FetchResponse:
        """Look at the catalog for the partitions of other nodes, and answer with what is there."""
        replicas, wait_ms = self._serving.replicas, max(self._request.max_wait_ms, COLD_WAIT_MS_MIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                if self.outdated:
                    await replicas.refresh(self.outdated)
                    self._may_refresh = False
                    self.read_cached()
                await replicas.follow(self.ends)
        self._may_refresh = self._may_follow = False
        self.read_cached()
        return await self.load_and_respond() if self.cold else self.respond()

    async def load_and_respond(self) -> FetchResponse:
        """Load data that is not in memory while the client waits, then answer with it."""
        bytes_left = max(self._bytes_max - self._size_bytes, 1)
        wait_ms = max(self._request.max_wait_ms, COLD_WAIT_MS_MIN)
        loaded: dict[int, Sequence[StreamBatch]] = {}
        try:
            async with asyncio.timeout(wait_ms / 1000), asyncio.TaskGroup() as group:
                for read in self.cold:
                    if bytes_left <= 0:
                        break
                    bytes_max = min(read.target.bytes_max, bytes_left)
                    bytes_left -= bytes_max
                    group.create_task(self._load(read, bytes_max, loaded))
        except TimeoutError:
            pass  # the loads continue into the cache, and the client fetches again
        for read in self.cold:
            batches = loaded.get(id(read), ())
            bytes_max = min(read.target.bytes_max, self._bytes_max - self._size_bytes)
            self._take(read, batches, bytes_max)
        for read in self._reads:
            read.refuse_deleted()
        self._serving.damaged_requests += any(read.error == ErrorCode.CORRUPT_MESSAGE for read in self._reads)
        return self.respond()

    async def _load(self, read: PartitionRead, bytes_max: int, loaded: dict[int, Sequence[StreamBatch]]) -> None:
        assert isinstance(read.partition, Partition | ReplicaPartition), "only these have objects"
        try:
            result = await read.partition.stream.read(
                read.target.fetch_offset, bytes_max, end_offset=self._end_offset(read.partition)
            )
        except OffsetOutOfRange:
            read.error = ErrorCode.OFFSET_OUT_OF_RANGE
        except ObjectDamage:
            # The Java client, librdkafka and kafka-python report this code to the application, without retrying.
            read.error = ErrorCode.CORRUPT_MESSAGE
        except StreamFenced:
            read.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except StorageError as error:
            read.partition.note_read(error)
            if isinstance(read.partition, ReplicaPartition):  # the leader may have another way to the store
                read.preferred_replica = self._leader_of(read.target)
            if read.preferred_replica < 0:
                read.error = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            read.partition.note_read(None)
            loaded[id(read)] = result.batches
            if isinstance(read.partition, Partition):
                read.partition.note_loaded(result.batches)

    # waiting

    def wait(self) -> None:
        """Listen for changes of every partition until enough is appended or the time is over."""
        loop = asyncio.get_running_loop()
        self._may_refresh = self._may_follow = False
        wait_s = self._request.max_wait_ms / 1000
        if self._opening:
            if not self._serving.parking.enter(self._look_again, self._exchange.frame_bytes):
                self._exchange.complete(self.respond())
                return
            wait_s = max(wait_s, PARKED_S)
        self._timer = loop.call_later(wait_s, self._finish)
        self._exchange.on_close = self._stop_waiting
        self._exchange.on_drain = self._finish
        self._listen()

    def _listen(self) -> None:
        """Listen for changes of the partitions that the last pass has found."""
        self._bytes_grown = self._size_bytes
        found = [read.partition for read in self._reads if isinstance(read.partition, Partition | TailPartition)]
        for partition in (*self._unchanged, *found):
            if partition not in self._seen:
                self._seen[partition] = partition.appended_bytes
                partition.add_listener(self._grown)

    def _grown(self, partition: Partition | TailPartition) -> None:
        """Note a partition's growth or change. One recheck follows after this turn of the loop, for all of them."""
        appended_bytes = partition.appended_bytes
        grown = appended_bytes - self._seen[partition]
        self._bytes_grown += grown
        self._seen[partition] = appended_bytes
        # Without growth, the call is for an append from before the wait, or for a change other than an append.
        recheck = not grown or partition.has_failed or self._bytes_grown >= self._min_bytes
        if recheck:
            self._look_again()

    def _look_again(self) -> None:
        """Recheck after this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._recheck)

    def _recheck(self) -> None:
        self._scheduled = False
        if self._timer is None:
            return
        self.read_cached()
        if self.is_enough or self.cold:
            self._finish(read_again=False)
        elif len(self._seen) < len(self._plan.targets):
            self._listen()  # some are open now
        else:
            self._bytes_grown = self._size_bytes

    def _finish(self, *, read_again: bool = True) -> None:
        self._stop_waiting()
        if read_again:
            self._is_last_look = True
            self.read_cached()
        self._exchange.complete(self.respond())

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._seen:
            partition.remove_listener(self._grown)
        self._seen.clear()
        self._serving.parking.leave(self._look_again)
        self._exchange.on_close = self._exchange.on_drain = None

    # answering

    def respond(self) -> FetchResponse:
        """Build the answer from the last read; an empty one if the client is over a quota, as in Kafka."""
        if self._exchange.throttle_fetch(self._size_bytes):
            self._serving.fetch_sessions.withdraw(self._plan)
            return FetchResponse(session_id=self._plan.session_id if self._plan.incremental else NO_SESSION)
        self._serving.fetched_bytes += self._size_bytes
        reads = self._reads
        if self._failed:
            reads = sorted(reads, key=lambda read: read.is_not_read)  # they come last, as in Kafka
        return build_response(self._serving, self._plan, reads, self._request.isolation_level, self._exchange)


API = declare(
    FetchRequest,
    handle,
    guard=open_to_all,  # the handler checks READ: a session has topics that its requests do not name
    reads=True,
    relayed=True,
    local_version=12,  # the newest that names topics by name
)
