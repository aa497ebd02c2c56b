"""Leader epochs as pure state."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.partitions.leader_epochs import UNDEFINED, LeaderEpochs

BEGINNINGS = (0, 2**31 - 3, 2**32 - 3, 2**33)
"""First offsets of a log: offsets are 64 bit."""


def made(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_where_epochs_end() -> None:
    epochs = made((2, 0), (5, 10), (6, 30))
    assert epochs.end_offset_of(6, 44) == (6, 44)
    assert epochs.end_offset_of(5, 44) == (5, 30)
    assert epochs.end_offset_of(4, 44) == (2, 10)
    assert epochs.end_offset_of(1, 44) == (1, 0)
    assert epochs.end_offset_of(7, 44) == (UNDEFINED, UNDEFINED)
    assert epochs.end_offset_of(UNDEFINED, 44) == (UNDEFINED, UNDEFINED)
    assert LeaderEpochs().end_offset_of(1, 44) == (UNDEFINED, UNDEFINED)


def test_an_epoch_without_records_is_replaced() -> None:
    epochs = made((2, 0), (3, 10), (4, 10))
    assert epochs.end_offset_of(3, 20) == (2, 10)
    assert epochs.epoch_of(10) == 4


def test_trimming_forgets_epochs_before_the_start() -> None:
    epochs = made((2, 0), (5, 10), (6, 30))
    epochs.trim(9)
    assert epochs.epoch_of(5) == 2
    epochs.trim(10)
    assert epochs.epoch_of(9) == UNDEFINED
    assert epochs.end_offset_of(5, 44) == (5, 30)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20),
    st.sampled_from(BEGINNINGS),
    st.integers(0, 60),
)
def test_every_offset_has_the_epoch_it_was_written_in(steps: list[tuple[int, int]], begin: int, at: int) -> None:
    epochs = LeaderEpochs()
    epoch, end = 0, begin
    written: dict[int, int] = {}
    for increase, records in steps:
        epoch += increase
        epochs.assign(epoch, end)
        written |= dict.fromkeys(range(end, end + records), epoch)
        end += records
    epochs, position = LeaderEpochs.decode(b"x" + epochs.encode() + b"more", 1)
    assert position == 1 + len(epochs.encode())
    at += begin
    if at < end:
        assert epochs.epoch_of(at) == written[at]
        found, end_offset = epochs.end_offset_of(written[at], end)
        assert found == written[at]
        assert end_offset == max(offset for offset in written if written[offset] == written[at]) + 1
