"""Planted bugs of streams groups."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.plan import COUNTS, Plan
from tests.simulation.planted.patch import Edit, Planted


def alone(*faults: str) -> Callable[[Plan], Plan]:
    """Return a change of plans that leaves members of a streams group alone, with these faults: they rebalance more."""

    def adapt(plan: Plan) -> Plan:
        others = dict.fromkeys(COUNTS, 0)
        actors: dict[str, Any] = {**others, "idempotent": 1, "streams_members": 3}
        return replace(plan, seconds=15.0, faults=faults, partitions=4, goes_back=False, rival=False, **actors)

    return adapt


TWO_OWNERS = "was acked twice: there were two owners"
STREAMS: Sequence[Planted] = (
    Planted(
        "streams-revoking-free",
        "a task that a member is to revoke is given to another at once",
        [
            Edit(
                "anabranch.broker.kafka.groups.streams.group",
                "        for held in (member.assigned, member.revoking):\n            for task in held.active:\n"
                "                assert",
                "        for held in (member.assigned,):\n            for task in held.active:\n                assert",
            ),
            Edit(
                "anabranch.broker.kafka.groups.streams.group",
                "        for held in (member.assigned, member.revoking):\n            for task in held.active:\n"
                "                del",
                "        for held in (member.assigned,):\n            for task in held.active:\n                del",
            ),
        ],
        found_by=TWO_OWNERS,
        seeds=20,
        adapt=alone(),
    ),
    Planted(
        "streams-revocation-assumed",
        "a member that must revoke tasks is taken to have done so at its next heartbeat",
        [
            Edit(
                "anabranch.broker.kafka.groups.streams.reconciliation",
                "        if member.revoking.is_any_owned(owned):\n            return member\n",
                "",
            ),
        ],
        found_by=TWO_OWNERS,
        seeds=20,
        adapt=alone(),
    ),
    Planted(
        "streams-sessions-forgotten",
        "a new coordinator gives the members of a streams group no session, so that silent ones stay",
        [
            Edit(
                "anabranch.broker.kafka.groups.streams.group",
                "        self.extend_session(member.member_id, now)\n        self._time",
                "        self._time",
            ),
        ],
        found_by="the last member got",
        seeds=20,
        adapt=alone("kill"),
    ),
    Planted(
        "streams-internal-topics",
        "missing internal topics of streams groups are not created",
        [
            Edit(
                "anabranch.broker.api.handlers.streams_group_heartbeat",
                "    if answer.missing_topics:\n",
                "    if ():\n",
            ),
        ],
        found_by="the last member got",
        seeds=5,
        adapt=alone(),
    ),
)
