"""The classic kind of group, which also stands for groups without members: those that only keep offsets."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.classic.records import GROUP_KEY_VERSION, parse_snapshot
from anabranch.broker.kafka.groups.interface import GroupMachine, Outcome
from anabranch.broker.kafka.groups.requests import ClassicHeartbeat, GroupRequest, JoinRequest, LeaveRequest, Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import read_version
from anabranch.protocol.errors import ErrorCode, KafkaError


class ClassicKind:
    """Makes classic groups."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings

    def owns(self, key: bytes) -> bool:
        """Return whether a record with this key belongs to a classic group."""
        return read_version(key) == GROUP_KEY_VERSION

    def restore(self, group_id: str, stored: Mapping[bytes, bytes], now: Now) -> ClassicMachine:
        """Return a group as its record describes it, an empty one if there is none. Raises MalformedMessage."""
        group = ClassicGroup(group_id)
        for key, value in stored.items():
            if self.owns(key):
                group = ClassicGroup.restore(group_id, parse_snapshot(value), now)
        return ClassicMachine(group, self._settings)

    def begin(self, group_id: str, request: GroupRequest[Any], former: GroupMachine | None, now: Now) -> Outcome:
        """Create a group for the JoinGroup of a new member. Classic members cannot join the `former` group."""
        match request:
            case JoinRequest() if former is not None:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            case JoinRequest() if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            case JoinRequest():
                return begin_classic(group_id, request, self._settings, now)
            case ClassicHeartbeat():
                return Outcome(ErrorCode.UNKNOWN_MEMBER_ID)
            case LeaveRequest():
                return Outcome([ErrorCode.UNKNOWN_MEMBER_ID] * len(request.leavers))
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")


def begin_classic(group_id: str, request: JoinRequest, settings: GroupSettings, now: Now) -> Outcome:
    """Create a classic group for its first member."""
    machine = ClassicMachine(ClassicGroup(group_id), settings)
    outcome = machine.handle(request, now)
    outcome.successor = machine
    return outcome
