"""The persister of share partitions: calls this node's share coordinator, or those of other nodes.

A call that meets a coordinator that moves, loads or does not answer is repeated, for a time. So it may be carried out
twice, and late. That is harmless: a state has the same contents in whatever order writes of one leader arrive, and
epochs refuse what comes from before an initialisation or a change of leaders.

One request at a time of each kind and group is under way to a node. It takes the calls that have gathered meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from anabranch.broker.kafka.coordination.internal_topics import SHARE_STATE_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.share.interface import InitialState, ShareKey, ShareState, ShareSummary, StateBatch
from anabranch.broker.kafka.share.state.coordinator import ShareCoordinator, durable
from anabranch.broker.kafka.share.state.stored import StateWrite
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.protocol.errors import ErrorCode, KafkaError, known_code
from anabranch.protocol.messages import delete_share_group_state as deletion
from anabranch.protocol.messages import initialize_share_group_state as initialization
from anabranch.protocol.messages import read_share_group_state as reading
from anabranch.protocol.messages import read_share_group_state_summary as summarizing
from anabranch.protocol.messages import write_share_group_state as writing
from anabranch.s3stream.errors import StorageError

PERSIST_S: Final = 15.0
"""Longest search for a coordinator that answers."""
PAUSES_S: Final = (0.02, 0.5)
"""First and longest pause before the coordinator is looked for again; each is twice the one before."""
KEYS_PER_REQUEST_MAX: Final = 500
"""Bounds a request: a write has at most some thousand batches of 23 bytes for each key."""
MOVING: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)

A = TypeVar("A")
R = TypeVar("R")


class _Call(NamedTuple, Generic[A, R]):
    key: ShareKey
    argument: A
    done: "asyncio.Future[R]"


class _Result(Protocol):
    """Fields of the result of a partition, in all these APIs."""

    @property
    def partition(self) -> int: ...

    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Operation(Generic[A, R]):
    """One of the five requests, here and at other nodes."""

    here: Callable[[ShareKey, A], Awaitable[R]]
    version: int
    request: Callable[[Sequence[_Call[A, R]]], object]
    """Returns the request message for calls of one group."""
    value: Callable[[Any], R]
    """Returns the value of a partition's result without an error."""


