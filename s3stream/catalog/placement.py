"""Selects the leaders of new partitions. Pure."""

from collections.abc import Mapping, Sequence


def place_leaders(count: int, nodes: Sequence[int], led: Mapping[int, int]) -> Sequence[int]:
    """Return a leader for each of `count` partitions.

    Each goes to the one of `nodes`, which are not empty, that leads the fewest: `led` counts partitions by node. Among
    equals the lower id is first, so that the partitions of a topic go around.
    """
    load = {node_id: led.get(node_id, 0) for node_id in nodes}
    leaders: list[int] = []
    for _ in range(count):
        chosen = min(load, key=lambda node_id: (load[node_id], node_id))
        load[chosen] += 1
        leaders.append(chosen)
    return leaders
