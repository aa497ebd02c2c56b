"""Plans of the balancer: what moves, what rests, and that no plan makes things worse or undoes another."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.cluster.balancer.planning import (
    ABSENT_S,
    HOURLY_SHARE,
    IDLE_CORES,
    MOVES_MAX,
    OBSERVATIONS,
    OVERLOAD_CORES,
    REST_S,
    RETURN_S,
    ZONE_BYTES,
    ZONE_OBSERVATIONS,
    Move,
    NodeLoad,
    PartitionLoad,
    Plan,
    Planner,
    Rule,
    View,
    Zone,
)

STEP_S = 10.0


class Obeyed(Planner):
    """A planner whose plans are all carried out."""

    def plan(self, view: View, now_s: float) -> Plan:
        found = super().plan(view, now_s)
        if found.moves:
            self.note_ordered(found, now_s)
        return found


OLD_S = 1e6


def view_of(*led: Sequence[float], up_s: Mapping[int, float] | None = None, waits: str = "") -> View:
    """A view of nodes 1, 2, ..., with the costs of the partitions that each leads, of topics `a` to `z` in turn."""
    up_s = up_s or {}
    nodes = [NodeLoad(node_id, up_s.get(node_id, OLD_S)) for node_id in range(1, len(led) + 1)]
    partitions = [
        PartitionLoad(node_id * 1000 + at, chr(ord("a") + at % 26), node_id, cores, cores)
        for node_id, costs in enumerate(led, 1)
        for at, cores in enumerate(costs)
    ]
    return View(nodes, partitions, waits)


def planned(view: View, planner: Planner | None = None, views: int = OBSERVATIONS) -> Plan:
    """The plan after as many equal views."""
    planner = planner or Obeyed()
    for at in range(views - 1):
        assert not planner.plan(view, at * STEP_S).moves
    return planner.plan(view, views * STEP_S)


def after(view: View, moves: Sequence[Move]) -> View:
    to = {move.stream_id: move.to_node for move in moves}
    led = [each._replace(leader=to.get(each.stream_id, each.leader)) for each in view.partitions]
    return replace(view, partitions=led)


def test_an_overloaded_node_gives_to_the_least_loaded_after_three_views() -> None:
    plan = planned(view_of([0.3] * 4, [0.3] * 2, [0.3]))
    assert plan.rule is Rule.SHED
    assert [(move.from_node, move.to_node) for move in plan.moves] == [(1, 3)]
    assert plan.spread_after < plan.spread_before


def with_homes(view: View, homes: Mapping[int, Sequence[int]], racks: str = "") -> View:
    """The view with replicas of some partitions, and racks of the nodes, a letter each."""
    nodes = [each._replace(rack=rack) for each, rack in zip(view.nodes, racks or " " * len(view.nodes), strict=True)]
    led = [each._replace(homes=homes.get(each.stream_id, (each.leader,))) for each in view.partitions]
    return View(nodes, led)


def test_an_overloaded_node_gives_first_to_replicas_then_within_its_rack_and_else_to_any_node() -> None:
    homes = {1000: (1, 3), 1001: (1, 4)}
    plan = planned(with_homes(view_of([0.3] * 8, [0.3], [0.3], [0.3]), homes, "aabb"))
    moves = [(move.stream_id, move.to_node) for move in plan.moves]
    assert moves[:2] == [(1000, 3), (1001, 4)], "though node 2 has as little to do, and is in the rack"
    assert moves[2:] == [(1002, 2), (1003, 2), (1004, 3)]


def test_a_cluster_at_rest_moves_to_replicas_first() -> None:
    partitions = [PartitionLoad(at, "t", 1, 0.0, 0.0, homes=(1, 2) if at == 2 else (1,)) for at in range(3)]
    view = View([NodeLoad(1, OLD_S), NodeLoad(2, OLD_S)], partitions)
    assert [(move.stream_id, move.to_node) for move in Obeyed().plan(view, 0).moves] == [(2, 2)]


def test_one_view_without_excess_begins_the_count_anew() -> None:
    planner, overloaded, even = Obeyed(), view_of([0.3] * 4, [0.3]), view_of([0.3] * 2, [0.3] * 2)
    for at, view in enumerate([overloaded, overloaded, even, overloaded, overloaded]):
        assert not planner.plan(view, at * STEP_S).moves
    assert planner.plan(overloaded, 60).moves


def test_a_small_excess_moves_nothing() -> None:
    assert not planned(view_of([OVERLOAD_CORES / 4] * 4, [OVERLOAD_CORES / 4] * 2), views=9).moves


def test_a_node_that_joins_gets_its_share_at_once() -> None:
    view = view_of([0.01] * 100, [0.01] * 100, [0.01] * 100, [], up_s={4: 20.0})
    planner, now_s = Obeyed(), 0.0
    while (plan := planner.plan(view, now_s)).moves:
        assert (plan.rule, len(plan.moves) <= MOVES_MAX) == (Rule.FILL, True)
        view, now_s = after(view, plan.moves), now_s + 1
    assert Counter(each.leader for each in view.partitions) == {1: 75, 2: 75, 3: 75, 4: 75}
    assert now_s <= math.ceil(75 / MOVES_MAX)


def test_a_node_is_filled_by_what_partitions_cost() -> None:
    view = view_of([0.2, 0.01, 0.01], [0.1, 0.1], [], up_s={3: 20.0})
    view = after(view, Obeyed().plan(view, 0).moves)
    cores = Counter[int]()
    for each in view.partitions:
        cores[each.leader] += round(each.cores * 100)
    assert cores == {1: 20, 2: 10, 3: 12}


def test_a_node_that_has_come_back_gets_what_it_led_before() -> None:
    view = view_of([0.01] * 3, [0.01] * 3, [], up_s={3: 60.0})
    led = [each._replace(homes=(3,) if each.stream_id in {1001, 2002} else (each.leader,)) for each in view.partitions]
    assert {each.stream_id for each in planned(replace(view, partitions=led), views=1).moves} == {1001, 2002}


def test_nodes_that_join_one_after_the_other_get_their_share_without_a_move_of_what_rests() -> None:
    view = view_of([0.002] * 60, [0.002] * 60)
    planner, moved_s = Obeyed(), dict[int, float]()
    for at in range(40):
        now_s = at * STEP_S
        joined = [NodeLoad(node_id, up_s) for node_id, up_s in ((3, 20 + now_s), (4, now_s - 10)) if up_s > 0]
        view = replace(view, nodes=[*view_of([], []).nodes, *joined])
        while (plan := planner.plan(view, now_s)).moves:
            assert plan.rule is Rule.FILL
            assert all(now_s - moved_s.get(move.stream_id, -REST_S) >= REST_S for move in plan.moves)
            moved_s.update(dict.fromkeys([move.stream_id for move in plan.moves], now_s))
            view = after(view, plan.moves)
        if now_s == 30:
            assert Counter(each.leader for each in view.partitions) == {1: 30, 2: 30, 3: 40, 4: 20}, "all that may move"
    assert Counter(each.leader for each in view.partitions) == {1: 30, 2: 30, 3: 30, 4: 30}


def test_a_node_that_clients_do_not_know_yet_gets_nothing() -> None:
    assert not Obeyed().plan(view_of([0.01] * 9, [], up_s={2: 5.0}), 0).moves


def test_nothing_is_planned_while_moves_are_under_way_or_for_one_node() -> None:
    assert not planned(view_of([0.9] * 4, [], waits="t-0 moves"), views=9).moves
    assert not planned(view_of([0.9] * 4), views=9).moves


def test_the_partitions_of_a_dead_node_are_waited_for_and_then_left_out() -> None:
    loaded, why = view_of([0.3] * 4, [0.3] * 2, [0.3]), "partition a-0 waits for node 9"
    absent = replace(loaded, partitions=[*loaded.partitions, PartitionLoad(9000, "a", 9, 0.0, 0.0)], absent={9: why})
    planner, back_s = Obeyed(), ABSENT_S
    for now_s in (0.0, ABSENT_S / 2, ABSENT_S - 1):
        assert planner.plan(absent, now_s).waits == why
    assert not planner.plan(view_of([0.3] * 2, [0.3] * 2), back_s).waits
    for now_s in (back_s + 1, back_s + ABSENT_S / 2, back_s + ABSENT_S):
        plan = planner.plan(absent, now_s)
        assert (plan.waits, plan.moves) == (why, ())
    assert not planner.plan(replace(absent, waits="node 2 is silent"), back_s + ABSENT_S + 1).moves
    plan = planner.plan(absent, back_s + ABSENT_S + 2)
    assert (plan.rule, plan.waits, {move.from_node for move in plan.moves}) == (Rule.SHED, "", {1})


def test_the_neighbours_of_a_hot_partition_leave_and_it_is_named() -> None:
    view = view_of([0.8] + [0.02] * 6, [0.1] * 4, [0.1] * 4)
    plan = planned(view)
    assert plan.hot == [1000]
    assert {move.stream_id for move in plan.moves} == set(range(1001, 1007))


def test_a_cluster_at_rest_is_even_by_topic_and_in_all() -> None:
    partitions = [PartitionLoad(at, "t" if at < 8 else f"u{at}", 1 if at < 12 else 2, 0.0, 0.0) for at in range(16)]
    view = View([NodeLoad(node_id, OLD_S) for node_id in (1, 2, 3)], partitions)
    planner = Obeyed()
    for at in range(4):
        plan = planner.plan(view, at * REST_S)
        assert plan.rule in {Rule.SPREAD, None}
        view = after(view, plan.moves)
    assert sorted(Counter(each.leader for each in view.partitions).values()) == [5, 5, 6]
    assert sorted(Counter(each.leader for each in view.partitions if each.topic == "t").values()) == [2, 3, 3]


def test_a_cluster_that_only_rests_for_the_night_is_left_alone() -> None:
    view = view_of([0.0] * 9, [0.0])
    busy = View(view.nodes, [each._replace(long_cores=0.3) for each in view.partitions])
    assert not planned(busy, views=9).moves
    assert Obeyed().plan(view, 0).moves


Led = Sequence[tuple[float, Mapping[str, float]]]
"""Costs of a node's partitions, and their bytes by the rack of clients."""


