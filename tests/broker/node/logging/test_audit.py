from structlog.testing import capture_logs

from anabranch.broker.node.logging.audit import EVENT_S, EVENTS_MAX, KEPT_MAX, TEXT_MAX, AuditLog


def test_events_of_a_kind_are_bounded_and_say_how_many_were_left_out() -> None:
    now_s = [0.0]
    audit = AuditLog(lambda: now_s[0], lambda: 0)

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


def test_the_newest_events_of_each_kind_stay_in_memory() -> None:
    now_s = [0.0]
    audit = AuditLog(lambda: now_s[0], lambda: int(now_s[0] * 1000))
    audit.record("changed", resource="n" * 1000)
    for at in range(1, KEPT_MAX + 51):
        now_s[0] = at
        audit.record("denied", resource=str(at))
    *denied, changed = audit.newest()
    assert (changed.number, changed.at_ms, changed.event) == (1, 0, "changed"), "a flood of others leaves it"
    assert len(changed.fields["resource"]) == TEXT_MAX
    assert [each.fields["resource"] for each in denied] == [str(at) for at in range(KEPT_MAX + 50, 50, -1)]
    assert denied[0].at_ms == (KEPT_MAX + 50) * 1000
    for _ in range(EVENTS_MAX + 20):
        audit.record("denied", resource="many")
    now_s[0] += 1
    audit.record("denied", resource="last")
    assert audit.newest()[0].left_out == 21, "nothing is kept that the log has left out"
