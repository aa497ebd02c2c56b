"""Writes dead letters of share groups to their topics, here or on the nodes that lead them (KIP-1191).

The partition of the topic follows from that of the records, so the dead letters of a share partition keep their order.
As in Apache Kafka, an attempt whose answer was lost may have taken effect, so a dead letter may be written twice. If
the topic may not be used, or refuses a dead letter for good, it is given up and its record archived all the same; a
message in the log names the records. But while store, log or leader is away, dead letters wait as every other write
does, which Apache Kafka gives up after five attempts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

import structlog

from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.configs.broker_table import DEAD_LETTER_AUTO_CREATE, DEAD_LETTER_PREFIX
from anabranch.broker.kafka.configs.features import SHARE_VERSION, Features
from anabranch.broker.kafka.configs.group import DEAD_LETTER_TOPIC, GroupConfigs
from anabranch.broker.kafka.configs.topic_table import DEAD_LETTER_ENABLE
from anabranch.broker.kafka.partitions.partition import InspectionWait, Partition, VerificationWait
from anabranch.broker.kafka.partitions.record_work import LoopBudgetExceeded, RecordWorkStopped
from anabranch.broker.kafka.share.dead_letters.batches import Source, build_dead_batch
from anabranch.broker.kafka.share.partition.machine import DeadLetter
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.broker.node.peers.links import REQUEST_BYTES_MAX
from anabranch.broker.node.peers.relay import relay
from anabranch.protocol.batch import parse_batch
from anabranch.protocol.errors import ErrorCode, KafkaError, known_code
from anabranch.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from anabranch.protocol.records import Record, records_of
from anabranch.s3stream.errors import AppendTooLarge, ObjectDamage, StorageError
from anabranch.s3stream.model import StreamBatch
from anabranch.wal.interface import RecordTooLarge, WalError

DEAD_LETTERS_SINCE: Final = 2
"""Level of share.version that turns dead letters on."""
PAUSES_S: Final = (1.0, 30.0)
"""First and longest pause between attempts; each is twice the one before."""
WARNED_AT: Final = 5
"""Attempt after which the log says that dead letters wait."""
COPIED_BYTES_MAX: Final = 1 << 20
"""Bytes of the log that are read at a time for copies."""
BATCH_BYTES_MAX: Final = REQUEST_BYTES_MAX - 4096
"""Bytes of a batch that any node can be sent."""
PRODUCE_VERSION: Final = 12

_log = structlog.get_logger("share")


class _UnusableTopic(Exception):
    """Dead letters may not be written to the group's topic. The text says why."""


class DeadLetterWriter:
    """Writes the dead letters of the share partitions that this node leads."""

    def __init__(
        self,
        topics: TopicMap,
        commands: TopicCommands,
        peers: Peers,
        *,
        node_id: int,
        partitions: int,
        group_configs: GroupConfigs,
        broker_configs: BrokerConfigs,
        features: Features,
    ) -> None:
        """`partitions` is the number of partitions of topics that are created."""
        self.written: Counter[str] = Counter()
        """Dead letters that were written, by group."""
        self.given_up = 0
        """Number of dead letters that were given up."""
        self._topics = topics
        self._commands = commands
        self._peers = peers
        self._node_id = node_id
        self._partitions = partitions
        self._group_configs = group_configs
        self._broker_configs = broker_configs
        self._features = features

    def is_on(self, group_id: str) -> bool:
        """Return whether the group's records become dead letters before they are archived.

        It has a topic for them, and share.version allows for that.
        """
        return bool(
            self._group_configs.share_dead_letter_topic(group_id)
            and self._features.level(SHARE_VERSION) >= DEAD_LETTERS_SINCE
        )

    async def write(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter], is_over: Callable[[], bool]
    ) -> int:
        """Write a batch of the first dead letters of a share partition.

        Returns the number of offsets whose dead letters are durable, or were given up: at least one, unless `is_over`
        says between two attempts that another leader has to write them. It waits as long as they cannot be written.
        """
        source = Source(group_id, partition.topic, partition.index)
        pause_s, longest_s = PAUSES_S
        copies = None if self._group_configs.share_dead_letter_copy_record(group_id) else _Copies({}, letters)
        size, reason = sum(letter.size for letter in letters), ""
        for attempt in count(1):
            try:
                topic = await self._topic(group_id)
                if copies is None:
                    copies = await _read_copies(partition, letters)
                bytes_max = min(topic.config.max_message_bytes, BATCH_BYTES_MAX)
                batch = build_dead_batch(
                    source, copies.letters, copies.records, partition.now_ms(), bytes_max=bytes_max
                )
                size = batch.size
                await self._append(topic, partition.index % len(topic.partitions), batch.records)
            except _UnusableTopic as error:
                reason = str(error)
                break
            except (KafkaError, StorageError, WalError) as error:
                reason = str(error)
                if _is_final(error):
                    break
                if attempt == WARNED_AT:
                    where = {"group": group_id, "partition": str(partition), "first_offset": letters[0].first_offset}
                    _log.warning("dead letters wait: they cannot be written", **where, reason=reason)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                if is_over():
                    return 0
            else:
                self.written[group_id] += size
                return size
        self.given_up += size
        _log.error(
            "dead letters given up: their records are archived without",
            group=group_id,
            partition=str(partition),
            first_offset=letters[0].first_offset,
            records=size,
            reason=reason,
        )
        return size

    # the topic

    async def _topic(self, group_id: str) -> Topic:
        """Return the group's dead-letter topic. Raises _UnusableTopic, KafkaError and StorageError."""
        name = self._group_configs.share_dead_letter_topic(group_id)
        if not name:
            raise _UnusableTopic(f"group {group_id} has no {DEAD_LETTER_TOPIC} any more")
        prefix = self._broker_configs.value(DEAD_LETTER_PREFIX)
        if not name.startswith(prefix):
            raise _UnusableTopic(f"the name of topic {name} does not begin with {prefix} ({DEAD_LETTER_PREFIX})")
        if name.startswith("__"):
            raise _UnusableTopic(f"topic {name} is internal: names of dead-letter topics do not begin with __")
        topic = self._topics.get(name)
        if topic is None:
            if not self._broker_configs.is_on(DEAD_LETTER_AUTO_CREATE):
                raise _UnusableTopic(f"topic {name} does not exist: create it, or turn {DEAD_LETTER_AUTO_CREATE} on")
            configs = {DEAD_LETTER_ENABLE: "true", "message.timestamp.type": "CreateTime"}
            topic = await self._commands.ensure(name, partitions=self._partitions, configs=configs)
        if topic.info.configs.get(DEAD_LETTER_ENABLE, "false") != "true":
            raise _UnusableTopic(f"topic {name} takes no dead letters: set its config {DEAD_LETTER_ENABLE}=true")
        return topic

    async def _append(self, topic: Topic, index: int, batch: bytearray) -> None:
        """Append a batch; it is durable when this returns. Raises KafkaError, StorageError and WalError."""
        led, leader = topic.partitions[index], topic.info.partitions[index].leader
        if led is not None:
            await _append_here(led, batch)
        elif leader in {self._node_id, -1}:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} has no leader now")
        else:
            await self._append_there(leader, topic.name, index, batch)

    async def _append_there(self, node_id: int, topic: str, index: int, batch: bytearray) -> None:
        data = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            acks=-1, timeout_ms=0, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        try:
            response: ProduceResponse = await relay(self._peers, node_id, request, PRODUCE_VERSION)
        except PeerUnavailable as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        result = response.responses[0].partition_responses[0]
        if result.error_code:
            raise KafkaError(known_code(result.error_code), result.error_message)