def zoned(racks: str, *led: Led, zone: Zone = Zone.PREFER, busy: bool = True) -> View:
    """A view of nodes 1, 2, ... in racks of a letter each, which lead partitions with costs and bytes by rack."""
    view = view_of(*[[cores for cores, _ in its] for its in led])
    bytes_of = iter([each for its in led for _, each in its])
    partitions = [
        each._replace(racks=next(bytes_of), long_cores=1.0 if busy else 0.0, topic="t") for each in view.partitions
    ]
    return View([each._replace(rack=rack) for each, rack in zip(view.nodes, racks, strict=True)], partitions, zone=zone)


MANY, FEW = 10 * ZONE_BYTES, 2 * ZONE_BYTES


def test_a_partition_goes_to_the_rack_that_exchanges_most_with_it() -> None:
    view = zoned("abb", [(0.02, {"a": FEW, "b": MANY}), (0.02, {"a": MANY})], [(0.02, {})], [])
    plan = planned(view, views=ZONE_OBSERVATIONS)
    assert plan.rule is Rule.ZONE
    assert plan.moves == [Move(1000, 1, 3, "clients in rack b exchange 100 kB/s with it, those in its rack a 20 kB/s")]


def test_a_replica_in_the_rack_comes_before_a_node_with_less_to_do() -> None:
    view = zoned("abb", [(0.02, {"b": MANY})], [(0.01, {})], [])
    view = replace(view, partitions=[each._replace(homes=(1, 2)) for each in view.partitions])
    assert [move.to_node for move in planned(view, views=ZONE_OBSERVATIONS).moves] == [2]


