"""The list of damaged objects: its entries, its log lines, and their expiry."""

import pytest
from structlog.testing import capture_logs

from anabranch.s3stream.errors import CorruptObject, ObjectDamage, ObjectNotFound, ObjectTooShort, Place
from anabranch.s3stream.read.damage import ENTRIES_MAX, LINES_MAX, LINES_MS, WHOLE, DamagedObjects
from tests.support.clock import ManualClock

BLOCK = Place(7, "local", "70/test/7", 4096)
LINE = "an object is damaged"


def corrupt(place: Place | None = BLOCK) -> CorruptObject:
    error = CorruptObject("object local:70/test/7 ...", position=4100, expected="magic 1", found="2")
    error.place = place
    return error


def missing(place: Place = BLOCK) -> ObjectNotFound:
    error = ObjectNotFound("local:70/test/7: no such object")
    error.place = place
    return error


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def damaged(clock: ManualClock) -> DamagedObjects:
    return DamagedObjects(clock.now_ms)


def test_the_same_damage_is_one_entry_and_one_line(damaged: DamagedObjects, clock: ManualClock) -> None:
    with capture_logs() as lines:
        for at, stream in enumerate(("t-0", "t-1", "t-0")):
            clock.ms = 1000 + at
            damaged.note(corrupt(), stream)
    (entry,) = damaged.entries()
    assert (entry.since_ms, entry.last_ms, entry.times, entry.streams) == (1000, 1002, 3, {"t-0", "t-1"})
    told = entry.as_json()
    assert (told["position"], told["expected"], told["found"]) == (4100, "magic 1", "2")
    assert [(line["event"], line["partition"]) for line in lines] == [(LINE, "t-0")]


def test_who_logs_it_himself_is_not_repeated_but_the_first_reader_is_told_of(damaged: DamagedObjects) -> None:
    with capture_logs() as lines:
        damaged.note(corrupt())
        assert lines == []
        damaged.note(corrupt(), "t-0")
    assert [line["event"] for line in lines] == [LINE]


def test_a_missing_object_is_one_entry_wherever_it_is_read(damaged: DamagedObjects) -> None:
    damaged.note(missing(BLOCK), "t-0")
    damaged.note(missing(BLOCK._replace(position=0)), "t-0")
    assert len(damaged) == 1
    damaged.mark_readable(BLOCK._replace(position=99))
    assert len(damaged) == 0, "the object is there again"


def test_a_place_that_is_read_well_ends_its_own_damage_only(damaged: DamagedObjects) -> None:
    short = ObjectTooShort("local:70/test/7: too short")
    short.place = BLOCK._replace(position=WHOLE)
    for error in (corrupt(), corrupt(BLOCK._replace(position=0)), short):
        damaged.note(error, "t-0")
    damaged.mark_readable(BLOCK)
    assert [entry.place.position for entry in damaged.entries()] == [0, WHOLE]


def test_entries_and_lines_are_bounded(damaged: DamagedObjects, clock: ManualClock) -> None:
    def note(count: int, start: int = 0) -> None:
        for number in range(start, start + count):
            damaged.note(corrupt(BLOCK._replace(object_id=number)), "t-0")

    with capture_logs() as lines:
        note(ENTRIES_MAX + 5)
        assert len(lines) == LINES_MAX
        damaged.mark_readable(BLOCK._replace(object_id=0))
        clock.ms += LINES_MS
        note(1, ENTRIES_MAX + 5)
        assert lines[-1]["event"] == LINE
    assert (len(damaged), damaged.reads) == (ENTRIES_MAX, ENTRIES_MAX + 6)


def test_what_has_no_place_is_counted(damaged: DamagedObjects) -> None:
    with pytest.raises(ObjectDamage), damaged.noting("t-0"):
        raise corrupt(None)
    assert (len(damaged), damaged.reads) == (0, 1)
