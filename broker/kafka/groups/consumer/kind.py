"""The kind of consumer groups (KIP-848): a classic group becomes one when a member of this protocol joins it."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat
from anabranch.broker.kafka.groups.consumer.machine import ConsumerMachine
from anabranch.broker.kafka.groups.consumer.migration import to_consumer_group
from anabranch.broker.kafka.groups.consumer.records import KINDS
from anabranch.broker.kafka.groups.interface import GroupMachine, Outcome
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.requests import GroupRequest, Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import read_version
from anabranch.protocol.errors import ErrorCode, KafkaError


class ConsumerKind:
    """Makes consumer groups."""

    def __init__(
        self, settings: GroupSettings, topics: TopicImageGetter, times: GroupTimesGetter | None = None
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._times = times

    def owns(self, key: bytes) -> bool:
        """Return whether a record with this key belongs to a consumer group."""
        return read_version(key) in KINDS.key_types

    def restore(self, group_id: str, stored: Mapping[bytes, bytes], now: Now) -> ConsumerMachine:
        """Return a group as its records describe it, an empty one if there are none. Raises MalformedMessage."""
        return self._machine(self._group(group_id).restore(stored, now))

    def begin(self, group_id: str, request: GroupRequest[Any], former: GroupMachine | None, now: Now) -> Outcome:
        """Create a group, or convert a classic one with its members, if the heartbeat joins the group."""
        assert isinstance(request, ConsumerHeartbeat), "there is one request of the consumer protocol"
        if request.epoch != 0 or not (former is None or isinstance(former, ClassicMachine)):
            problem = f"{'Group' if request.epoch < 0 else 'Consumer group'} {group_id} not found."
            if former is not None:
                problem = f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        if former is None:
            return self._begin(self._group(group_id), request, now)
        if former.group.members:
            group = to_consumer_group(former.group, self._settings, self._topics(), now, self._times)
        else:
            group = self._group(group_id)
        outcome = self._begin(group, request, now)
        # The heartbeat was accepted: from here on this is a consumer group.
        outcome.responses = former.resign(now, ErrorCode.REBALANCE_IN_PROGRESS).responses
        outcome.records = [*former.retire(), *outcome.records]
        return outcome

    def _begin(self, group: ConsumerGroup, request: ConsumerHeartbeat, now: Now) -> Outcome:
        machine = self._machine(group)
        outcome = machine.handle(request, now)
        outcome.successor = machine
        return outcome

    def _group(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._settings, self._times)

    def _machine(self, group: ConsumerGroup) -> ConsumerMachine:
        return ConsumerMachine(group, self._settings, self._topics)
