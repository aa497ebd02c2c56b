"""Who has stopped in the middle of a frame: counted in looks, told by what came since the last progress."""

from broker.net.stalls import LOOKS, PROGRESS_PARTS, Progress, Transfer, look

FRAME = bytearray(1000)


def looks(*received: int) -> list[int]:
    """How often a client stalled at each of the looks, with so many bytes of its frame there."""
    seen: dict[str, Progress] = {}
    found = []
    for at in received:
        outcome = look(seen, [("client", Transfer(FRAME, len(FRAME), at))])
        seen = dict(outcome.seen)
        found.append(len(outcome.stalled))
    return found


def test_a_client_that_sends_nothing_stalls() -> None:
    assert looks(*[100] * (LOOKS + 1)) == [0] * LOOKS + [1]


def test_a_client_that_sends_a_little_stalls() -> None:
    assert looks(*range(100, 100 + LOOKS + 1)) == [0] * LOOKS + [1]


def test_a_client_that_sends_a_part_in_time_does_not() -> None:
    part = len(FRAME) // PROGRESS_PARTS
    assert not any(looks(*(at // (LOOKS - 1) * part for at in range(PROGRESS_PARTS * (LOOKS - 1)))))


def test_the_next_frame_begins_anew() -> None:
    seen: dict[str, Progress] = {}
    for frame in (bytearray(1000), bytearray(1000)):
        for _ in range(LOOKS):
            outcome = look(seen, [("client", Transfer(frame, len(frame), 100))])
            seen = dict(outcome.seen)
            assert not outcome.stalled


def test_who_has_nothing_to_send_is_forgotten() -> None:
    outcome = look({"client": Progress(Transfer(FRAME, len(FRAME), 1), LOOKS)}, [])
    assert outcome.seen == {}
    assert outcome.stalled == []


def test_a_client_that_has_little_left_to_read_makes_progress() -> None:
    seen: dict[str, Progress] = {}
    for at in range(2 * LOOKS):
        left = 1000 // 2**at
        outcome = look(seen, [("client", Transfer(FRAME, left, -left))])
        seen = dict(outcome.seen)
        assert not outcome.stalled