class ClusterPersister:
    """Satisfies `SharePersister`. `spawn` runs a coroutine as a task of the node."""

    def __init__(
        self,
        coordinator: ShareCoordinator,
        topics: TopicMap,
        peers: Peers,
        *,
        node_id: int,
        create_topic: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`create_topic` creates `__share_group_state` unless it exists; it may raise KafkaError and StorageError."""
        self._topics = topics
        self._peers = peers
        self._node_id = node_id
        self._create_topic = create_topic
        self._spawn = spawn
        self._queues: dict[tuple[int, _Operation[Any, Any], str], list[_Call[Any, Any]]] = {}
        """Calls that wait, by node, operation and group. An entry exists while a task sends them."""
        self._initialize: _Operation[InitialState, None] = _Operation(
            lambda key, initial: durable(coordinator.initialize(key, initial)), 0, _initialize_request, _nothing
        )
        self._read: _Operation[int, ShareState] = _Operation(_reader(coordinator), 0, _read_request, _state)
        self._write: _Operation[StateWrite, None] = _Operation(
            lambda key, wanted: durable(coordinator.write(key, wanted)), 1, _write_request, _nothing
        )
        self._delete: _Operation[None, None] = _Operation(
            lambda key, _: durable(coordinator.delete(key)), 0, _delete_request, _nothing
        )
        self._summary: _Operation[None, ShareSummary] = _Operation(
            _summarizer(coordinator), 1, _summary_request, _summary
        )

    # -- The interface -----------------------------------------------------------------------------------------------

    async def initialize(self, states: Mapping[ShareKey, InitialState]) -> Mapping[ShareKey, ErrorCode]:
        """Write states from which share partitions begin; returns a code for each key."""
        return await _codes(states, lambda key: self._call(self._initialize, key, states[key]))

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return the state, and shut out leaders with a lower epoch. Raises KafkaError."""
        return await self._call(self._read, key, leader_epoch)

    async def write(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Write changed batches and the start offset; it is durable when this returns. Raises KafkaError."""
        wanted = StateWrite(state_epoch, leader_epoch, start_offset, delivery_complete_count, batches)
        await self._call(self._write, key, wanted)

    async def delete(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ErrorCode]:
        """Delete states; returns a code for each key."""
        return await _codes(keys, lambda key: self._call(self._delete, key, None))

    async def summaries(self, keys: Collection[ShareKey]) -> Mapping[ShareKey, ShareSummary | ErrorCode]:
        """Return the states without their batches, or the error, of each key."""
        return await _each(keys, lambda key: self._call(self._summary, key, None))

    # -- One call ----------------------------------------------------------------------------------------------------

    async def _call(self, operation: _Operation[A, R], key: ShareKey, argument: A) -> R:
        """Carry out an operation at the coordinator of the key, and repeat that while it may help."""
        refusal = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        pause_s, longest_s = PAUSES_S
        try:
            async with asyncio.timeout(PERSIST_S):
                while True:
                    try:
                        return await self._attempt(operation, key, argument)
                    except KafkaError as error:
                        if not (error.code in MOVING or self._is_news(error.code, key)):
                            raise
                        refusal = error
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
        except TimeoutError:
            raise refusal from None

    def _is_news(self, code: ErrorCode, key: ShareKey) -> bool:
        """Return whether the coordinator's node has not heard of a topic or partition yet."""
        topic = self._topics.get(key.topic_id) if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
        return topic is not None and 0 <= key.partition < len(topic.partitions)

    async def _attempt(self, operation: _Operation[A, R], key: ShareKey, argument: A) -> R:
        topic = self._topics.get(SHARE_STATE_TOPIC)
        if topic is None:
            try:
                await self._create_topic()
            except StorageError as error:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            topic = self._topics.require(SHARE_STATE_TOPIC)
        leader = topic.info.partitions[partition_of(key.text, len(topic.info.partitions))].leader
        if leader in {self._node_id, -1}:
            return await operation.here(key, argument)
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        queue_key = leader, operation, key.group_id
        queue = self._queues.get(queue_key)
        if queue is None:
            queue = self._queues[queue_key] = []
            self._spawn(self._send_all(*queue_key))
        queue.append(_Call(key, argument, done))
        return await done

    # -- Other nodes -------------------------------------------------------------------------------------------------

    async def _send_all(self, node_id: int, operation: _Operation[Any, Any], group_id: str) -> None:
        """Send until nothing waits."""
        queue_key = node_id, operation, group_id
        try:
            while queue := [call for call in self._queues[queue_key] if not call.done.done()]:
                sent = list({call.key: call for call in reversed(queue)}.values())[:KEYS_PER_REQUEST_MAX]
                taken = set(map(id, sent))
                self._queues[queue_key] = [call for call in queue if id(call) not in taken]
                await self._send(node_id, operation, sent)
        finally:
            for call in self._queues.pop(queue_key):  # the node stops
                call.done.cancel()

    async def _send(self, node_id: int, operation: _Operation[Any, Any], calls: Sequence[_Call[Any, Any]]) -> None:
        """Send one request, with each key once, and answer its calls."""
        try:
            response = await self._peers.call(node_id, operation.request(calls), operation.version)
        except PeerUnavailable as error:
            failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            for call in calls:
                _fail(call, failure)
            return
        results: dict[tuple[bytes, int], _Result] = {
            (bytes(topic.topic_id), result.partition): result
            for topic in response.results
            for result in topic.partitions
        }
        for call in calls:
            result = results.get((call.key.topic_id, call.key.partition))
            code = known_code(None if result is None else result.error_code)
            if result is None or code:
                _fail(call, KafkaError(code, None if result is None else result.error_message))
            elif not call.done.done():
                call.done.set_result(operation.value(result))


def _fail(call: _Call[Any, Any], error: KafkaError) -> None:
    if not call.done.done():
        call.done.set_exception(error)


async def _each(
    keys: Collection[ShareKey], call: Callable[[ShareKey], Awaitable[R]]
) -> Mapping[ShareKey, R | ErrorCode]:
    """Carry out a call for each key at the same time; returns the results, or the codes of errors."""

    async def result_of(key: ShareKey) -> R | ErrorCode:
        try:
            return await call(key)
        except KafkaError as error:
            return error.code

    async with asyncio.TaskGroup() as tasks:
        results = {key: tasks.create_task(result_of(key)) for key in keys}
    return {key: task.result() for key, task in results.items()}


async def _codes(
    keys: Collection[ShareKey], call: Callable[[ShareKey], Awaitable[None]]
) -> Mapping[ShareKey, ErrorCode]:
    return {key: code or ErrorCode.NONE for key, code in (await _each(keys, call)).items()}


def _reader(coordinator: ShareCoordinator) -> Callable[[ShareKey, int], Awaitable[ShareState]]:
    async def read(key: ShareKey, leader_epoch: int) -> ShareState:
        state, outcome = coordinator.read(key, leader_epoch)
        await durable(outcome)
        return state

    return read


def _summarizer(coordinator: ShareCoordinator) -> Callable[[ShareKey, None], Awaitable[ShareSummary]]:
    async def summarize(key: ShareKey, _: None) -> ShareSummary:
        return coordinator.summary(key)

    return summarize


# -- Messages --------------------------------------------------------------------------------------------------------


def _by_topic(calls: Iterable[_Call[A, R]]) -> Iterable[tuple[bytes, Iterable[_Call[A, R]]]]:
    by_topic = attrgetter("key.topic_id")
    return groupby(sorted(calls, key=by_topic), by_topic)


def _initialize_request(calls: Sequence[_Call[InitialState, None]]) -> object:
    return initialization.InitializeShareGroupStateRequest(
        group_id=calls[0].key.group_id,
        topics=[
            initialization.InitializeStateData(
                topic_id=topic_id,
                partitions=[
                    initialization.PartitionData(
                        partition=key.partition,
                        state_epoch=initial.state_epoch,
                        start_offset=initial.start_offset,
                    )
                    for key, initial, _ in of_topic
                ],
            )
            for topic_id, of_topic in _by_topic(calls)
        ],
    )


def _read_request(calls: Sequence[_Call[int, ShareState]]) -> object:
    return reading.ReadShareGroupStateRequest(
        group_id=calls[0].key.group_id,
        topics=[
            reading.ReadStateData(
                topic_id=topic_id,
                partitions=[
                    reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
                    for key, leader_epoch, _ in of_topic
                ],
            )
            for topic_id, of_topic in _by_topic(calls)
        ],
    )


def _write_request(calls: Sequence[_Call[StateWrite, None]]) -> object:
    return writing.WriteShareGroupStateRequest(
        group_id=calls[0].key.group_id,
        topics=[
            writing.WriteStateData(
                topic_id=topic_id,
                partitions=[
                    writing.PartitionData(
                        partition=key.partition,
                        state_epoch=wanted.state_epoch,
                        leader_epoch=wanted.leader_epoch,
                        start_offset=wanted.start_offset,
                        delivery_complete_count=wanted.delivery_complete_count,
                        state_batches=[
                            writing.StateBatch(
                                first_offset=each.first_offset,
                                last_offset=each.last_offset,
                                delivery_state=each.delivery_state,
                                delivery_count=each.delivery_count,
                            )
                            for each in wanted.batches
                        ],
                    )
                    for key, wanted, _ in of_topic
                ],
            )
            for topic_id, of_topic in _by_topic(calls)
        ],
    )


def _delete_request(calls: Sequence[_Call[None, None]]) -> object:
    return deletion.DeleteShareGroupStateRequest(
        group_id=calls[0].key.group_id,
        topics=[
            deletion.DeleteStateData(
                topic_id=topic_id,
                partitions=[deletion.PartitionData(partition=key.partition) for key, _, _ in of_topic],
            )
            for topic_id, of_topic in _by_topic(calls)
        ],
    )


def _summary_request(calls: Sequence[_Call[None, ShareSummary]]) -> object:
    return summarizing.ReadShareGroupStateSummaryRequest(
        group_id=calls[0].key.group_id,
        topics=[
            summarizing.ReadStateSummaryData(
                topic_id=topic_id,
                partitions=[
                    summarizing.PartitionData(partition=key.partition, leader_epoch=0) for key, _, _ in of_topic
                ],
            )
            for topic_id, of_topic in _by_topic(calls)
        ],
    )


def _nothing(_result: object) -> None:
    return None


def _state(result: reading.PartitionResult) -> ShareState:
    batches = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in result.state_batches
    )
    return ShareState(result.state_epoch, result.start_offset, batches)


def _summary(result: summarizing.PartitionResult) -> ShareSummary:
    return ShareSummary(result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)
