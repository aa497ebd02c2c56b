"""Planted bugs of streams groups."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import having

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
        adapt=having(streams_members=3, partitions=4),
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
        adapt=having(streams_members=3, partitions=4),
    ),
    Planted(
        "streams-sessions-forgotten",
        "a new coordinator gives the members of a streams group no session, so that silent ones stay",
        [
            Edit(
                "anabranch.broker.kafka.groups.streams.group",
                "            group.extend_session(member.member_id, now)\n            group._time",
                "            group._time",
            ),
        ],
        found_by="the last member got",
        seeds=20,
        adapt=having("kill", streams_members=3),
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
        adapt=having(streams_members=2),
    ),
)