def test_a_rack_that_is_hardly_better_or_for_a_short_time_moves_nothing() -> None:
    for racks in ({"a": MANY, "b": MANY * 1.4}, {"b": ZONE_BYTES * 0.9}, {"c": MANY}, {}):
        assert not planned(zoned("ab", [(0.02, racks)], []), views=20).moves
    planner, better, same = Obeyed(), zoned("ab", [(0.02, {"b": MANY})], []), zoned("ab", [(0.02, {"a": MANY})], [])
    for at in range(20):
        assert not planner.plan(same if at % ZONE_OBSERVATIONS == 0 else better, at * STEP_S).moves


def test_racks_do_not_count_when_they_are_off() -> None:
    assert not planned(zoned("ab", [(0.02, {"b": MANY})], [], zone=Zone.OFF), views=20).moves


def test_the_load_of_the_nodes_there_comes_first_unless_it_is_strict() -> None:
    led = [(0.3, {"b": MANY})] * 3, [(0.3, {"b": MANY})] * 3
    assert not planned(zoned("ab", *led), views=20).moves
    plan = planned(zoned("ab", *led, zone=Zone.STRICT), views=ZONE_OBSERVATIONS)
    assert (plan.rule, [move.to_node for move in plan.moves]) == (Rule.ZONE, [2, 2, 2])


