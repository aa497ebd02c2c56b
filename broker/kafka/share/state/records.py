"""Records of `__share_group_state`, byte for byte as Apache Kafka writes them, so that its tools can read ours."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.share.interface import ShareKey, StateBatch
from anabranch.broker.kafka.share.state.stored import StoredState, Update
from anabranch.protocol.codec import decode_versioned, encode_versioned, read_version
from anabranch.protocol.messages.embedded import share_group_state as messages

SNAPSHOT_KEY: Final = 0
UPDATE_KEY: Final = 1
VALUE_VERSION: Final = 0


class StateRecord(NamedTuple):
    """A snapshot, an update, or the deletion of the state (None)."""

    key: ShareKey
    value: StoredState | Update | None


class UnknownRecord(NamedTuple):
    """A record of a kind that a later version has written."""

    key: bytes
    value: bytes | None


def state_record(key: ShareKey, value: StoredState | Update | None) -> KeyValue:
    """Encode a snapshot, an update, or the deletion of the state."""
    if isinstance(value, Update):
        update_key = messages.ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
        update = messages.ShareUpdateValue(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            state_batches=_encoded(value.batches),
        )
        return KeyValue(encode_versioned(update_key, UPDATE_KEY), encode_versioned(update, VALUE_VERSION))
    snapshot_key = messages.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    encoded_key = encode_versioned(snapshot_key, SNAPSHOT_KEY)
    if value is None:
        return KeyValue(encoded_key, None)
    snapshot = messages.ShareSnapshotValue(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp=value.create_ms,
        write_timestamp=value.write_ms,
        state_batches=_encoded(value.batches),
    )
    return KeyValue(encoded_key, encode_versioned(snapshot, VALUE_VERSION))


def parse_record(record: KeyValue) -> StateRecord | UnknownRecord:
    """Read a record back. Raises MalformedMessage."""
    kind = read_version(record.key)
    if kind == SNAPSHOT_KEY:
        named = decode_versioned(messages.ShareSnapshotKey, record.key)
        return StateRecord(ShareKey(named.group_id, named.topic_id, named.partition), _snapshot(record.value))
    if kind == UPDATE_KEY:
        updated = decode_versioned(messages.ShareUpdateKey, record.key)
        return StateRecord(ShareKey(updated.group_id, updated.topic_id, updated.partition), _update(record.value))
    return UnknownRecord(record.key, record.value)


def _snapshot(data: bytes | None) -> StoredState | None:
    if data is None:
        return None
    value = decode_versioned(messages.ShareSnapshotValue, data)
    return StoredState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_ms=value.create_timestamp,
        write_ms=value.write_timestamp,
        batches=_decoded(value.state_batches),
    )


def _update(data: bytes | None) -> Update | None:
    if data is None:
        return None
    value = decode_versioned(messages.ShareUpdateValue, data)
    return Update(
        value.snapshot_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _decoded(value.state_batches),
    )


def _encoded(batches: Iterable[StateBatch]) -> Sequence[messages.StateBatch]:
    return [
        messages.StateBatch(
            first_offset=each.first_offset,
            last_offset=each.last_offset,
            delivery_state=each.delivery_state,
            delivery_count=each.delivery_count,
        )
        for each in batches
    ]


def _decoded(batches: Iterable[messages.StateBatch]) -> Sequence[StateBatch]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in batches
    )
