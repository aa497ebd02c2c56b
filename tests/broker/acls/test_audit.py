from structlog.testing import capture_logs

from broker.acls.audit import EVENT_S, EVENTS_MAX, NAME_MAX, DenialLog
from broker.acls.model import AclOperation, AclResourceType


def test_events_are_bounded_and_say_how_many_were_left_out() -> None:
    now_s = [0.0]
    log = DenialLog(lambda: now_s[0])

    def deny(count: int, name: str = "t") -> None:
        for _ in range(count):
            log.denied("User:a", "h", AclOperation.READ, AclResourceType.TOPIC, name, "Fetch")

    with capture_logs() as logs:
        deny(EVENTS_MAX + 50)
    assert len(logs) == EVENTS_MAX
    with capture_logs() as logs:
        now_s[0] = 2.5 * EVENT_S
        deny(3, "n" * 1000)
    assert [each.get("left_out") for each in logs] == [50, None]
    assert len(logs[0]["resource"]) == NAME_MAX
    with capture_logs() as logs:
        now_s[0] = 1e6
        deny(EVENTS_MAX + 1)
    assert len(logs) == EVENTS_MAX
