"""Partitions that other nodes lead, as far as this node serves them: replicas of KIP-392.

A replica has no data of its own. It serves history from objects, and the newest records as their leader has told them
(`tails`). What is in objects it knows as the catalog had it at one moment, a reading: start, committed end and leader
epoch, and the snapshot as of that end, which has the open and the aborted transactions. Invariants of readings:

- Nothing at or past the committed end is served, nor, to READ_COMMITTED readers, past the last stable offset at that
  end. Records before it never change, whoever leads the partition next.
- A reading is served for a second, and for three while the catalog does not answer. A node that was fenced gets none.
- A reading is older than the locations of the data that is served with it. Compaction removes the records of aborted
  transactions first, and the next snapshots leave these out: a list that is older than the data lacks nothing.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import structlog

from anabranch.broker.kafka.partitions.leader_epochs import check_leader_epoch
from anabranch.broker.kafka.partitions.snapshot import decode_transactions
from anabranch.broker.kafka.partitions.transactions import AbortedEntry, PartitionTransactions
from anabranch.broker.kafka.topics.followers import Followers
from anabranch.broker.kafka.topics.tail_partition import LedPartition, TailPartition
from anabranch.broker.kafka.topics.tails import Tails
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.peers.members import Members
from anabranch.protocol.messages.internal.invite_follower import Invitation
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import PartitionInfo, StreamReading
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NodeIdentity, ReadResult

_log = structlog.get_logger("storage")

FRESH_S: Final = 1.0
"""Age up to which a reading is served without a look at the catalog."""
VALID_S: Final = 3.0
"""Age up to which it is served if the catalog does not answer."""
NEW_S: Final = 0.1
"""Age below which a look at the catalog would bring nothing."""
USED_S: Final = 30.0
"""Time after its last use for which a partition is read along with others."""
TRANSACTIONS_MAX: Final = 100_000
"""Open and aborted transactions that all readings keep, but for one reading that has more alone."""
RETURNED_S: Final = 60.0
"""Time for which a leader serves a reader itself that a replica has given nothing."""
READERS_MAX: Final = 10_000
"""Readers that a leader remembers to have sent away."""


class RackReader(NamedTuple):
    """A consumer with a rack, as it asks a leader."""

    name: str
    """The same in all of its requests, and another one than other consumers'."""
    rack: str
    listener: str
    """Name of the listener that it has connected to."""
    asked_s: float


class PlacedPartition(NamedTuple):
    """A partition as this node has just seen it in the view of all topics."""

    topic_id: bytes
    label: str
    info: PartitionInfo

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        return self.info.stream_id


class _Used(NamedTuple):
    """The last use of a reading."""

    placed: PlacedPartition
    at_s: float


class _Sent(NamedTuple):
    """A reader that this node, the leader of a partition, has sent to a replica."""

    offset: int
    at_s: float
    returned: bool = False
    """True if it has come back for the same offset."""


class ReplicaStream:
    """A stream that another node has open, up to the committed end of one reading."""

    __slots__ = ("_storage", "confirmed_offset", "is_outdated", "label", "start_offset", "stream_id")

    def __init__(self, reading: StreamReading, label: str, storage: S3Stream) -> None:
        self.stream_id = reading.stream_id
        self.label = label
        self.start_offset = reading.start_offset
        self.confirmed_offset = reading.end_offset
        self.is_outdated = False
        """True if only a later reading can show what comes next to a reader."""
        self._storage = storage

    async def read(self, offset: int, bytes_max: int, *, end_offset: int) -> ReadResult:
        """Return contiguous batches up to `end_offset` from the one that holds `offset`, which lies before that.

        Empty if only a later reading has them: log compaction may have made one batch of records on both sides of
        the end since. Raises OffsetOutOfRange, StreamNotFound, CorruptObject, StoreError.
        """
        found = await self._storage.read_committed(
            self.stream_id, self.label, offset, bytes_max, end_offset=end_offset, committed_end=self.confirmed_offset
        )
        batches = [each for each in found.batches if each.end_offset <= end_offset]
        self.is_outdated |= not batches
        return ReadResult(batches, batches[-1].end_offset if batches else offset)


