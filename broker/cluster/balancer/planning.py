"""Plans moves of partitions that even out what the nodes have to do. Pure: time and loads are arguments.

A plan is made from one view of the cluster, in which each partition has a cost in cores. What a node does beside, for
readers of its replicas, no move takes away: the mean is the load that all nodes would have if the partitions were
spread evenly over that, and a node that has more to do beside counts as one that has the mean. Four rules follow each
other; the first one that finds moves makes the plan:

- *Fill*: a node that has joined lately, or has come back, is given its share, at once but for partitions that rest.
- *Shed*: a node that is overloaded for `OBSERVATIONS` views in a row gives to the least loaded one.
- *Zone*: a partition goes to the rack whose clients exchange most bytes with it, if that is more than in its own by
  `ZONE_RATIO` for `ZONE_OBSERVATIONS` views in a row, and if the load of a node there allows it. `Zone.STRICT` leaves
  the load out, and lets no rule move a partition to a rack with fewer bytes.
- *Spread*: in a cluster at rest, the nodes lead equally many partitions of each topic, and of all.

It never makes things worse: nothing is planned while a move is under way or a node is judged, a partition rests
`REST_S` after a move and does not go back within `RETURN_S`, and a plan must shrink the spread by `GAIN`. Where it can,
a move goes to a replica, which has parts of the partition in its caches, and else stays within the rack. The partitions
of a dead node are waited for during `ABSENT_S`, and then left out: it may be that nobody can open its log.
"""

import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

OVERLOAD_RATIO: Final = 1.2
"""A node is overloaded above this multiple of the mean, and by at least `OVERLOAD_CORES`."""
OVERLOAD_CORES: Final = 0.1
WORTH_CORES: Final = 0.002
"""A node that is overloaded gives nothing that costs less: its clients would look for it for nothing."""
OBSERVATIONS: Final = 3
MOVES_MAX: Final = 16
REST_S: Final = 300.0
ABSENT_S: Final = 60.0
"""Time for which a plan waits for the partitions of a dead node: longer than others need to take them over."""
RETURN_S: Final = 3600.0
HOUR_S: Final = 3600.0
JOINED_S: Final = (15.0, 600.0)
"""A node counts as one that has joined from the first time on, when clients know it, to the second.

librdkafka waits up to 15 s before it connects again to a broker that was away. What the broker leads stalls until then.
"""
SHARE: Final = 0.85
"""A node that has joined is filled if it has less than this part of the mean."""
HOURLY_SHARE: Final = 0.5
"""Part of all partitions that may move in an hour, those to nodes that have joined aside."""
GAIN: Final = 0.05
IDLE_CORES: Final = 0.0002
"""Cost of a partition without any traffic: with it, nodes without load are filled by counts."""
ROUNDING: Final = 1e-9
"""Cores that sums of costs may be wrong by."""
REST_CORES: Final = 0.02
"""A cluster is at rest while its partitions have cost less than this per node for hours."""
ZONE_RATIO: Final = 1.5
"""Bytes of another rack, over those of a partition's own, from which it moves there."""
ZONE_BYTES: Final = 10_000.0
"""Bytes a second that the other rack has more, at least: 26 GB a month."""
ZONE_OBSERVATIONS: Final = 6
ZONE_LOAD_RATIO: Final = 1.1
"""Highest load, in multiples of the mean, that such a move makes. A node that is overloaded has more."""


class Zone(StrEnum):
    """Weight of the racks of clients."""

    OFF = "off"
    PREFER = "prefer"
    STRICT = "strict"


class Rule(StrEnum):
    """The rule that made a plan."""

    FILL = "fill"
    SHED = "shed"
    ZONE = "zone"
    SPREAD = "spread"


class NodeLoad(NamedTuple):
    """A living node that takes partitions."""

    node_id: int
    up_s: float
    """Time since it has joined, or come back."""
    rack: str = ""
    cores: float = 0.0
    """Cost of what it does beside its partitions, as a mean of the last minute."""


