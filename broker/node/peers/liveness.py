"""Judges by beats which nodes live. Pure: times are this node's own, and clocks of two machines are never compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from anabranch.s3stream.catalog.values import NodeBeat

BEAT_S: Final = 0.5
"""Interval between the beats of a node that is not alone."""
DEAD_AFTER_S: Final = 3.0
"""A node whose beat has not changed for so long is dead."""
BEATS_MISSED: Final = 3
"""Number of missed beats after which a node that was never seen to live is dead."""
SUSPECT_AFTER_S: Final = 1.0
"""A node whose beat has not changed for so long is dead if its process is known to have ended."""
RECONNECTION_S: Final = 3.0
"""Time within which a node that lives beats again after an outage of the catalog: connecting, and a pause before it."""
LISTED_FOR_S: Final = 9.0
"""Time after its last sign of life for which a node's address is given to clients, as by Apache Kafka (its session)."""


@dataclass(slots=True)
class _Observation:
    beat: NodeBeat
    since_s: float
    """Time at which this beat was first seen, or from which on the observation is unbroken."""
    lives: bool
    was_alive: bool
    """True if another beat was seen before."""
    sign_s: float | None
    """Time of the last change of the beat of a living node; None if it was never seen to live."""


class Silence(NamedTuple):
    """An unbroken observation of a node whose beat has not changed."""

    beat: NodeBeat
    seconds: float
    was_alive: bool
    """True if its beat was seen to change before."""

    def patience_s(self, lease_ms: int) -> float:
        """Return after how long the silence proves that the node is dead.

        One that was never seen to live may believe to be alone, and beat a few times a lease only.
        """
        if self.was_alive or not self.beat.has_lease:
            return DEAD_AFTER_S
        longest_ms = BEATS_MISSED * self.beat.due_ms or lease_ms
        return max(DEAD_AFTER_S, longest_ms / 1000)


class Liveness:
    """The nodes that are known to live: their beats have changed recently."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._seen: dict[int, _Observation] = {}
        self._last_s = 0.0
        """Time of the last observation."""

    def observe(self, beats: Mapping[int, NodeBeat], now_s: float) -> None:
        """Take in the beats of all nodes.

        After a pause in which nothing was observed, no node is taken for dead: this one may have been paused.
        After a long pause this holds for a while: if the catalog was away for all, others may still have to connect.
        A node that was not registered at the observation before lives: it has just started.
        """
        pause_s = now_s - self._last_s
        is_first = not self._seen
        self._last_s = now_s
        for node_id, beat in beats.items():
            before = self._seen.get(node_id)
            if before is None or beat != before.beat:
                # What the first observation finds may have died long ago: nothing is known until its beat changes.
                lives = beat.has_lease and not is_first
                sign_s = now_s if lives else before.sign_s if before is not None else None
                was_alive = before is not None
                self._seen[node_id] = _Observation(beat, now_s, lives=lives, was_alive=was_alive, sign_s=sign_s)
            elif pause_s >= DEAD_AFTER_S / 2:
                before.since_s = now_s + (RECONNECTION_S if pause_s >= DEAD_AFTER_S else 0.0)
            elif now_s - before.since_s >= DEAD_AFTER_S:
                before.lives = False
        for node_id in self._seen.keys() - beats.keys():
            del self._seen[node_id]

    def silent(self) -> Mapping[int, Silence]:
        """Return how long each other node has been silent, at the last observation."""
        return {
            node_id: Silence(seen.beat, max(0.0, self._last_s - seen.since_s), seen.was_alive)
            for node_id, seen in self._seen.items()
            if node_id != self._own
        }

    def living(self) -> frozenset[int]:
        """Return the ids of the nodes that live; this one is always among them."""
        return frozenset(node_id for node_id, seen in self._seen.items() if seen.lives) | {self._own}

    def listed(self) -> frozenset[int]:
        """Return the ids of the nodes that live, or did a moment ago. They may come back under the same address."""
        recent = (
            node_id
            for node_id, seen in self._seen.items()
            if seen.sign_s is not None and self._last_s - seen.sign_s < LISTED_FOR_S
        )
        return self.living().union(recent)
