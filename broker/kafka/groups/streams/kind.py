"""The kind of streams groups (KIP-1071). An empty classic group becomes one when a member of this protocol joins it."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.kafka.configs.streams import StreamsConfigsGetter
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.interface import GroupMachine, Outcome
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.requests import GroupRequest, Now
from anabranch.broker.kafka.groups.streams.group import StreamsGroup
from anabranch.broker.kafka.groups.streams.machine import StreamsMachine
from anabranch.broker.kafka.groups.streams.records import KINDS
from anabranch.broker.kafka.groups.streams.requests import StreamsHeartbeat
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import read_version
from anabranch.protocol.errors import ErrorCode, KafkaError


class StreamsKind:
    """Makes streams groups."""

    def __init__(self, settings: GroupSettings, topics: TopicImageGetter, configs: StreamsConfigsGetter) -> None:
        self._settings = settings
        self._topics = topics
        self._configs = configs

    def owns(self, key: bytes) -> bool:
        """Return whether a record with this key belongs to a streams group."""
        return read_version(key) in KINDS.key_types

    def restore(self, group_id: str, stored: Mapping[bytes, bytes], now: Now) -> StreamsMachine:
        """Return a group as its records describe it, an empty one if there are none. Raises MalformedMessage."""
        return self._machine(self._group(group_id).restore(stored, now))

    def begin(self, group_id: str, request: GroupRequest[Any], former: GroupMachine | None, now: Now) -> Outcome:
        """Create a group, or convert an empty classic one, if the heartbeat joins the group."""
        assert isinstance(request, StreamsHeartbeat), "there is one request of the streams protocol"
        is_empty_classic = isinstance(former, ClassicMachine) and not former.group.members
        if request.epoch != 0 or not (former is None or is_empty_classic):
            problem = f"{'Group' if request.epoch < 0 else 'Streams group'} {group_id} not found."
            if former is not None:
                problem = f"Group {group_id} is not a streams group."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)
        machine = self._machine(self._group(group_id))
        outcome = machine.handle(request, now)
        outcome.successor = machine
        if former is not None:
            # The heartbeat was accepted: from here on this is a streams group.
            outcome.responses = former.resign(now).responses
            outcome.records = [*former.retire(), *outcome.records]
        return outcome

    def _group(self, group_id: str) -> StreamsGroup:
        return StreamsGroup(group_id, self._settings, self._configs)

    def _machine(self, group: StreamsGroup) -> StreamsMachine:
        return StreamsMachine(group, self._settings, self._topics)
