"""Detection of clients that stop in the middle of a frame: counted in checks, by the bytes since the last progress."""

from anabranch.broker.node.net.stalls import PROGRESS_PARTS, STALL_CHECKS, Transfer, TransferProgress, check_stalls

FRAME = bytearray(1000)


def checks(*received: int) -> list[int]:
    """Stalls counted at each check, given the bytes of the frame received by then."""
    seen: dict[str, TransferProgress] = {}
    found = []
    for at in received:
        outcome = check_stalls(seen, [("client", Transfer(FRAME, len(FRAME), at))])
        seen = dict(outcome.seen)
        found.append(len(outcome.stalled))
    return found


def test_a_client_that_sends_nothing_stalls() -> None:
    assert checks(*[100] * (STALL_CHECKS + 1)) == [0] * STALL_CHECKS + [1]


def test_a_client_that_sends_a_little_stalls() -> None:
    assert checks(*range(100, 100 + STALL_CHECKS + 1)) == [0] * STALL_CHECKS + [1]


def test_a_client_that_sends_a_part_in_time_does_not() -> None:
    part = len(FRAME) // PROGRESS_PARTS
    assert not any(checks(*(at // (STALL_CHECKS - 1) * part for at in range(PROGRESS_PARTS * (STALL_CHECKS - 1)))))


def test_the_next_frame_begins_anew() -> None:
    seen: dict[str, TransferProgress] = {}
    for frame in (bytearray(1000), bytearray(1000)):
        for _ in range(STALL_CHECKS):
            outcome = check_stalls(seen, [("client", Transfer(frame, len(frame), 100))])
            seen = dict(outcome.seen)
            assert not outcome.stalled


def test_who_has_nothing_to_send_is_forgotten() -> None:
    outcome = check_stalls({"client": TransferProgress(Transfer(FRAME, len(FRAME), 1), STALL_CHECKS)}, [])
    assert outcome.seen == {}
    assert outcome.stalled == []


def test_a_client_that_has_little_left_to_read_makes_progress() -> None:
    seen: dict[str, TransferProgress] = {}
    for at in range(2 * STALL_CHECKS):
        left = 1000 // 2**at
        outcome = check_stalls(seen, [("client", Transfer(FRAME, left, -left))])
        seen = dict(outcome.seen)
        assert not outcome.stalled
