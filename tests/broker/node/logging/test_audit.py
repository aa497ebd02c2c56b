from structlog.testing import capture_logs

from anabranch.broker.node.logging.audit import EVENT_S, EVENTS_MAX, TEXT_MAX, AuditLog


def test_events_of_a_kind_are_bounded_and_say_how_many_were_left_out() -> None:
    now_s = [0.0]
    audit = AuditLog(lambda: now_s[0])

    def record(count: int, event: str = "denied", resource: str = "t") -> None:
        for _ in range(count):
            audit.record(event, resource=resource)

    with capture_logs() as logs:
        record(EVENTS_MAX + 50)
        record(1, "changed")
    assert [each["event"] for each in logs] == ["denied"] * EVENTS_MAX + ["changed"]
    with capture_logs() as logs:
        now_s[0] = 2.5 * EVENT_S
        record(3, resource="n" * 1000)
    assert [each.get("left_out") for each in logs] == [50, None]
    assert len(logs[0]["resource"]) == TEXT_MAX
    with capture_logs() as logs:
        now_s[0] = 1e6
        record(EVENTS_MAX + 1)
    assert len(logs) == EVENTS_MAX