class PartitionLoad(NamedTuple):
    """A partition that a living node leads."""

    stream_id: int
    topic: str
    leader: int
    cores: float
    """Cost as a mean of the last minute: 0.01 is 10 ms of CPU time a second."""
    long_cores: float
    """The same over hours."""
    moved_s: float = math.inf
    """Time since it was moved there on purpose."""
    homes: Sequence[int] = ()
    """Nodes that shall lead it rather than others: the preferred leader and the replicas."""
    racks: Mapping[str, float] = MappingProxyType({})
    """Bytes a second that it exchanges with clients, by their racks, without those of no known rack."""


@dataclass(frozen=True, slots=True)
class View:
    """Input of a plan."""

    nodes: Sequence[NodeLoad]
    partitions: Sequence[PartitionLoad]
    waits: str = ""
    """Reason to plan nothing: moves are under way, or nodes are silent and may be taken over. Else empty."""
    absent: Mapping[int, str] = field(default_factory=dict)
    """Nodes that are dead and still the leaders of partitions, with a reason to wait for these."""
    zone: Zone = Zone.OFF


class Move(NamedTuple):
    """A partition that shall be led by another node."""

    stream_id: int
    from_node: int
    to_node: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, and what they change. The spread is the most loaded node's cost over the mean; 1 is even."""

    rule: Rule | None = None
    """None: there are no moves."""
    waits: str = ""
    """Reason why nothing was planned, of the view; else empty."""
    moves: Sequence[Move] = ()
    spread_before: float = 1.0
    spread_after: float = 1.0
    excess_cores: float = 0.0
    """Cost of the most loaded node above `OVERLOAD_RATIO` times the mean, before the moves."""
    hot: Sequence[int] = ()
    """Streams that cost more than the mean of a node: no move helps, more partitions of the topic do."""
    resting: frozenset[int] = frozenset()
    """Streams that were moved a moment ago."""


