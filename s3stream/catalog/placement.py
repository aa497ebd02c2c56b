"""Selects leaders and replicas of partitions. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType


def place_topic(
    count: int, nodes: Sequence[int], of_topic: Mapping[int, int], led: Mapping[int, int], racks: Mapping[int, str]
) -> Sequence[int]:
    """Return a leader for each of `count` new partitions of a topic: the topic is spread over all nodes.

    `of_topic` counts the partitions that the topic has already. Among nodes with equally many, the rack with the fewest
    of the topic comes first, and then the node with the fewest of all. `racks` are by node id.
    """
    in_rack = Counter[str]()
    for node_id, its_count in of_topic.items():
        in_rack[racks.get(node_id, "")] += its_count
    load = {node_id: (of_topic.get(node_id, 0), led.get(node_id, 0)) for node_id in nodes}
    return _place([()] * count, load, {node_id: racks.get(node_id, "") for node_id in nodes}, in_rack)


def place_successors(
    replicas: Sequence[Collection[int]], nodes: Sequence[int], led: Mapping[int, int]
) -> Sequence[int]:
    """Return a leader for each partition, given as its replicas: one of those as far as `nodes` has any.

    Of several that may lead it, the one that leads the fewest does: `led` counts partitions by node. Among equals the
    lower id is first, so that the partitions go around. `nodes` are not empty.
    """
    return _place(
        replicas, {node_id: (led.get(node_id, 0), 0) for node_id in nodes}, dict.fromkeys(nodes, ""), Counter()
    )


def _place(
    replicas: Sequence[Collection[int]],
    load: dict[int, tuple[int, int]],
    racks: Mapping[int, str],
    in_rack: Counter[str],
) -> Sequence[int]:
    def rank(node_id: int) -> tuple[int, int, int, int]:
        first, second = load[node_id]
        return first, in_rack[racks[node_id]], second, node_id

    leaders: list[int] = []
    for mine in replicas:
        chosen = min([each for each in load if each in mine] or load, key=rank)
        first, second = load[chosen]
        load[chosen] = first + 1, second + 1
        in_rack[racks[chosen]] += 1
        leaders.append(chosen)
    return leaders


def led_by(replicas: Sequence[int], leader: int, racks: Mapping[int, str] = MappingProxyType({})) -> tuple[int, ...]:
    """Return the replicas with the leader in front, in place of another one unless it is one of them.

    Of those in its rack the first one leaves, else the first of all: so no rack is lost. `racks` are by node id.
    """
    near = [each for each in replicas if racks.get(each) == racks.get(leader)]
    leaves = leader if leader in replicas else next(iter((*near, *replicas)), leader)
    return (leader, *(each for each in replicas if each != leaves))


def place_replicas(
    leaders: Sequence[int], factor: int, nodes: Mapping[int, str], living: Collection[int]
) -> Iterator[Sequence[int]]:
    """Yield the replicas of each partition, its leader first: `factor`, or as many as there are `nodes`.

    `nodes` are racks by node id. Nodes that live come first, then racks without a replica, then nodes with the fewest
    replicas of these partitions. Among equals they go around from the leader.
    """
    load = Counter[int]()
    for leader in leaders:
        chosen = [leader]
        left = [node_id for node_id in nodes if node_id != leader]
        while left and len(chosen) < factor:
            used = {nodes.get(node_id) for node_id in chosen}
            found = min(left, key=lambda n: (n not in living, nodes[n] in used, load[n], n < leader, n))
            left.remove(found)
            load[found] += 1
            chosen.append(found)
        yield chosen
