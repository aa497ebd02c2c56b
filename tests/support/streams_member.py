"""A member of a streams group by its requests, without Java: what an application that counts sends."""

from collections.abc import Sequence
from typing import Final

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

LEAVING: Final = -1


class StreamsMember:
    """Repartitions a topic (subtopology 0), and counts with a changelog (subtopology 1).

    `take` gets the answer to each `request`, until it `is_settled`: it has told the coordinator that it has its tasks.
    """

    def __init__(self, group: str, topic: str) -> None:
        self.repartition = f"{group}-by-word-repartition"
        self.changelog = f"{group}-counts-changelog"
        self.is_settled = False
        self._group = group
        self._epoch = 0
        self._tasks: Sequence[TaskIds] = ()
        self._topology = Topology(
            subtopologies=[
                Subtopology(subtopology_id="0", source_topics=[topic], repartition_sink_topics=[self.repartition]),
                Subtopology(
                    subtopology_id="1",
                    repartition_source_topics=[TopicInfo(name=self.repartition)],
                    state_changelog_topics=[TopicInfo(name=self.changelog)],
                ),
            ]
        )

    def request(self) -> StreamsGroupHeartbeatRequest:
        """Return the next heartbeat."""
        joins = self._epoch == 0
        return StreamsGroupHeartbeatRequest(
            group_id=self._group,
            member_id="member",
            member_epoch=self._epoch,
            rebalance_timeout_ms=10_000,
            topology=self._topology if joins else None,
            process_id="process" if joins else None,
            client_tags=() if joins else None,
            active_tasks=self._tasks,
            standby_tasks=(),
            warmup_tasks=(),
        )

    def take(self, answer: StreamsGroupHeartbeatResponse) -> None:
        """Take the answer to a heartbeat."""
        assert answer.error_code == ErrorCode.NONE, answer
        self.is_settled = bool(self._tasks) and answer.active_tasks is None and not answer.status
        self._epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self._tasks = answer.active_tasks

    def farewell(self) -> StreamsGroupHeartbeatRequest:
        """Return the request that leaves the group."""
        return StreamsGroupHeartbeatRequest(group_id=self._group, member_id="member", member_epoch=LEAVING)
