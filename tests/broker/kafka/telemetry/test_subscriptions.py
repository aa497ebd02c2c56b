"""Valid and invalid configs of a metrics subscription."""

import pytest

from anabranch.broker.kafka.telemetry.subscriptions import (
    SUBSCRIPTION_CONFIGS,
    check_subscription,
    parse_match,
    parse_subscription,
)
from anabranch.protocol.errors import ErrorCode, KafkaError

REFUSED = {
    "an interval too short": ({"interval.ms": "99"}, ErrorCode.INVALID_REQUEST),
    "an interval too long": ({"interval.ms": "3600001"}, ErrorCode.INVALID_REQUEST),
    "a hole in the metrics": ({"metrics": "a,,b"}, ErrorCode.INVALID_CONFIG),
    "a hole in the match": ({"match": "client_id=a,"}, ErrorCode.INVALID_CONFIG),
    "no pattern": ({"match": "client_id="}, ErrorCode.INVALID_CONFIG),
    "no attribute": ({"match": "=a"}, ErrorCode.INVALID_CONFIG),
    "an unknown attribute": ({"match": "size=a"}, ErrorCode.INVALID_CONFIG),
    "a pattern that is none": ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize(("values", "code"), REFUSED.values(), ids=REFUSED)
def test_what_no_subscription_can_say(values: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        check_subscription(values)
    assert refusal.value.code == code


def test_a_whole_subscription() -> None:
    values = {"interval.ms": "100", "metrics": "a, b", "match": " client_id = x.* , client_software_name=(a|b)"}
    check_subscription(values)
    subscription = parse_subscription(values)
    assert (subscription.interval_ms, subscription.metrics) == (100, ("a", "b"))
    assert subscription.applies_to({"client_id": "xy", "client_software_name": "b"})
    assert not subscription.applies_to({"client_id": "xy", "client_software_name": "c"})
    assert not subscription.applies_to({"client_id": "xy"})


def test_an_empty_one_asks_all_for_nothing() -> None:
    check_subscription({})
    subscription = parse_subscription({name: row.default for name, row in SUBSCRIPTION_CONFIGS.items()})
    assert subscription.applies_to({})
    assert subscription.metrics == ()
    assert parse_match("") == {}