def test_strict_moves_nothing_to_a_rack_with_fewer_bytes() -> None:
    overloaded: tuple[Led, ...] = [(0.3, {"a": MANY})] * 6, [(0.1, {})], [(0.2, {})]
    assert {move.to_node for move in planned(zoned("aab", *overloaded, zone=Zone.STRICT)).moves} == {2}
    alone: tuple[Led, ...] = [(0.3, {"a": MANY})] * 6, [(0.1, {})]
    assert {move.to_node for move in planned(zoned("ab", *alone)).moves} == {2}
    assert not planned(zoned("ab", *alone, zone=Zone.STRICT), views=9).moves


def test_what_sheds_too_little_leaves_the_partitions_to_the_next_rule_as_they_are() -> None:
    view = zoned("abb", [(1.0, {"a": MANY}), (0.01, {"b": MANY})], [(0.1, {})], [(0.2, {})])
    plan = planned(view, views=ZONE_OBSERVATIONS)
    assert plan.rule is Rule.ZONE
    assert [move[:3] for move in plan.moves] == [(1001, 1, 2)]


def test_a_node_that_joins_is_filled_with_what_loses_no_bytes_first() -> None:
    led: tuple[Led, ...] = [(0.02, {"a": MANY}), (0.02, {"b": MANY}), (0.02, {}), (0.02, {"a": FEW, "b": MANY})], []
    view = zoned("ab", *led)
    view = replace(view, nodes=[view.nodes[0], view.nodes[1]._replace(up_s=60.0)])
    assert {move.stream_id for move in planned(view, views=1).moves} == {1001, 1002}
    assert {move.stream_id for move in planned(replace(view, zone=Zone.OFF), views=1).moves} == {1000, 1001}


def test_a_cluster_at_rest_is_even_within_racks() -> None:
    led: tuple[Led, ...] = [(0.0, {"a": FEW})] * 6, [], [(0.0, {})], []
    view = zoned("aabb", *led, busy=False)
    for at in range(4):
        plan = Obeyed().plan(view, at * REST_S)
        assert plan.rule in {Rule.SPREAD, None}
        view = after(view, plan.moves)
    assert Counter(each.leader for each in view.partitions) == {1: 3, 2: 3, 3: 1}


def test_what_another_rule_has_moved_out_of_a_rack_does_not_return_within_an_hour() -> None:
    planner = Obeyed()
    view = zoned("ab", [(0.4, {"a": MANY})] * 3, [])
    moved = planned(view, planner).moves
    assert {move.to_node for move in moved} == {2}
    view = after(view, moved)
    calm = replace(view, partitions=[each._replace(cores=0.01) for each in view.partitions])
    returned = [at for at in range(500) if planner.plan(calm, 30 + at * STEP_S).moves]
    assert returned[0] * STEP_S >= RETURN_S - STEP_S


def with_readers(view: View, *beside: float) -> View:
    """The view with the cost of what nodes 1, 2, ... do beside their partitions."""
    return replace(view, nodes=[each._replace(cores=cores) for each, cores in zip(view.nodes, beside, strict=True)])


def test_a_node_that_has_much_to_do_as_a_replica_is_not_filled_and_one_with_less_is_as_far_as_it_has_room() -> None:
    view = view_of([0.05] * 8, [0.05] * 8, [], up_s={3: 20.0})
    assert not planned(with_readers(view, 0, 0, 0.6), views=9).moves
    moved = planned(with_readers(view, 0, 0, 0.15), views=1).moves
    assert Counter(move.to_node for move in moved) == {3: 3}, "it has 0.3 cores then, the others 0.3 and 0.35"
    joined = replace(view, nodes=[*view.nodes[:2], NodeLoad(3, OLD_S, cores=0.6), NodeLoad(4, 20.0)])
    assert Counter(move.to_node for move in planned(joined, views=1).moves) == {4: 5}, "beside one that is loaded"


def test_readers_of_a_replica_are_no_reason_to_try_or_to_alarm() -> None:
    view = with_readers(view_of([0.1] * 4, [0.1] * 4, []), 0, 0, 3.0)
    plan = planned(view, views=30)
    assert (plan.moves, plan.excess_cores, plan.hot) == ((), 0.0, [])
    assert math.isclose(plan.spread_before, 1.0)


