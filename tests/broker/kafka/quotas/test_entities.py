"""Entities are stored under keys that give them back, and every invalid change is refused."""

import pytest

from anabranch.broker.kafka.quotas.entities import CLIENT_QUOTAS, IP_QUOTAS, QuotaEntity, check_entity, check_operations
from anabranch.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    "names",
    [
        {"user": "alice"},
        {"user": None},
        {"client-id": 'quo"te\u00e4/', "user": None},
        {"user": "a", "client-id": "b"},
        {"ip": "10.0.0.1"},
    ],
)
def test_an_entity_is_what_its_key_says(names: dict[str, str | None]) -> None:
    entity = QuotaEntity.of(names)
    assert QuotaEntity.parse(entity.key) == entity
    assert QuotaEntity.of(dict(reversed(names.items()))) == entity
    assert check_entity(entity) is (IP_QUOTAS if "ip" in names else CLIENT_QUOTAS)


def test_an_entity_is_named_as_in_apache_kafka() -> None:
    assert (
        str(QuotaEntity.of({"user": None, "client-id": "c"})) == "ClientQuotaEntity(entries={client-id=c, user=null})"
    )


@pytest.mark.parametrize("value", [0, -1, float("nan"), 1.5, 2.0**63 + 1e5, float("inf")])
def test_bytes_are_whole_positive_longs(value: float) -> None:
    with pytest.raises(KafkaError) as refused:
        check_operations({"producer_byte_rate": value}, CLIENT_QUOTAS)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_only_quotas_that_are_set_are_checked() -> None:
    check_operations({"no_such_rate": None, "request_percentage": 0.5}, CLIENT_QUOTAS)
