"""The sum of a month, by hand, and the price lists that it is made with."""

from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.operator.admin.cost import GB, MONTH_S, TopicUse, Traffic, Use, price
from anabranch.broker.operator.admin.prices import (
    DEFAULT,
    DEFAULT_PRICES,
    InvalidPrices,
    Prices,
    parse_prices,
    prices_text,
)

PRICES = Prices(
    name="round",
    currency="EUR",
    zone_gb=0.02,
    object_gb_month=0.03,
    object_writes_1000=0.005,
    object_reads_1000=0.0005,
    disk_gb_month=0.1,
    kafka_replicas=3,
    kafka_disk_use=0.5,
    kafka_producers_across=0.5,
    kafka_consumers_across=0.25,
)


ROOT = Path(__file__).parents[4]


def test_the_calculator_of_the_documentation_has_these_prices_and_this_month() -> None:
    page = (ROOT / "docs/costs.js").read_text()
    kept = f"s3: {DEFAULT.object_gb_month:g}", f"disk: {DEFAULT.disk_gb_month:g}", f"transfer: {DEFAULT.zone_gb:g}"
    calls = f"put: {DEFAULT.object_writes_1000:g} / 1000", f"get: {DEFAULT.object_reads_1000:g} / 1000"
    for price_of in (*kept, *calls):
        assert f" {price_of}" in page
    assert f"HOURS = {MONTH_S / 3600:g};" in page
    assert f"(kept * {DEFAULT.kafka_replicas:g} * PRICE.disk) / {DEFAULT.kafka_disk_use:g} " in page


def month(gb: float) -> float:
    """The rate, in bytes a second, of so many GB in a month."""
    return gb * GB / MONTH_S


def calls(thousands: float) -> float:
    return thousands * 1000 / MONTH_S


USE = Use(
    measured_s=6000,
    zones=["a", "b", "c", "d"],
    topics=[
        TopicUse("orders", Traffic(month(300), month(100), month(200)), Traffic(far=month(200)), 40 * 10**9),
        TopicUse("views", Traffic(near=month(200)), Traffic(near=month(600)), 10 * 10**9),
    ],
    peers=Traffic(near=month(5), far=month(50)),
    object_writes=calls(800),
    object_reads=calls(4000),
    object_bytes=60 * 10**9,
    log_disk_bytes=20 * 10**9,
)


def test_a_month_by_hand() -> None:
    cost = price(USE, PRICES)
    lines = {line.item: (line.amount, line.cost, line.kafka_amount, line.kafka_cost) for line in cost.lines}
    assert lines == {
        # of the 200 GB whose zones are not known, three quarters
        "producers across zones": pytest.approx((250, 5, 400, 8)),
        "consumers across zones": pytest.approx((200, 4, 200, 4)),
        "between nodes across zones": pytest.approx((50, 1, 1600, 32)),
        "writes to object stores": pytest.approx((800, 4, 0, 0)),
        "reads from object stores": pytest.approx((4000, 2, 0, 0)),
        "objects": pytest.approx((60, 1.8, 0, 0)),
        "disks": pytest.approx((20, 2, 300, 30)),
    }
    assert cost.cost == pytest.approx(19.8)
    assert cost.kafka_cost == pytest.approx(74)


def test_topics_have_their_part() -> None:
    orders, views = price(USE, PRICES).topics
    assert (orders.topic, views.topic) == ("orders", "views")
    assert (orders.across_gb, orders.kept_gb) == pytest.approx((450, 40))
    # 450 GB across zones, 40 GB kept, 600 of 800 GB written, 200 of 800 GB read
    assert orders.cost == pytest.approx(9 + 1.2 + 3 + 0.5)
    assert orders.kafka_cost == pytest.approx((600 * 2.5 + 200 * 0.25) * 0.02 + 24)
    assert (views.across_gb, views.cost) == pytest.approx((0, 0.3 + 1 + 1.5))


def test_what_is_assumed_is_said() -> None:
    said = price(USE, PRICES).assumptions
    assert said[0].startswith("the zone of 12% of the bytes is not known: 75% of them are taken to cross zones; give")
    assert said[1] == (
        "Apache Kafka: 3 replicas in 3 zones on disks that are 50% full; of the producers' bytes 50% cross zones, of "
        "the consumers' 25%"
    )
    alone = price(replace(USE, zones=[]), PRICES)
    assert alone.lines[0].amount == pytest.approx(100), "nothing is taken to cross zones that are not known"
    assert "no node has a rack (listener.rack)" in alone.assumptions[0]
    assert price(replace(USE, measured_s=9), PRICES).assumptions[0].startswith("rates of 9 s say little about a month")


def test_an_idle_cluster_costs_what_it_keeps() -> None:
    idle = Use(60, [], [TopicUse("t", Traffic(), Traffic(), 10**9)], Traffic(), 0, 0, 10**9, 0)
    cost = price(idle, PRICES)
    assert cost.cost == pytest.approx(0.03)
    assert [each.cost for each in cost.topics] == [pytest.approx(0.03)]


def test_the_printed_prices_are_the_default_ones_and_some_may_be_left_out() -> None:
    assert parse_prices(DEFAULT_PRICES, "p.toml") == DEFAULT
    assert parse_prices('name = "ours"\nzone_gb = 0\n', "p.toml") == replace(DEFAULT, name="ours", zone_gb=0)


def test_a_price_list_is_the_same_without_remarks() -> None:
    prices = replace(PRICES, name='the "best" 🚀\n', object_reads_1000=1e-7)
    assert parse_prices(prices_text(prices), "p.toml") == prices


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("zone_gb =", "p.toml: no TOML: "),
        ("zone = 1", "p.toml: zone is unknown, expected one of name, currency, zone_gb"),
        ("zone_gb = 'x'", "p.toml: zone_gb is 'x', expected a number from 0 to 1,000,000,000,000,000"),
        ("zone_gb = -1", "p.toml: zone_gb is -1, expected a number from 0 to 1,000,000,000,000,000"),
        ("zone_gb = true", "p.toml: zone_gb is True, expected a number from 0 to 1,000,000,000,000,000"),
        ("zone_gb = nan", "p.toml: zone_gb is nan, expected a number from 0 to 1,000,000,000,000,000"),
        ("zone_gb = inf", "p.toml: zone_gb is inf, expected a number from 0 to 1,000,000,000,000,000"),
        pytest.param(f"zone_gb = {'9' * 400}", "p.toml: zone_gb is 999", id="no float"),
        pytest.param(f"zone_gb = {'9' * 5000}", "p.toml: no TOML: ", id="too many digits"),
        pytest.param("zone_gb = " + "[" * 5000, "p.toml: no TOML: ", id="too deep"),
        ("kafka_disk_use = 0", "p.toml: kafka_disk_use is 0, expected the part of a disk that is used, above 0"),
        ("kafka_consumers_across = 1.5", "p.toml: kafka_consumers_across is 1.5, expected a number from 0 to 1"),
        ("name = 3", "p.toml: name is 3, expected a text in quotes"),
    ],
)
def test_a_price_list_that_is_wrong_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidPrices) as raised:
        parse_prices(text, "p.toml")
    assert str(raised.value).startswith(reason)
    assert "\n" not in str(raised.value)
