"""The quota that applies to a client: Apache Kafka's precedence, compared with a naive search of its list of levels."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.quotas.entities import QuotaEntity
from anabranch.broker.kafka.quotas.limits import Client, Limit, Limits
from anabranch.broker.kafka.quotas.rates import Rate, Windows
from anabranch.broker.kafka.quotas.usage import IDLE_MS_MAX, ClientUsages

NAMES = st.sampled_from(["a", "b"])
ENTITIES = st.fixed_dictionaries({}, optional={"user": NAMES | st.none(), "client-id": NAMES | st.none()}).filter(bool)


def naive(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> Limit | None:
    """The first of the levels, in the order of Apache Kafka's documentation, that has a quota."""
    for names in (
        {"user": user, "client-id": client_id},
        {"user": user, "client-id": None},
        {"user": user},
        {"user": None, "client-id": client_id},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": client_id},
        {"client-id": None},
    ):
        if "client-id" in names and not client_id:
            continue
        if (entity := QuotaEntity.of(names)) in quotas:
            sharers = Client(user if "user" in names else "", client_id if "client-id" in names else "")
            return Limit(sharers, quotas[entity])
    return None


@given(st.dictionaries(ENTITIES.map(QuotaEntity.of), st.floats(1, 9)), NAMES, NAMES | st.just(""))
def test_the_most_specific_quota_applies(quotas: dict[QuotaEntity, float], user: str, client_id: str) -> None:
    limits = Limits(quotas)
    found = limits.find(user, client_id)
    assert found == naive(quotas, user, client_id)
    if found is not None:
        assert limits.shared_by(found.sharers) == found.value


def limits_of(*quotas: tuple[dict[str, str | None], float]) -> Limits:
    return Limits({QuotaEntity.of(names): value for names, value in quotas})


def table_of(limits: Limits, clients_max: int = 10) -> ClientUsages[Rate]:
    table = ClientUsages(lambda: Rate(Windows(11, 1000)), clients_max=clients_max)
    table.set_limits(limits)
    return table


def test_a_quota_is_shared_by_those_it_names_and_a_default_is_not() -> None:
    table = table_of(limits_of(({"user": "a"}, 1.0), ({"client-id": None}, 2.0)))
    assert table.find("a", "x", 0) is table.find("a", "y", 0)
    assert table.find("b", "x", 0) is table.find("c", "x", 0)
    assert table.find("b", "x", 0) is not table.find("b", "y", 0)
    assert len(table) == 3


def test_a_client_without_a_quota_leaves_nothing() -> None:
    table = table_of(limits_of(({"user": "a"}, 1.0)))
    assert table.find("b", "x", 0) is None
    assert len(table) == 0


def test_clients_that_are_idle_or_too_many_are_dropped() -> None:
    table = table_of(limits_of(({"client-id": None}, 1.0)), clients_max=2)
    first = table.find("u", "1", 0)
    table.find("u", "2", 1)
    assert table.find("u", "1", 2) is first
    table.find("u", "3", 3)
    assert [sharers.client_id for sharers, _ in table.items()] == ["1", "3"]
    table.drop_idle(IDLE_MS_MAX + 2)
    assert [sharers.client_id for sharers, _ in table.items()] == ["3"]
    table.find("u", "4", IDLE_MS_MAX + 3)
    assert [sharers.client_id for sharers, _ in table.items()] == ["4"]


def test_a_changed_quota_applies_to_what_was_used() -> None:
    table = table_of(limits_of(({"user": None}, 1.0), ({"client-id": "c"}, 5.0)))
    usage = table.find("u", "c", 0)
    assert usage is not None
    assert usage.limit == 1
    table.set_limits(limits_of(({"user": "u"}, 3.0)))
    assert table.find("u", "c", 0) is usage
    assert usage.limit == 3
    table.set_limits(limits_of(({"client-id": "c"}, 5.0)))
    assert len(table) == 0, "the user has no quota any more"
