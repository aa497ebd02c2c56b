"""Evens out what the nodes have to do, from one of them: the controller.

Every ten seconds it asks all nodes for the traffic of their partitions, plans, and orders moves, which the leaders
carry out. It keeps nothing that another controller needs: two of them at a time order moves from what both see.
"""

import asyncio
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from anabranch.broker.cluster.balancer.costs import advise, cores_of
from anabranch.broker.cluster.balancer.loads import PIECE, SAMPLE_S, LoadMeter
from anabranch.broker.cluster.balancer.planning import (
    Move,
    NodeLoad,
    PartitionLoad,
    Plan,
    Planner,
    Rule,
    View,
    Zone,
)
from anabranch.broker.kafka.topics.move_requests import MoveProgress, MoveRequests, Place
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.members import Members
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.internal.describe_balance import (
    BalancedNode,
    BalancedPartition,
    BalanceMove,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
)
from anabranch.protocol.messages.internal.describe_loads import (
    DescribeLoadsRequest,
    DescribeLoadsResponse,
    PartitionTraffic,
)
from anabranch.protocol.messages.internal.describe_zones import DescribeZonesRequest, DescribeZonesResponse
from anabranch.s3stream.catalog.values import MoveReason, PartitionInfo
from anabranch.s3stream.errors import StorageError

UNMEASURED_S: Final = 3 * SAMPLE_S
"""Time after a move in which a partition counts with what it cost on the node before: nothing is measured yet."""
LONG_S: Final = 6 * 3600.0
"""A partition that was busy counts as such until long after: it falls by two thirds in this time."""
MOVES_S: Final = 30.0
"""Longest wait for the moves of a plan before the next one is made."""
HISTORY: Final = 200
T = TypeVar("T")

_log = structlog.get_logger("balancer")


@dataclass(slots=True)
class MoveMade:
    """A move that was ordered, or is planned."""

    ordered_ms: int
    """Wall-clock time; -1: it is only planned."""
    place: Place
    move: Move
    rule: Rule
    cores: float
    """Cost of the partition."""
    done: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """The last plan, and its input."""

    planned_ms: int
    view: View
    plan: Plan
    places: Mapping[int, Place]
    """Partitions by stream."""
    traffic: Mapping[int, PartitionTraffic]
    """The same, without those that have none."""


@dataclass(slots=True)
class _Known:
    """Knowledge of a partition from earlier views, in cores."""

    leader: int
    cores: float
    long_cores: float


@dataclass(slots=True)
class BalanceCounts:
    """Counters since the start of this node."""

    moves: dict[Rule, int] = field(default_factory=lambda: dict.fromkeys(Rule, 0))
    """Moves ordered, by rule."""
    failures: int = 0
    """Those that were not carried out."""


