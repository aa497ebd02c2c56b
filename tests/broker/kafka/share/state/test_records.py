"""Records beside bytes that Apache Kafka 4.3.1 has written."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.share.interface import ShareKey, StateBatch
from anabranch.broker.kafka.share.state.records import StateRecord, UnknownRecord, parse_record, state_record
from anabranch.broker.kafka.share.state.stored import StoredState, Update

KEY = ShareKey("group", bytes(range(16)), 3)
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
batch_lists = st.lists(st.builds(StateBatch, int64, int64, st.integers(-128, 127), int16), max_size=3).map(tuple)
keys = st.builds(
    ShareKey, st.text(st.characters(codec="utf-8"), max_size=20), st.binary(min_size=16, max_size=16), int32
)
values = st.one_of(
    st.none(),
    st.builds(StoredState, int32, int32, int32, int64, int32, int64, int64, batch_lists),
    st.builds(Update, int32, int32, int64, int32, batch_lists),
)


@given(keys, values)
def test_a_record_reads_back(key: ShareKey, value: StoredState | Update | None) -> None:
    assert parse_record(state_record(key, value)) == StateRecord(key, value)


def test_a_record_of_another_kind_is_kept_as_it_is() -> None:
    assert parse_record(KeyValue(b"\x00\x09what", b"v")) == UnknownRecord(b"\x00\x09what", b"v")
    assert parse_record(KeyValue(b"\x00\x01" + state_record(KEY, None).key[2:], None)) == StateRecord(KEY, None)
