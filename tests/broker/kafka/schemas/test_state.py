"""The state is what the records of the log amount to, in Confluent's format."""

import json
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.schemas.model import Kind, Level, Mode, Reference, RegistryError, Schema, Version
from anabranch.broker.kafka.schemas.records import (
    IdMark,
    LevelRecord,
    ModeRecord,
    RegistryRecord,
    SubjectClearing,
    SubjectDeletion,
    VersionRecord,
    decode,
    encode,
)
from anabranch.broker.kafka.schemas.state import RegistryState

TEXT = Schema(Kind.AVRO, '"string"')
OTHER = Schema(Kind.JSON, "{}", (Reference("r", "s", 1),))


def put(subject: str, version: int, schema_id: int, schema: Schema = TEXT, *, deleted: bool = False) -> VersionRecord:
    return VersionRecord(subject, version, Version(subject, version, schema_id, schema, deleted))


def test_an_id_that_is_gone_is_no_ones() -> None:
    same = Schema(Kind.AVRO, ' "string"')
    state = state_of(put("s", 1, 7), put("s", 2, 7, same), VersionRecord("s", 1, None))
    assert (state.id_of(TEXT), state.id_of(same)) == (None, 7)
    state.apply(VersionRecord("s", 2, None))
    assert (state.id_of(same), state.has_id(7)) == (None, False)


def state_of(*records: RegistryRecord) -> RegistryState:
    state = RegistryState()
    for each in records:
        state.apply(each)
    return state


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            put("s", 1, 7),
            '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            '{"subject":"s","version":1,"id":7,"schema":"\\"string\\"","deleted":false}',
        ),
        (
            put("t", 2, 8, OTHER, deleted=True),
            '{"keytype":"SCHEMA","subject":"t","version":2,"magic":1}',
            (
                '{"subject":"t","version":2,"id":8,"schemaType":"JSON",'
                '"references":[{"name":"r","subject":"s","version":1}],"schema":"{}","deleted":true}'
            ),
        ),
        (VersionRecord("s", 1, None), '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None),
        (
            LevelRecord("s", Level.FULL),
            '{"keytype":"CONFIG","subject":"s","magic":0}',
            '{"subject":"s","compatibilityLevel":"FULL"}',
        ),
        (
            LevelRecord(None, Level.NONE),
            '{"keytype":"CONFIG","subject":null,"magic":0}',
            '{"compatibilityLevel":"NONE"}',
        ),
        (LevelRecord("s", None), '{"keytype":"CONFIG","subject":"s","magic":0}', None),
        (
            ModeRecord("s", Mode.READONLY),
            '{"keytype":"MODE","subject":"s","magic":0}',
            '{"subject":"s","mode":"READONLY"}',
        ),
        (
            SubjectDeletion("s", 3),
            '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
            '{"subject":"s","version":3}',
        ),
        (SubjectClearing("s"), '{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}', '{"subject":"s"}'),
        (IdMark(9), '{"keytype":"NOOP","magic":0}', '{"maxId":9}'),
    ],
)
def test_records_have_confluents_format(record: RegistryRecord, key: str, value: str | None) -> None:
    assert encode(record) == KeyValue(key.encode(), None if value is None else value.encode())
    assert decode(encode(record)) == record


def test_unknown_fields_of_a_version_are_kept() -> None:
    value: dict[str, Any] = {"subject": "s", "version": 1, "id": 1, "schema": '"int"', "deleted": False, "guid": "g"}
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    record = decode(KeyValue(key, json.dumps(value).encode()))
    assert record is not None
    assert json.loads(encode(record).value or b"") == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"{}"),
        (b"[]", b"{}"),
        (b"\xff", None),
        (b'{"keytype":"OTHER","magic":0}', b"{}"),
        (b'{"keytype":"NOOP","magic":0}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":"x","schemaType":"XML"}'),
        (b'{"keytype":"SCHEMA","subject":":.c:s","version":1,"magic":1}', b'{"id":1,"schema":"x"}'),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"compatibilityLevel":"SOME"}'),
    ],
)
def test_records_without_a_meaning_are_ignored(key: bytes, value: bytes | None) -> None:
    assert decode(KeyValue(key, value)) is None


def test_versions_and_ids() -> None:
    state = state_of(put("s", 1, 1), put("t", 1, 1), put("s", 2, 2, OTHER))
    assert state.subjects() == ["s", "t"]
    assert [each.version for each in state.versions("s")] == [1, 2]
    assert state.version("s", None).id == 2
    assert [each.slot for each in state.by_id(1)] == [("s", 1), ("t", 1)]
    assert state.id_of(TEXT) == 1
    assert state.next_version("s") == 3
    assert [each.slot for each in state.referring("s", 1)] == [("s", 2)]


def test_a_deleted_subject_keeps_its_ids_and_numbers() -> None:
    state = state_of(put("s", 1, 1), put("s", 2, 2), SubjectDeletion("s", 2))
    assert state.subjects() == []
    assert state.subjects(deleted_only=True) == ["s"]
    assert state.next_version("s") == 3
    assert state.has_id(2)
    state.apply(put("s", 3, 3))
    assert [each.version for each in state.versions("s")] == [3], "only versions up to the mark are deleted"


def test_ids_grow_over_deletions_for_good() -> None:
    state = state_of(put("s", 1, 1), put("s", 2, 5), VersionRecord("s", 2, None), VersionRecord("s", 1, None))
    assert state.id_max == 5
    assert not state.has_id(5)
    assert state.id_of(TEXT) is None
    assert state_of(IdMark(5)).id_max == 5, "the mark is what compaction leaves"


def test_clearing_removes_what_was_deleted() -> None:
    state = state_of(put("s", 1, 1, deleted=True), put("s", 2, 2), SubjectClearing("s"))
    assert [each.version for each in state.versions("s", deleted=True)] == [2]


def test_levels_and_modes() -> None:
    state = state_of(LevelRecord(None, Level.FULL), LevelRecord("s", Level.NONE), ModeRecord("s", Mode.READONLY))
    assert (state.level_of("s", Level.BACKWARD), state.level_of("t", Level.BACKWARD)) == (Level.NONE, Level.FULL)
    assert (state.mode_of("s"), state.mode_of("t")) == (Mode.READONLY, Mode.READWRITE)
    state.apply(LevelRecord(None, None))
    state.apply(ModeRecord(None, Mode.READONLY_OVERRIDE))
    state.apply(ModeRecord("s", Mode.READWRITE))
    assert state.level_of("t", Level.BACKWARD) is Level.BACKWARD
    assert state.mode_of("s") is Mode.READONLY_OVERRIDE


def test_references_are_resolved_in_the_order_of_their_needs() -> None:
    needs_s = Schema(Kind.JSON, "{}", (Reference("r", "s", 1),))
    state = state_of(put("s", 1, 1), put("t", 1, 2, needs_s))
    wanted = Schema(Kind.JSON, "true", (Reference("q", "t", 1), Reference("r", "s", 1)))
    assert list(state.resolve(wanted).texts.items()) == [("r", '"string"'), ("q", "{}")]
    with pytest.raises(RegistryError, match="no schema for the reference 'x'"):
        state.resolve(Schema(Kind.JSON, "{}", (Reference("x", "s", 9),)))


def test_a_ring_of_references_ends() -> None:
    ring = Schema(Kind.JSON, "{}", (Reference("r", "s", 1),))
    state = state_of(put("s", 1, 1, ring))
    with pytest.raises(RegistryError, match="references over more than"):
        state.resolve(ring)