def test_a_node_that_is_overloaded_by_readers_gives_what_it_leads_and_no_more_moves() -> None:
    view, planner = with_readers(view_of([0.1] * 4, [0.1] * 4, [0.1] * 4), 1.0, 0, 0), Obeyed()
    plan = planned(view, planner)
    assert plan.rule is Rule.SHED
    assert Counter(move.to_node for move in plan.moves) == {2: 2, 3: 2}
    assert "node 1 has a load of 1.401 cores (1.000 as a replica), where the mean is 0.601" in plan.moves[0].reason
    view = after(view, plan.moves)
    assert not any(planner.plan(view, 100 + at * STEP_S).moves for at in range(500))


def test_a_cluster_with_busy_replicas_is_not_at_rest() -> None:
    view = view_of([0.0] * 9, [0.0])
    assert not planned(with_readers(view, 0, 0.3), views=9).moves
    assert Obeyed().plan(view, 0).moves


def is_overloaded(view: View) -> bool:
    """True if a node has far more than if the partitions were spread evenly over what the nodes do beside."""
    led = dict.fromkeys((each.node_id for each in view.nodes), 0.0)
    for each in view.partitions:
        led[each.leader] += each.cores
    total, low = sum(led.values()), 0.0
    high = total + max(each.cores for each in view.nodes)
    for _ in range(30):
        level = (low + high) / 2
        if sum(max(level - each.cores, 0) for each in view.nodes) < total:
            low = level
        else:
            high = level
    excess = max(led[each.node_id] - max(high - each.cores, 0) for each in view.nodes)
    return excess > high * 0.25 and excess > OVERLOAD_CORES


LAYOUTS = st.lists(st.lists(st.floats(0, 1), max_size=20), min_size=1, max_size=5)


def most(view: View) -> float:
    """The highest load of a node, whatever it consists of."""
    cores = {each.node_id: each.cores for each in view.nodes}
    for each in view.partitions:
        cores[each.leader] += each.cores + IDLE_CORES
    return max(cores.values())


@given(
    layout=LAYOUTS,
    joined=st.sets(st.integers(1, 5)),
    beside=st.lists(st.sampled_from([0.0, 0.05, 0.3, 2.0]), min_size=5, max_size=5),
)
def test_no_plan_makes_things_worse(layout: list[list[float]], joined: set[int], beside: list[float]) -> None:
    planner, view = Obeyed(), view_of(*layout, up_s=dict.fromkeys(joined, 30.0))
    view = with_readers(view, *beside[: len(layout)])
    nodes = {each.node_id for each in view.nodes}
    leaders = {each.stream_id: each.leader for each in view.partitions}
    for at in range(12):
        plan = planner.plan(view, at * STEP_S)
        assert len(plan.moves) <= MOVES_MAX
        assert len({move.stream_id for move in plan.moves}) == len(plan.moves)
        for move in plan.moves:
            assert leaders[move.stream_id] == move.from_node
            assert move.to_node in nodes - {move.from_node}
            leaders[move.stream_id] = move.to_node
        if plan.rule is not Rule.SPREAD:
            assert plan.spread_after <= plan.spread_before + 1e-9
            assert most(after(view, plan.moves)) <= most(view) + 1e-9
        view = after(view, plan.moves)


def test_a_day_of_clients_that_change_their_racks() -> None:
    """Traffic follows the sun over three racks: partitions follow, no node is overloaded for it, and few go back."""
    chance = random.Random(7)
    streams, racks = 60, "abcabc"
    homes = [chance.choice("abc") for _ in range(streams)]
    leaders = {stream: 1 + stream % 6 for stream in range(streams)}
    weights = [chance.paretovariate(1.5) * 0.003 for _ in range(streams)]
    means: list[dict[str, float]] = [dict.fromkeys("abc", 0.0) for _ in range(streams)]
    planner, now_s = Obeyed(), 0.0
    left: dict[tuple[int, str], float] = {}
    zone_moves = far = total = early = 0.0
    while now_s < 24 * 3600:
        if chance.random() < 0.002:  # a service is deployed in another rack
            homes[chance.randrange(streams)] = chance.choice("abc")
        for stream, weight in enumerate(weights):
            size = weight * 10_000_000 * chance.uniform(0.2, 1.8)
            for rack in "abc":
                found = size * (0.8 if rack == homes[stream] else 0.1)
                means[stream][rack] += (found - means[stream][rack]) * STEP_S / 600
        view = View(
            [NodeLoad(node_id, OLD_S, rack) for node_id, rack in enumerate(racks, 1)],
            [
                PartitionLoad(each, "t", leaders[each], weights[each], weights[each], racks=dict(means[each]))
                for each in range(streams)
            ],
            zone=Zone.PREFER,
        )
        plan = planner.plan(view, now_s)
        for move in plan.moves:
            to_rack, from_rack = racks[move.to_node - 1], racks[move.from_node - 1]
            if plan.rule is Rule.ZONE:
                assert now_s - left.get((move.stream_id, to_rack), -RETURN_S) >= RETURN_S, "it goes back"
                zone_moves += 1
            left[move.stream_id, from_rack] = now_s
            leaders[move.stream_id] = move.to_node
        assert is_overloaded(view) or not is_overloaded(after(view, plan.moves)), "for the racks of clients"
        for stream, by_rack in enumerate(means):
            own = by_rack[racks[leaders[stream] - 1]]
            total, far = total + sum(by_rack.values()), far + sum(by_rack.values()) - own
        if now_s == 0:
            early = far / total
        now_s += STEP_S
    assert early > 0.55, "at first two thirds of the leaders are elsewhere"
    assert far / total < 0.35, "a fifth of the bytes crosses in any case"
    assert streams / 2 < zone_moves < 4 * streams


