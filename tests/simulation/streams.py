"""Members of a streams group (KIP-1071), whose tasks read the partitions that they commit offsets of.

What is checked, beside what `GroupHistory` checks of commits: an active task has one owner, a member has a task in one
role, internal topics are created, and a member that is left gets all tasks.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from anabranch.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from tests.simulation.groups import REBALANCE_MS, REJOIN, Member
from tests.simulation.history import TopicPartition, Violation
from tests.simulation.routing import Lost, Refused, check

AWAY_S: Final = 3.0
"""Longest time that a member stays away, so that others get its tasks and must give them up again."""
ALL_S: Final = 60.0
"""Time within which the only member that is left gets all tasks: the sessions of others end."""


def _topology(topics: Mapping[str, int]) -> Topology:
    """Return a subtopology for each topic, with a changelog, so that there are standby tasks."""
    return Topology(
        epoch=1,
        subtopologies=[
            Subtopology(
                subtopology_id=topic,
                source_topics=[topic],
                state_changelog_topics=[TopicInfo(name=f"streams-{topic}-changelog")],
            )
            for topic in sorted(topics)
        ],
    )


class StreamsMember(Member):
    """A member whose tasks count up the offsets of their partitions."""

    stay_s = 5.0
    told: frozenset[TopicPartition] = frozenset()
    """Tasks of the last response. The member works for a while longer on those that it must give up."""
    standby: frozenset[TopicPartition] = frozenset()

    async def join(self) -> None:
        if not self.member_id:
            self.member_id = f"{self.name}-{self.random.getrandbits(64):016x}"
        self.owned.clear()
        self.told = self.standby = frozenset()
        self.epoch = 0
        await self._heartbeat(
            rebalance_timeout_ms=REBALANCE_MS,
            topology=_topology(self.topics),
            process_id=self.name,
            client_tags=(),
            task_offsets=(),
            task_end_offsets=(),
        )

    async def _heartbeat(self, **fields: Any) -> None:
        answer: Any = await self.client.call(
            StreamsGroupHeartbeatRequest(
                group_id=self.history.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                active_tasks=_tasks(self.owned),
                standby_tasks=_tasks(self.standby),
                warmup_tasks=(),
                **fields,
            ),
            1,
        )
        check(answer.error_code, f"StreamsGroupHeartbeat {self.name} {answer.error_message}")
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            active, standby = _partitions(answer.active_tasks), _partitions(answer.standby_tasks)
            if active & standby:
                raise Violation(f"group {self.history.group}: {self.name} has {active & standby} in two roles")
            self.told, self.standby = active, standby
            await self.adopt({*active, *self._given_up_later()})

    def _given_up_later(self) -> set[TopicPartition]:
        """Return some of the tasks that it must give up."""
        return {where for where in sorted(self.owned.keys() - self.told) if self.random.random() < 0.5}

    async def beat(self) -> None:
        if self.owned.keys() - self.told:
            await self.adopt({*(self.owned.keys() & self.told), *self._given_up_later()})
        await self._heartbeat()

    async def leave(self) -> None:
        self.epoch = -1
        answer = await self.client.call(
            StreamsGroupHeartbeatRequest(group_id=self.history.group, member_id=self.member_id, member_epoch=-1), 1
        )
        check(answer.error_code, f"leave {self.name}")
        self.member_id, self.epoch = "", 0
        self.owned.clear()
        await asyncio.sleep(self.random.uniform(0, AWAY_S))

    async def get_all(self) -> None:
        """Join anew when no other member is left, and get all tasks."""
        self.member_id, self.epoch = "", 0
        wanted = {(topic, index) for topic, count in self.topics.items() for index in range(count)}
        until_s = self.world.now_s + ALL_S
        while self.owned.keys() != wanted:
            if self.world.now_s > until_s:
                raise Violation(f"group {self.history.group}: the last member got {sorted(self.owned)} only")
            try:
                await (self.beat() if self.epoch else self.join())
            except Lost:
                await self.client.pause()
            except Refused as error:
                if error.code not in REJOIN and not error.code.retriable:
                    raise Violation(str(error)) from error
                self.epoch = 0
            await asyncio.sleep(0.5)
        self.world.note("all tasks", group=self.history.group, tasks=len(wanted))
        await self.client.drop()


def _tasks(partitions: Mapping[TopicPartition, object] | frozenset[TopicPartition]) -> Sequence[TaskIds]:
    topics = sorted({topic for topic, _ in partitions})
    return [
        TaskIds(subtopology_id=topic, partitions=[index for name, index in sorted(partitions) if name == topic])
        for topic in topics
    ]


def _partitions(tasks: Sequence[TaskIds]) -> frozenset[TopicPartition]:
    return frozenset((each.subtopology_id, index) for each in tasks for index in each.partitions)