class ReplicaPartition:
    """A partition as of one reading. It never changes, so that the parts of an answer are consistent."""

    __slots__ = ("_read_failure", "asked_s", "last_stable_offset", "reading", "stream", "transactions")

    def __init__(
        self, reading: StreamReading, stream: ReplicaStream, transactions: PartitionTransactions, asked_s: float
    ) -> None:
        self.reading = reading._replace(snapshot=None)  # it may be large, and was decoded
        self.stream = stream
        self.transactions = transactions
        self.asked_s = asked_s
        """Time of the loop's clock at which the catalog was asked."""
        self.last_stable_offset = max(transactions.last_stable_offset(reading.end_offset), reading.start_offset)
        self._read_failure = ""

    def __repr__(self) -> str:
        return self.stream.label

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        return self.stream.stream_id

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader."""
        return self.reading.leader_epoch

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self.stream.start_offset

    @property
    def high_watermark(self) -> int:
        """End of what is in objects."""
        return self.stream.confirmed_offset

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's epoch (-1: none) with the leader's. Raises FENCED_ or UNKNOWN_LEADER_EPOCH."""
        check_leader_epoch(current_leader_epoch, self.leader_epoch)

    def is_vacated(self, _entry: AbortedEntry) -> bool:
        """Return True: compaction may have removed the data, here nobody knows."""
        return True

    def note_read(self, failure: StorageError | None) -> None:
        """Log a failed read, once for repeated failures with one reason; None notes a read that succeeded."""
        reason = "" if failure is None else str(failure)
        if reason and reason != self._read_failure:
            _log.error("records cannot be read", partition=str(self), reason=reason)
        self._read_failure = reason