class Planner:
    """Makes plans from views that follow each other, about ten seconds apart."""

    def __init__(self) -> None:
        self._overloaded: Counter[int] = Counter()
        """Views in a row in which a node was overloaded."""
        self._better: Counter[tuple[int, str]] = Counter()
        """Views in a row in which another rack was the better one of a stream."""
        self._moved_s: dict[int, float] = {}
        self._left_s: dict[tuple[int, int], float] = {}
        """Time at which a stream has left a node."""
        self._filling: set[int] = set()
        self._filled_s: dict[int, float] = {}
        """Time at which a node was seen to have its share."""
        self._spent: deque[float] = deque()
        """Times of the moves of the last hour, without those to nodes that have joined."""
        self._absent_s: dict[int, float] = {}
        """Time of the first of the views in a row in which a node was absent."""

    def plan(self, view: View, now_s: float) -> Plan:
        """Plan from a view at a time in seconds of a steady clock. `note_ordered` tells which plans are carried out."""
        resting = self._resting(now_s).union(each.stream_id for each in view.partitions if each.moved_s < REST_S)
        layout = _Layout(view, resting, self._returns(now_s))
        found = Plan(
            spread_before=layout.spread,
            spread_after=layout.spread,
            excess_cores=layout.excess,
            hot=layout.hot(),
            resting=resting,
            waits=self._why_waiting(view, now_s),
        )
        self._note_overloaded(view, layout)
        better = layout.better_racks() if view.zone is not Zone.OFF else ()
        self._better = Counter({each: self._better[each] + 1 for each in better})
        if found.waits or len(view.nodes) < 2:
            return found
        for rule, moves in self._rules(view, layout, now_s):
            if moves:
                return replace(found, rule=rule, moves=moves, spread_after=layout.spread)
        return found

    def _why_waiting(self, view: View, now_s: float) -> str:
        self._absent_s = {node_id: self._absent_s.get(node_id, now_s) for node_id in view.absent}
        lately = (why for node_id, why in view.absent.items() if now_s - self._absent_s[node_id] < ABSENT_S)
        return view.waits or next(lately, "")

    def _rules(self, view: View, layout: "_Layout", now_s: float) -> Iterator[tuple[Rule, Sequence[Move]]]:
        yield Rule.FILL, self._fill(view, layout, now_s)
        allowed = min(MOVES_MAX, self._left_to_spend(view, now_s))
        overloaded = [node_id for node_id, count in self._overloaded.items() if count >= OBSERVATIONS]
        yield Rule.SHED, layout.shed(overloaded, allowed)
        yield (
            Rule.ZONE,
            layout.zone([each for each, count in self._better.items() if count >= ZONE_OBSERVATIONS], allowed),
        )
        beside = sum(each.cores for each in view.nodes)
        if beside + sum(each.long_cores for each in view.partitions) < REST_CORES * len(view.nodes):
            yield Rule.SPREAD, layout.spread_counts(allowed)

    def _fill(self, view: View, layout: "_Layout", now_s: float) -> Sequence[Move]:
        """Fill the nodes that have joined until they have their share, once. What rests is waited for."""
        first_s, last_s = JOINED_S
        for node in view.nodes:
            began_s = now_s - node.up_s
            if first_s <= node.up_s < last_s and self._filled_s.get(node.node_id, began_s) <= began_s:
                if layout.lacks(node.node_id):
                    self._filling.add(node.node_id)
                elif node.node_id not in self._filling:
                    self._filled_s[node.node_id] = now_s
        self._filling &= {each.node_id for each in view.nodes}
        moves = layout.fill(sorted(self._filling))
        if not moves and self._filling:
            without_rest = _Layout(view, frozenset(), self._returns(now_s))
            if not without_rest.fill(sorted(self._filling)):
                self._filled_s.update(dict.fromkeys(self._filling, now_s))
            self._filling.clear()
        return moves

    def _left_to_spend(self, view: View, now_s: float) -> int:
        while self._spent and now_s - self._spent[0] >= HOUR_S:
            self._spent.popleft()
        return max(math.ceil(len(view.partitions) * HOURLY_SHARE) - len(self._spent), 0)

    def _note_overloaded(self, view: View, layout: "_Layout") -> None:
        overloaded = {each.node_id for each in view.nodes if layout.is_overloaded(each.node_id)}
        self._overloaded = Counter({node_id: self._overloaded[node_id] + 1 for node_id in overloaded})

    def note_ordered(self, plan: Plan, now_s: float) -> None:
        """Note that the moves of a plan are carried out: these partitions rest now."""
        if plan.rule is not Rule.FILL:
            self._spent.extend([now_s] * len(plan.moves))
        for move in plan.moves:
            self._moved_s[move.stream_id] = now_s
            self._left_s[move.stream_id, move.from_node] = now_s
        self._overloaded.clear()

    def _resting(self, now_s: float) -> frozenset[int]:
        self._moved_s = {key: moved_s for key, moved_s in self._moved_s.items() if now_s - moved_s < REST_S}
        return frozenset(self._moved_s)

    def _returns(self, now_s: float) -> frozenset[tuple[int, int]]:
        self._left_s = {key: left_s for key, left_s in self._left_s.items() if now_s - left_s < RETURN_S}
        return frozenset(self._left_s)