def test_a_day_of_changing_load() -> None:
    """A daily cycle, spikes, readers of replicas, joins and losses.

    Few partitions move in an hour, none goes back, and the cluster is even.
    """
    chance = random.Random(4)
    streams = 200
    weights = [chance.paretovariate(1.3) * 0.004 for _ in range(streams)]
    leaders = {stream: 1 + stream % 4 for stream in range(streams)}
    up_s = dict.fromkeys(range(1, 5), OLD_S)
    means, longs = [0.0] * streams, [0.0] * streams
    spikes: dict[int, float] = {}
    catch_ups: dict[int, float] = {}
    beside: dict[int, float] = {}
    planner, now_s = Obeyed(), 0.0
    moves_of_hour: Counter[tuple[int, bool]] = Counter()
    left: dict[tuple[int, int], float] = {}
    overloaded_views = views = 0
    while now_s < 24 * 3600:
        cycle = 1.1 + math.sin(now_s / 86_400 * math.tau)
        if chance.random() < 0.003:
            spikes[chance.randrange(streams)] = now_s + chance.uniform(20, 1800)
        spikes = {stream: until_s for stream, until_s in spikes.items() if until_s > now_s}
        for stream, weight in enumerate(weights):
            cost = weight * cycle * chance.uniform(0.7, 1.3) + (0.3 if stream in spikes else 0.0)
            means[stream] += (cost - means[stream]) * STEP_S / 60
            longs[stream] += (cost - longs[stream]) * STEP_S / 20_000
        if chance.random() < 0.001:
            catch_ups[chance.choice(sorted(up_s))] = now_s + chance.uniform(60, 3600)
        for node_id in up_s:
            cost = 0.5 if catch_ups.get(node_id, 0.0) > now_s else 0.0
            beside[node_id] = beside.get(node_id, 0.0) + (cost - beside.get(node_id, 0.0)) * STEP_S / 60
        if chance.random() < 0.0006 and len(up_s) > 3:  # its partitions go to the others
            lost = chance.choice(sorted(up_s))
            del up_s[lost]
            for stream, leader in leaders.items():
                if leader == lost:
                    leaders[stream] = chance.choice(sorted(up_s))
        elif chance.random() < 0.001 and len(up_s) < 6:
            up_s[min(set(range(1, 8)) - up_s.keys())] = 0.0
        view = View(
            [NodeLoad(node_id, age_s, cores=beside.get(node_id, 0.0)) for node_id, age_s in sorted(up_s.items())],
            [PartitionLoad(each, "t", leaders[each], means[each], longs[each]) for each in range(streams)],
        )
        plan = planner.plan(view, now_s)
        for move in plan.moves:
            assert now_s - left.get((move.stream_id, move.to_node), -RETURN_S) >= RETURN_S, "it goes back"
            left[move.stream_id, move.from_node] = now_s
            leaders[move.stream_id] = move.to_node
            moves_of_hour[int(now_s // 3600), plan.rule is Rule.FILL] += 1
        views += 1
        overloaded_views += is_overloaded(after(view, plan.moves)) and not plan.hot
        up_s = {node_id: age_s + STEP_S for node_id, age_s in up_s.items()}
        now_s += STEP_S
    shed = [count for (_, filled), count in moves_of_hour.items() if not filled]
    assert max(shed) <= streams * HOURLY_SHARE + MOVES_MAX
    assert sum(shed) <= 24 * 30
    assert overloaded_views < views * 0.05