class Balancer:
    """Balances the cluster while this node is its controller, and while `run` runs.

    `ask` returns another node's response to a request; it raises PeerUnavailable, also if the node's version does not
    know the request, and KafkaError. `judged` returns the nodes that are silent, and may be taken over soon.
    """

    def __init__(
        self,
        requests: MoveRequests,
        topics: TopicMap,
        members: Members,
        meter: LoadMeter,
        *,
        ask: Callable[[int, Any], Awaitable[Any]],
        judged: Callable[[], Iterable[int]],
        is_on: Callable[[], bool],
        zone: Callable[[], Zone],
        steady_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.last: Balance | None = None
        """The newest plan, with moves or without; None if this node does not balance."""
        self.history: deque[MoveMade] = deque(maxlen=HISTORY)
        """The last moves that this node has ordered."""
        self.counts = BalanceCounts()
        self._requests = requests
        self._topics = topics
        self._members = members
        self._meter = meter
        self._ask = ask
        self._judged = judged
        self._is_on = is_on
        self._zone = zone
        self._steady_ms = steady_ms
        self._now_ms = now_ms
        self._planner = Planner()
        self._known: dict[int, _Known] = {}
        self._hot: frozenset[int] = frozenset()
        self._waits = ""
        """Reason why nothing could be planned; each is logged once."""

    @property
    def is_on(self) -> bool:
        """False: it is paused. It plans, and orders nothing."""
        return self._is_on()

    async def run(self) -> None:
        """Measure and balance until cancelled. A node that is alone measures: another one may join."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._meter.forget_deleted()
            await self._meter.sample()
            if self._why_idle():
                self._planner, self._known, self.last = Planner(), {}, None
            else:
                await self.balance()

    def _why_idle(self) -> str:
        """Return why this node balances nothing; empty if it does."""
        own, controller = self._members.own.node_id, self._members.controller_id
        if own != controller:
            return f"node {own} does not balance: the controller, node {controller}, does"
        return "" if len(self._members.living()) > 1 else "no other node lives"

    async def balance(self) -> None:
        """Ask for loads, and carry out what is planned."""
        self._note_outcomes()
        try:
            answers = await self._measure(DescribeLoadsRequest(), self._meter.describe())
            zones: Mapping[int, DescribeZonesResponse] = {}
            if self._zone() is not Zone.OFF and len({member.rack for member in self._members.living()}) > 1:
                zones = await self._measure(DescribeZonesRequest(), self._meter.describe_zones())
            while await self._order(answers, zones):
                pass
        except (KafkaError, StorageError) as error:  # of a partition or a node that has just gone, or the catalog
            self._say(str(error))

    async def _measure(self, request: Any, own_answer: T) -> Mapping[int, T]:
        """Return the answers by node, without the nodes that do not answer."""
        own = self._members.own.node_id
        answers = {own: own_answer}

        async def ask(node_id: int) -> None:
            try:
                answers[node_id] = await self._ask(node_id, request)
            except (PeerUnavailable, KafkaError) as error:
                _log.debug("a node tells no loads", asked_node_id=node_id, reason=str(error))

        async with asyncio.TaskGroup() as group:
            for member in self._members.living():
                if member.node_id != own:
                    group.create_task(ask(member.node_id))
        return answers

    async def _order(
        self, answers: Mapping[int, DescribeLoadsResponse], zones: Mapping[int, DescribeZonesResponse]
    ) -> bool:
        """Order what a plan moves. Returns whether another one may follow at once: a node is being filled."""
        last = await self._look(answers, zones)
        plan = self._planner.plan(last.view, self._now_s())
        self.last = last = Balance(self._now_ms(), last.view, plan, last.places, last.traffic)
        self._say(plan.waits)
        self._name_hot(last)
        if not plan.moves or plan.rule is None or not self._is_on() or self._why_idle():  # loads took their time
            return False
        self._planner.note_ordered(plan, self._now_s())
        made = {last.places[move.stream_id]: self._note(last, move, plan.rule) for move in plan.moves}
        wanted = {place: each.move.to_node for place, each in made.items()}
        leaders = {place: each.move.from_node for place, each in made.items()}  # a person may have moved one since
        try:
            await self._requests.request(wanted, MoveReason.PLACEMENT, leaders=leaders)
        except (KafkaError, StorageError) as error:
            self._note_progress(made, MoveProgress((), (), dict.fromkeys(made, str(error))))
            raise
        progress = await self._requests.wait(wanted, MOVES_S)
        self._note_progress(made, progress)
        return plan.rule is Rule.FILL and not progress.failed and not progress.moving

    def _note(self, last: Balance, move: Move, rule: Rule) -> MoveMade:
        place, cores = last.places[move.stream_id], self._known[move.stream_id].cores
        made = MoveMade(self._now_ms(), place, move, rule, cores)
        self.history.append(made)
        self.counts.moves[rule] += 1
        _log.info(
            "partition is moved to balance the cluster",
            partition=str(place),
            from_node=move.from_node,
            to_node=move.to_node,
            rule=str(rule),
            reason=move.reason,
            cores=round(cores, 4),
        )
        return made

    def _note_outcomes(self) -> None:
        """Note what has become of moves that have taken longer than they were waited for."""
        made = {each.place: each for each in self.history if not each.done and not each.failure}
        self._note_progress(made, self._requests.progress({place: each.move.to_node for place, each in made.items()}))

    def _note_progress(self, made: Mapping[Place, MoveMade], progress: MoveProgress) -> None:
        for place in progress.done:
            made[place].done = True
        for place, failure in progress.failed.items():
            made[place].failure = failure
        self.counts.failures += len(progress.failed)

    def _name_hot(self, last: Balance) -> None:
        for stream_id in last.plan.hot:
            if stream_id not in self._hot and stream_id in last.traffic:
                _log.warning(
                    "a partition costs more than a node does in the mean: no move helps",
                    partition=str(last.places[stream_id]),
                    cores=round(cores_of(last.traffic[stream_id]), 4),
                    advice=advise(last.traffic[stream_id]),
                )
        self._hot = frozenset(last.plan.hot)

    async def _look(
        self, answers: Mapping[int, DescribeLoadsResponse], zones: Mapping[int, DescribeZonesResponse]
    ) -> Balance:
        """Return what a plan is made from. The loop serves clients meanwhile."""
        racks = {
            each.stream_id: {rate.rack: rate.bytes for rate in each.rates}
            for answer in zones.values()
            for each in answer.partitions
        }
        traffic = {each.stream_id: each for answer in answers.values() for each in answer.partitions}
        told_by = {each.stream_id: node_id for node_id, answer in answers.items() for each in answer.partitions}
        partitions: list[PartitionLoad] = []
        places: dict[int, Place] = {}
        waits, absent = self._why_unsettled(answers), dict[int, str]()
        known, self._known = self._known, {}
        for count, (topic, info) in enumerate(list(self._partitions()), 1):
            if why := _why_moving(topic, info, answers):
                if self._members.get(info.leader) is None:
                    absent.setdefault(info.leader, why)
                else:
                    waits = waits or why
            found = traffic.get(info.stream_id)
            before = known.get(info.stream_id)
            each = self._known[info.stream_id] = _remember(before, info, found)
            places[info.stream_id] = Place(topic, info.index)
            partitions.append(
                PartitionLoad(
                    info.stream_id,
                    topic,
                    info.leader,
                    each.cores,
                    each.long_cores,
                    _moved_s(before, info, found, told_by.get(info.stream_id)),
                    info.replicas or (info.preferred,),
                    racks.get(info.stream_id, {}),
                )
            )
            if not count % PIECE:
                await asyncio.sleep(0)
        nodes = [
            NodeLoad(member.node_id, (told := answers[member.node_id]).up_ms / 1000, member.rack, told.replica_cores)
            for member in self._members.living()
            if member.node_id in answers and member.node_id not in self._members.draining
        ]
        view = View(nodes, partitions, waits, absent, self._zone())
        return Balance(self._now_ms(), view, Plan(), places, traffic)

    def _partitions(self) -> Iterator[tuple[str, PartitionInfo]]:
        return ((topic.name, info) for topic in self._topics for info in topic.info.partitions)

    def _why_unsettled(self, answers: Mapping[int, DescribeLoadsResponse]) -> str:
        """Return why no node may be given partitions now; empty if nothing speaks against it."""
        living = {member.node_id for member in self._members.living()}
        listed = {member.node_id for member in self._members.listed()}
        if judged := (listed - living) | (listed & set(self._judged())):
            return f"node {min(judged)} is silent, or has died a moment ago"
        if unheard := living - answers.keys():
            return f"node {min(unheard)} does not tell its loads"
        return ""

    def _now_s(self) -> float:
        return self._steady_ms() / 1000

    def _say(self, waits: str) -> None:
        if waits and waits != self._waits:
            _log.info("balancing waits", reason=waits)
        self._waits = waits

    # what an operator sees

    def describe(self, request: DescribeBalanceRequest) -> DescribeBalanceResponse:
        """Return loads, the last plan and earlier moves."""
        last = self.last
        if last is None:
            waits = self._why_idle() or self._waits or "nothing is measured yet"
            return DescribeBalanceResponse(is_on=self._is_on(), waits=waits, history=self._describe_history())
        rule = last.plan.rule or Rule.SHED
        cores = {each.stream_id: each.cores for each in last.view.partitions}
        shown = heapq.nsmallest(
            request.partitions_max, last.view.partitions, lambda each: (-each.cores, each.topic, each.stream_id)
        )
        return DescribeBalanceResponse(
            is_on=self._is_on(),
            waits=self._waits,
            planned_ms=last.planned_ms,
            spread_before=last.plan.spread_before,
            spread_after=last.plan.spread_after,
            nodes=list(self._describe_nodes(last)),
            partitions=[_describe_partition(last, each) for each in shown],
            moves=[
                _describe_move(MoveMade(-1, last.places[move.stream_id], move, rule, cores[move.stream_id]))
                for move in last.plan.moves
            ],
            history=self._describe_history(),
        )

    def _describe_nodes(self, last: Balance) -> Iterator[BalancedNode]:
        known = {each.node_id: each for each in last.view.nodes}
        by_leader: dict[int, list[PartitionLoad]] = defaultdict(list)
        for each in last.view.partitions:
            by_leader[each.leader].append(each)
        for member in self._members.living():
            led, told = by_leader[member.node_id], known.get(member.node_id)
            replica_cores = 0.0 if told is None else told.cores
            found = [last.traffic[each.stream_id] for each in led if each.stream_id in last.traffic]
            yield BalancedNode(
                node_id=member.node_id,
                rack=member.rack,
                cores=sum(each.cores for each in led) + replica_cores,
                replica_cores=replica_cores,
                partitions=len(led),
                received_bytes=sum(each.received_bytes for each in found),
                sent_bytes=sum(each.sent_bytes for each in found),
                requests=sum(each.requests for each in found),
                up_ms=-1 if told is None else int(told.up_s * 1000),
                draining=member.node_id in self._members.draining,
            )

    def _describe_history(self) -> list[BalanceMove]:
        return [_describe_move(each) for each in reversed(self.history)]


def _why_moving(topic: str, info: PartitionInfo, answers: Mapping[int, DescribeLoadsResponse]) -> str:
    """Return why a partition is not where it will stay; empty if it is."""
    place = Place(topic, info.index)
    if info.order is not None and not info.order.failure:
        return f"partition {place} is being moved to node {info.order.to_node}"
    if info.leader not in answers or info.owner not in {info.leader, -1}:
        return f"partition {place} waits for node {info.leader}"
    return ""


def _moved_s(known: _Known | None, info: PartitionInfo, traffic: PartitionTraffic | None, told_by: int | None) -> float:
    """Return for how long its leader has led a partition that was moved there on purpose.

    One that was taken over is not where it shall be, and may leave at once. One that was led once only has not moved.
    """
    if info.leader_epoch <= 1 or info.preferred != info.leader:
        return math.inf
    if traffic is None:  # it has been at rest for long, or its new leader has not opened it yet
        return math.inf if known is None or known.leader == info.leader else 0.0
    return float(traffic.led_s) if told_by == info.leader else 0.0


def _remember(known: _Known | None, info: PartitionInfo, traffic: PartitionTraffic | None) -> _Known:
    cores = 0.0 if traffic is None else cores_of(traffic)
    if known is None:
        return _Known(info.leader, cores, cores)
    if traffic is None and known.leader != info.leader:
        return known  # the new leader has not measured it yet
    if traffic is not None and traffic.led_s < UNMEASURED_S:
        cores = max(cores, known.cores)
    return _Known(info.leader, cores, max(cores, known.long_cores * math.exp(-SAMPLE_S / LONG_S)))


def _describe_partition(last: Balance, each: PartitionLoad) -> BalancedPartition:
    place, found = last.places[each.stream_id], last.traffic.get(each.stream_id) or PartitionTraffic()
    return BalancedPartition(
        topic=place.topic,
        partition=place.partition,
        leader=each.leader,
        cores=each.cores,
        received_bytes=found.received_bytes,
        sent_bytes=found.sent_bytes,
        requests=found.requests,
        resting=each.stream_id in last.plan.resting,
        advice=advise(found) if each.stream_id in last.plan.hot else "",
    )


def _describe_move(made: MoveMade) -> BalanceMove:
    return BalanceMove(
        topic=made.place.topic,
        partition=made.place.partition,
        from_node=made.move.from_node,
        to_node=made.move.to_node,
        cores=made.cores,
        rule=str(made.rule),
        reason=made.move.reason,
        ordered_ms=made.ordered_ms,
        done=made.done,
        failure=made.failure,
    )