class Replicas:
    """Readings of the partitions that this node is a replica of, made when consumers ask for them."""

    def __init__(
        self,
        catalog: Catalog,
        storage: S3Stream,
        topics: TopicMap,
        members: Members,
        node: NodeIdentity,
        *,
        tails: Tails,
        followers: Followers,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._topics = topics
        self._members = members
        self._node = node
        self.tails = tails
        """Newest records of partitions that other nodes lead."""
        self.followers = followers
        """Replicas that follow partitions which this node leads."""
        self._partitions: dict[int, ReplicaPartition] = {}
        """As of the last readings, by stream."""
        self._used: dict[int, _Used] = {}
        """Uses of a moment ago, by stream: these are read along with others."""
        self._sent: dict[tuple[str, int], _Sent] = {}
        """By reader and stream, the one that was sent first in front."""
        self._lock = asyncio.Lock()
        self.looks = 0
        """Number of times that the catalog was asked."""
        self.object_bytes = 0
        """Bytes of records that consumers were sent, from objects, of partitions that other nodes lead."""
        self.tail_bytes = 0
        """The same from memory, as the leaders have told them."""
        self.answers = 0
        """Answers with these records, one for each partition."""
        self.readers_sent = 0
        """Times that this node, as a leader, has named a replica to a consumer."""
        self.readers_returned = 0
        """Times that this node, as a replica, has named the leader to one."""

    def __len__(self) -> int:
        """Return the number of readings."""
        return len(self._partitions)

    # whom this node names to readers, as a leader

    def choose(self, topic: str | bytes, index: int, offset: int, reader: RackReader) -> int:
        """Return a living replica in a client's rack that serves what the leader, this node, has in objects only.

        -1 if there is none besides this node, or if the reader has got nothing from one a moment ago.
        """
        found = self._candidate(topic, index, reader)
        if found is None or not self._may_send(reader, found[1].stream_id, offset):
            return -1
        return found[0]

    def choose_follower(self, topic: str | bytes, index: int, offset: int, reader: RackReader, epoch: int) -> int:
        """Return the replica that `choose` returns if it follows, and has what the leader has in memory at the offset.

        Otherwise it is invited to follow under this leader epoch.
        """
        if reader.rack == self._members.own.rack:
            return -1
        found = self._candidate(topic, index, reader)
        if found is None:
            return -1
        node_id, placed = found
        stream_id, now_s = placed.stream_id, asyncio.get_running_loop().time()
        if not self.followers.has(node_id, stream_id, offset, now_s):
            invitation = Invitation(topic_id=placed.topic_id, index=index, leader_epoch=epoch, offset=offset)
            self.followers.invite(node_id, stream_id, invitation, now_s)
            return -1
        return node_id if self._may_send(reader, stream_id, offset) else -1

    def _candidate(self, topic: str | bytes, index: int, reader: RackReader) -> tuple[int, PlacedPartition] | None:
        """Return a living replica in a client's rack, and the partition."""
        found = self._topics.get(topic)
        if found is None:
            return None
        info = found.info.partitions[index]
        choices = [
            member.node_id
            for member in map(self._members.get, info.replicas)
            if member is not None
            and member.node_id != self._node.node_id
            and member.rack == reader.rack
            and member.node_id not in self._members.draining
            and member.at(reader.listener) is not None
        ]
        return (choices[index % len(choices)], PlacedPartition(found.topic_id, "", info)) if choices else None

    def _may_send(self, reader: RackReader, stream_id: int, offset: int) -> bool:
        """Return whether a reader is sent to a replica; notes it then. The store of a replica may be away."""
        name, asked_s = reader.name, reader.asked_s
        before = self._sent.get((name, stream_id))
        if before is None or asked_s - before.at_s >= RETURNED_S:
            self._note_sent(name, stream_id, _Sent(offset, asked_s))
            return True
        if asked_s != before.at_s and not before.returned:  # not the same request again
            before = _Sent(offset, asked_s, returned=offset == before.offset)
            self._note_sent(name, stream_id, before)
        return not before.returned

    def _note_sent(self, reader: str, stream_id: int, sent: _Sent) -> None:
        self._sent.pop((reader, stream_id), None)
        self._sent[reader, stream_id] = sent
        if len(self._sent) > READERS_MAX:
            del self._sent[next(iter(self._sent))]

    # what this node serves, as a replica

    def find(self, topic: str | bytes, index: int) -> PlacedPartition | None:
        """Return a partition if this node is a replica of it, and does not lead it; else None."""
        found = self._topics.get(topic)
        if found is None or not 0 <= index < len(found.info.partitions):
            return None
        info = found.info.partitions[index]
        if self._node.node_id == info.leader or self._node.node_id not in info.replicas:
            return None
        return PlacedPartition(found.topic_id, f"{found.name}-{index}", info)

    def tail(self, placed: PlacedPartition, offset: int, current_leader_epoch: int) -> TailPartition | None:
        """Return the tail of a partition if it has the offset, or gets it next.

        None to clients that know a later leader epoch.
        """
        tail = self.tails.get(placed.stream_id)
        if tail is None or not tail.holds(offset) or current_leader_epoch > tail.leader_epoch:
            return None
        info = placed.info
        if info.leader != tail.led.leader or info.leader_epoch > tail.leader_epoch:
            self.tails.end(placed.stream_id, "it has another leader, or leader epoch")
            return None
        tail.asked_s = asyncio.get_running_loop().time()
        if (known := self._partitions.get(placed.stream_id)) is not None:
            tail.read_start = max(tail.read_start, known.log_start_offset)
        return tail

    async def follow(self, ends: Mapping[int, int]) -> None:
        """Follow streams from the offsets on where their readings end; return when the leaders have answered."""
        tails = []
        for stream_id, offset in ends.items():
            partition, used = self._partitions.get(stream_id), self._used.get(stream_id)
            if partition is not None and used is not None:
                led = _led(used.placed, partition.leader_epoch)
                tails.append(self.tails.follow(led, offset))
        for tail in tails:
            if tail is not None:
                await tail.heard.wait()

    def accept(self, leader: int, invitation: Invitation) -> None:
        """Follow a partition that its leader has consumers in this rack for. An invitation that is wrong is ignored."""
        placed = self.find(invitation.topic_id, invitation.index)
        if placed is not None and placed.info.leader == leader:
            self.tails.follow(_led(placed, invitation.leader_epoch), invitation.offset)

    def note_redirect(self, *, by_leader: bool) -> None:
        """Count an answer that names another node to a consumer: a replica, or the leader."""
        if by_leader:
            self.readers_sent += 1
        else:
            self.readers_returned += 1

    def note_sent(self, partition: ReplicaPartition | TailPartition, size_bytes: int) -> None:
        """Count an answer with records to a consumer."""
        self.answers += 1
        if isinstance(partition, TailPartition):
            self.tail_bytes += size_bytes
        else:
            self.object_bytes += size_bytes

    def get(self, placed: PlacedPartition) -> ReplicaPartition | None:
        """Return a partition as of its last reading, unless that is too old to be served at all; notes the use."""
        now_s = asyncio.get_running_loop().time()
        self._used[placed.stream_id] = _Used(placed, now_s)
        found = self._partitions.get(placed.stream_id)
        return None if found is None or now_s - found.asked_s > VALID_S else found

    def is_older(self, stream_id: int, age_s: float) -> bool:
        """Return whether the last reading of a stream is older than `age_s` or outdated, or there is none."""
        found = self._partitions.get(stream_id)
        return found is None or found.stream.is_outdated or asyncio.get_running_loop().time() - found.asked_s > age_s

    async def refresh(self, stream_ids: Collection[int]) -> None:
        """Read these streams, and with them all that were used lately, unless it has just been done.

        Readings stay as they are while the catalog does not answer.
        """
        async with self._lock:
            if not any(self.is_older(stream_id, NEW_S) for stream_id in stream_ids):
                return
            asked_s = asyncio.get_running_loop().time()
            self._forget_unused(asked_s)
            known = {
                stream_id: None if (partition := self._partitions.get(stream_id)) is None else partition.reading
                for stream_id in self._used
            }
            self.looks += 1
            try:
                found = await self._catalog.read_streams(self._node, known)
            except StorageError as error:
                _log.debug("replicas do not know how far their partitions are", reason=str(error))
                return
            self._note(known.keys(), found, asked_s)

    def _note(self, asked: Collection[int], found: Mapping[int, StreamReading], asked_s: float) -> None:
        for stream_id in asked:
            if stream_id not in found:
                self._forget(stream_id)
        for stream_id, reading in found.items():
            known = self._partitions.get(stream_id)
            if reading.snapshot is not None:
                try:
                    transactions = decode_transactions(stream_id, reading.snapshot)
                except StorageError as error:
                    _log.error("a partition cannot be served as a replica", stream_id=stream_id, reason=str(error))
                    self._forget(stream_id)
                    continue
                self._storage.invalidate((stream_id,))  # data from before has transactions that are not listed any more
            else:
                assert known is not None, "it was told as known"
                transactions = known.transactions
            tail = self.tails.get(stream_id)
            if tail is not None and tail.leader_epoch < reading.leader_epoch:
                self.tails.end(stream_id, "it has a later leader epoch")
            stream = ReplicaStream(reading, self._used[stream_id].placed.label, self._storage)
            self._partitions[stream_id] = ReplicaPartition(reading, stream, transactions, asked_s)
        self._bound()

    def _bound(self) -> None:
        """Forget readings, those first that were not used for longest, as long as they keep too many transactions."""
        counts = {
            stream_id: each.transactions.aborted_count + len(each.transactions.open)
            for stream_id, each in self._partitions.items()
        }
        total = sum(counts.values())
        if total <= TRANSACTIONS_MAX:
            return
        for stream_id in sorted(counts, key=lambda each: self._used[each].at_s)[:-1]:
            self._forget(stream_id)
            total -= counts[stream_id]
            if total <= TRANSACTIONS_MAX:
                return

    def _forget_unused(self, now_s: float) -> None:
        for stream_id in [key for key, used in self._used.items() if now_s - used.at_s > USED_S]:
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        self._partitions.pop(stream_id, None)
        self._used.pop(stream_id, None)


def _led(placed: PlacedPartition, leader_epoch: int) -> LedPartition:
    info = placed.info
    return LedPartition(placed.topic_id, info.index, info.stream_id, placed.label, info.leader, leader_epoch)