def _is_final(error: Exception) -> bool:
    """Return whether another attempt would be refused likewise."""
    if isinstance(error, KafkaError):
        # A topic that another node is creating at the same time is there soon.
        return not (error.code.retriable or error.code == ErrorCode.TOPIC_ALREADY_EXISTS)
    return isinstance(error, (AppendTooLarge, RecordTooLarge))


async def _append_here(partition: Partition, batch: bytearray) -> None:
    appended = partition.append(batch, PRODUCE_VERSION)
    while isinstance(appended, InspectionWait):
        appended = partition.append(batch, PRODUCE_VERSION, prepared=await appended.inspect())
    assert not isinstance(appended, VerificationWait), "it is of no transaction"
    if appended.durable is not None:
        await appended.durable


# -- Copies of the records -------------------------------------------------------------------------------------------


class _Copies(NamedTuple):
    """Records to be copied, by offset, and the dead letters of the part of the log that was read for them."""

    records: Mapping[int, Record]
    letters: Sequence[DeadLetter]


async def _read_copies(partition: Partition, letters: Sequence[DeadLetter]) -> _Copies:
    """Read the first of the records. Records that the log no longer has, or that are damaged, are left out.

    Raises StorageError and RecordWorkStopped.
    """
    start_offset = max(letters[0].first_offset, partition.log_start_offset)
    if start_offset > letters[-1].last_offset:
        return _Copies({}, letters)
    try:
        read = await partition.stream.read(start_offset, COPIED_BYTES_MAX, end_offset=partition.high_watermark)
    except ObjectDamage as error:
        _note_missing(partition, start_offset, error)
        return _Copies({}, letters)
    wanted = frozenset(offset for letter in letters for offset in range(letter.first_offset, letter.last_offset + 1))
    records: dict[int, Record] = {}
    left_bytes = BATCH_BYTES_MAX
    for batch in read.batches:
        for record in await _records(partition, batch, wanted):
            if left_bytes <= 0:
                return _Copies(records, _before(letters, record.offset))
            records[record.offset] = record
            left_bytes -= len(record.key or b"") + len(record.value or b"")
    return _Copies(records, _before(letters, read.next_offset) or letters)


async def _records(partition: Partition, batch: StreamBatch, wanted: Container[int]) -> Sequence[Record]:
    """Return those of the records that a batch has; none if it cannot be decoded. Raises RecordWorkStopped."""
    header = parse_batch(batch.payload)
    if header.is_control:
        return ()

    def inspect(data: memoryview) -> Sequence[Record]:
        return [record for record in records_of(header, bytes(data)) if record.offset in wanted]

    try:
        try:
            return partition.work.inspect_on_loop(batch.payload, header, inspect)
        except LoopBudgetExceeded:
            return await partition.work.inspect_in_thread(batch.payload, header, inspect)
    except RecordWorkStopped:
        raise
    except KafkaError as error:
        _note_missing(partition, batch.base_offset, error)
        return ()


def _note_missing(partition: Partition, offset: int, error: Exception) -> None:
    _log.warning("dead letters have no copies of records", partition=str(partition), offset=offset, reason=str(error))


def _before(letters: Sequence[DeadLetter], offset: int) -> Sequence[DeadLetter]:
    """Return the dead letters of the offsets below one."""
    return [
        letter._replace(last_offset=min(letter.last_offset, offset - 1))
        for letter in letters
        if letter.first_offset < offset
    ]