class _Layout:
    """Partitions by node, while moves are tried on them."""

    def __init__(self, view: View, resting: frozenset[int], left: frozenset[tuple[int, int]]) -> None:
        self._resting = resting
        self._left = left
        self._zone = view.zone
        self._racks = {each.node_id: each.rack for each in view.nodes}
        self._led: dict[int, dict[int, PartitionLoad]] = {each.node_id: {} for each in view.nodes}
        for each in view.partitions:
            if each.leader in self._led:  # those of a node that is drained are not planned here
                self._led[each.leader][each.stream_id] = each
        self._by_cost: dict[int, Sequence[PartitionLoad]] = {}
        """Partitions that a node led at the beginning, the most expensive first, of nodes that have given any."""
        self._beside = {each.node_id: each.cores for each in view.nodes}
        cores = {node_id: sum(map(_cost, led.values())) for node_id, led in self._led.items()}
        self._mean = _level(self._beside.values(), sum(cores.values()))
        self._cores = {node_id: led + min(self._beside[node_id], self._mean) for node_id, led in cores.items()}
        """Cost of what each node leads, and of what it does beside, but of that no more than the mean."""

    @property
    def spread(self) -> float:
        """The most loaded node's cost over the mean."""
        return max(self._cores.values(), default=0.0) / self._mean if self._mean else 1.0

    @property
    def excess(self) -> float:
        """The most loaded node's cost above `OVERLOAD_RATIO` times the mean."""
        return max(max(self._cores.values(), default=0.0) - self._mean * OVERLOAD_RATIO, 0.0)

    def is_overloaded(self, node_id: int) -> bool:
        cores = self._cores[node_id]
        return cores > self._mean * OVERLOAD_RATIO and cores - self._mean > OVERLOAD_CORES

    def lacks(self, node_id: int) -> bool:
        return self._cores[node_id] < self._mean * SHARE

    def hot(self) -> Sequence[int]:
        found = (each for led in self._led.values() for each in led.values() if each.cores > OVERLOAD_CORES)
        return sorted(each.stream_id for each in found if _cost(each) > self._mean)

    def fill(self, joined: Sequence[int]) -> Sequence[Move]:
        """Give nodes their share, from the most loaded of the others.

        First what loses no bytes of its rack, then what has its home there; of that as large as fits.
        """
        moves: list[Move] = []
        reasons = {each: f"node {each} has joined, with a load of {self._of_mean(each)}" for each in joined}
        while joined and len(moves) < MOVES_MAX:
            to_node = self._least_loaded(joined)
            above = self._mean + ROUNDING
            donors = [node_id for node_id in self._led if node_id not in joined and self._cores[node_id] > above]
            donors.sort(key=lambda each: (self._is_far(each, to_node), -self._cores[each], each))
            room = self._mean - self._cores[to_node]
            ranks = itertools.product((True, False), (True, False), donors)
            pieces = (
                self._largest(from_node, to_node, room, at_home=at_home, keeps_zone=keeps_zone)
                for keeps_zone, at_home, from_node in ranks
            )
            found = next(filter(None, pieces), None)
            if found is None:
                break
            moves.append(self._move(found, to_node, reasons[to_node]))
        return moves

    def shed(self, overloaded: Sequence[int], moves_max: int) -> Sequence[Move]:
        """Let nodes that are overloaded give to the least loaded one: the largest piece that fits half of their gap."""
        before = self.spread
        moves: list[Move] = []
        for from_node in sorted(overloaded, key=lambda node_id: (-self._cores[node_id], node_id)):
            reason = f"node {from_node} has a load of {self._of_mean(from_node)}"
            while len(moves) < moves_max and self._cores[from_node] > self._mean:
                found = self._shed_one(from_node)
                if found is None:
                    break
                moves.append(self._move(*found, reason))
        if self.spread <= before * (1 - GAIN):
            return moves
        for move in reversed(moves):  # the next rule plans from what there is
            self._move(self._led[move.to_node][move.stream_id], move.from_node, move.reason)
        return ()

    def _shed_one(self, from_node: int) -> tuple[PartitionLoad, int] | None:
        """Return what a node gives next, and to which one.

        Of nodes below the mean: what has its home there, then within the rack, to the least loaded; else anywhere.
        """
        below = sorted((each for each in self._led if self._cores[each] < self._mean), key=self._cores.__getitem__)
        near = [each for each in below if not self._is_far(from_node, each)]
        anywhere = self._least_loaded(self._led)
        for to_node, at_home in (*((each, True) for each in below), *((each, False) for each in (*near[:1], anywhere))):
            room = (self._cores[from_node] - self._cores[to_node]) / 2
            found = self._largest(from_node, to_node, room, at_home=at_home)
            if found is not None and found.cores >= WORTH_CORES:
                return found, to_node
        return None

    def better_racks(self) -> Sequence[tuple[int, str]]:
        """Return the streams for which another rack with nodes is better, each with that rack."""
        racks = {rack for rack in self._racks.values() if rack}
        found: list[tuple[int, str]] = []
        for node_id, led in self._led.items():
            for each in filter(_has_racks, led.values()):
                best = max(racks & each.racks.keys(), key=lambda rack: (each.racks[rack], rack), default="")
                own = each.racks.get(self._racks[node_id], 0.0)
                most = each.racks.get(best, 0.0)
                if most > own * ZONE_RATIO and most - own >= ZONE_BYTES:
                    found.append((each.stream_id, best))
        return found

    def zone(self, better: Sequence[tuple[int, str]], moves_max: int) -> Sequence[Move]:
        """Move streams to their better racks, to the least loaded node that may take them; first what gains most."""
        leaders = {stream_id: node_id for node_id, led in self._led.items() for stream_id in led}
        wanted = [(self._led[leaders[stream_id]][stream_id], rack) for stream_id, rack in better]
        gains = [
            (each.racks[rack] - each.racks.get(self._racks[each.leader], 0.0), each, rack) for each, rack in wanted
        ]
        moves: list[Move] = []
        for _, each, rack in sorted(gains, key=lambda gain: (-gain[0], gain[1].stream_id)):
            nodes = [node_id for node_id, its_rack in self._racks.items() if its_rack == rack]
            if any((each.stream_id, node_id) in self._left for node_id in nodes):
                continue  # another rule has moved it out of that rack
            nodes = [node_id for node_id in nodes if self._may_move(each, node_id) and self._has_room(each, node_id)]
            if nodes and len(moves) < moves_max:
                own = self._racks[each.leader]
                reason = (
                    f"clients in rack {rack} exchange {_rate(each.racks[rack])} with it, those in its rack "
                    f"{own or '(none)'} {_rate(each.racks.get(own, 0.0))}"
                )
                moves.append(
                    self._move(each, min(nodes, key=lambda n: (n not in each.homes, self._cores[n], n)), reason)
                )
        return moves

    def _has_room(self, each: PartitionLoad, to_node: int) -> bool:
        """Return whether the load of a node lets it take a partition that has its clients there."""
        after = self._cores[to_node] + _cost(each)
        is_light = after <= self._mean * ZONE_LOAD_RATIO or after - self._mean <= OVERLOAD_CORES / 2
        return is_light or self._zone is Zone.STRICT

    def _keeps_zone(self, each: PartitionLoad, to_node: int) -> bool:
        """Return whether a rack exchanges as many bytes with a partition as the one that it is in, if they count."""
        bytes_in, before = each.racks.get(self._racks[to_node], 0.0), each.racks.get(self._racks[each.leader], 0.0)
        return self._zone is Zone.OFF or bytes_in >= before

    def spread_counts(self, moves_max: int) -> Sequence[Move]:
        """Even out the numbers of partitions of each topic, and then of all, until each differs by at most one.

        Where the racks of clients forbid it over all nodes, it is done within each rack.
        """
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for node_id, led in self._led.items():
            for each in led.values():
                counts[each.topic][node_id] += 1
        moves: list[Move] = []
        groups = [list(self._led)]
        if self._zone is not Zone.OFF:
            groups += [
                [node_id for node_id in self._led if self._racks[node_id] == rack]
                for rack in sorted(set(self._racks.values()))
            ]
        for nodes in groups:
            for topic in sorted(counts):
                while len(moves) < moves_max and (move := self._even_topic(topic, counts[topic], nodes)):
                    moves.append(move)
            while len(moves) < moves_max and (move := self._even_all(counts, nodes)):
                moves.append(move)
        return moves

    def _even_topic(self, topic: str, counts: Counter[int], nodes: Sequence[int]) -> Move | None:
        most = max(nodes, key=lambda node_id: (counts[node_id], len(self._led[node_id]), node_id))
        least = min(nodes, key=lambda node_id: (counts[node_id], len(self._led[node_id]), node_id))
        if counts[most] - counts[least] <= 1:
            return None
        reason = f"of topic {topic}, node {most} leads {counts[most]} partitions and node {least} {counts[least]}"
        return self._move_one(topic, most, least, counts, reason)

    def _even_all(self, counts: Mapping[str, Counter[int]], nodes: Sequence[int]) -> Move | None:
        most = max(nodes, key=lambda node_id: (len(self._led[node_id]), node_id))
        least = min(nodes, key=lambda node_id: (len(self._led[node_id]), node_id))
        if len(self._led[most]) - len(self._led[least]) <= 1:
            return None
        reason = f"node {most} leads {len(self._led[most])} partitions and node {least} {len(self._led[least])}"
        for topic in sorted(counts):
            if counts[topic][most] > counts[topic][least] and (
                move := self._move_one(topic, most, least, counts[topic], reason)
            ):
                return move
        return None

    def _move_one(self, topic: str, from_node: int, to_node: int, counts: Counter[int], reason: str) -> Move | None:
        led = self._led[from_node].values()
        found = [
            each
            for each in led
            if each.topic == topic and self._may_move(each, to_node) and self._keeps_zone(each, to_node)
        ]
        if not found:
            return None
        counts[from_node] -= 1
        counts[to_node] += 1
        first = min(found, key=lambda each: (to_node not in each.homes, each.stream_id))
        return self._move(first, to_node, reason)

    def _of_mean(self, node_id: int) -> str:
        beside = self._beside[node_id]
        cores = self._cores[node_id] + max(beside - self._mean, 0.0)
        as_replica = f" ({beside:.3f} as a replica)" if beside >= WORTH_CORES else ""
        return f"{cores:.3f} cores{as_replica}, where the mean is {self._mean:.3f}"

    def _is_far(self, from_node: int, to_node: int) -> bool:
        """Return whether two nodes are in different racks."""
        return self._racks[from_node] != self._racks[to_node]

    def _least_loaded(self, nodes: Iterable[int]) -> int:
        return min(nodes, key=lambda node_id: (self._cores[node_id], node_id))

    def _largest(
        self, from_node: int, to_node: int, room: float, *, at_home: bool = False, keeps_zone: bool = False
    ) -> PartitionLoad | None:
        """Return the most expensive partition that fits and may move.

        If `at_home`, of those with their home there; if `keeps_zone`, of those that lose no bytes of their rack.
        """
        led = self._led[from_node]
        if from_node not in self._by_cost:
            self._by_cost[from_node] = sorted(led.values(), key=_most_expensive_first)
        by_cost = self._by_cost[from_node]
        first = bisect_left(by_cost, -(room + ROUNDING), key=lambda each: -_cost(each))
        fitting = (
            each
            for each in itertools.islice(by_cost, first, None)
            if each.stream_id in led
            and (not at_home or to_node in each.homes)
            and (not keeps_zone or self._keeps_zone(each, to_node))
        )
        return next((each for each in fitting if self._may_move(each, to_node)), None)

    def _may_move(self, each: PartitionLoad, to_node: int) -> bool:
        if self._zone is Zone.STRICT and not self._keeps_zone(each, to_node):
            return False
        return each.stream_id not in self._resting and (each.stream_id, to_node) not in self._left

    def _move(self, each: PartitionLoad, to_node: int, reason: str) -> Move:
        del self._led[each.leader][each.stream_id]
        moved = each._replace(leader=to_node)
        self._led[to_node][each.stream_id] = moved
        self._cores[each.leader] -= _cost(each)
        self._cores[to_node] += _cost(each)
        return Move(each.stream_id, each.leader, to_node, reason)


def _level(beside: Iterable[float], cores: float) -> float:
    """Return the load of each node that gets a part of `cores`, if they are spread evenly over what nodes do beside.

    The nodes that do least beside get a part, as many of them as makes the level lowest.
    """
    sums = itertools.accumulate(sorted(beside))
    return min(((each + cores) / count for count, each in enumerate(sums, 1)), default=0.0)


def _has_racks(each: PartitionLoad) -> bool:
    return bool(each.racks)


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1000:,.0f} kB/s"


def _most_expensive_first(each: PartitionLoad) -> tuple[float, int]:
    return -_cost(each), each.stream_id


def _cost(each: PartitionLoad) -> float:
    return each.cores + IDLE_CORES
