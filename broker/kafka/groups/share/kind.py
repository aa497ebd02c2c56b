"""The kind of share groups (KIP-932). A group is a share group from its beginning: none is converted."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.groups.interface import GroupMachine, Outcome
from anabranch.broker.kafka.groups.modern.topic_image import TopicImageGetter
from anabranch.broker.kafka.groups.requests import GroupRequest, Now
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.groups.share.machine import ShareMachine
from anabranch.broker.kafka.groups.share.records import KINDS
from anabranch.broker.kafka.groups.share.requests import AlterOffsets, CreateStates, ShareHeartbeat
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import read_version
from anabranch.protocol.errors import ErrorCode, KafkaError


class ShareKind:
    """Makes share groups. `create_states` has the states of their partitions created."""

    def __init__(
        self,
        settings: GroupSettings,
        topics: TopicImageGetter,
        create_states: CreateStates,
        times: GroupTimesGetter | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._create_states = create_states
        self._times = times

    def owns(self, key: bytes) -> bool:
        """Return whether a record with this key belongs to a share group."""
        return read_version(key) in KINDS.key_types

    def restore(self, group_id: str, stored: Mapping[bytes, bytes], now: Now) -> ShareMachine:
        """Return a group as its records describe it, an empty one if there are none. Raises MalformedMessage."""
        return self._machine(self._group(group_id).restore(stored, now))

    def begin(self, group_id: str, request: GroupRequest[Any], former: GroupMachine | None, now: Now) -> Outcome:
        """Create a group if the heartbeat joins it, or offsets are set."""
        if former is not None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        match request:
            case ShareHeartbeat(epoch=0) | AlterOffsets():
                machine = self._machine(self._group(group_id))
                outcome = machine.handle(request, now)
                outcome.successor = machine
                return outcome
        is_beat = isinstance(request, ShareHeartbeat) and request.epoch > 0
        problem = f"{'Share group' if is_beat else 'Group'} {group_id} not found."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)

    def _group(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, self._settings, self._times)

    def _machine(self, group: ShareGroup) -> ShareMachine:
        return ShareMachine(group, self._topics, self._create_states)
