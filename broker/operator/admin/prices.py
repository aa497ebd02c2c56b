"""The price list: TOML that a person can read and change. Pure."""

import json
import tomllib
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

DEFAULT_PRICES: Final = """\
# Prices of a month. Change what is different for you, and give the file with --prices.
# These are list prices of AWS in us-east-1 of November 2026, without discounts and free tiers: check them.
name = "AWS us-east-1, list prices of 2026-11"
currency = "USD"

# A GB from one zone to another: 0.01 in each direction. https://aws.amazon.com/ec2/pricing/on-demand/#Data_Transfer
zone_gb = 0.02

# S3 Standard: a GB for a month, 1,000 PUT, COPY, POST or LIST, 1,000 GET or HEAD. https://aws.amazon.com/s3/pricing/
object_gb_month = 0.023
object_writes_1000 = 0.005
object_reads_1000 = 0.0004

# A GB of disk (gp3) for a month. https://aws.amazon.com/ebs/pricing/
disk_gb_month = 0.08

# What Apache Kafka is assumed to do with the same traffic: replicas, each in a zone of its own; part of a disk that
# is full in the mean; part of the producers' and consumers' bytes that cross zones. Consumers fetch from followers in
# their zone; where they do not, 0.6667 of their bytes cross.
kafka_replicas = 3
kafka_disk_use = 0.7
kafka_producers_across = 0.6667
kafka_consumers_across = 0
"""
PRICE_MAX: Final = 10**15
"""Largest price and number. With it, costs are finite."""


class InvalidPrices(Exception):
    """A price list cannot be used; the text says what, where and what is expected."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A price list. A GB is 10^9 bytes."""

    name: str
    currency: str
    zone_gb: float
    """A GB between zones, both directions together."""
    object_gb_month: float
    object_writes_1000: float
    object_reads_1000: float
    disk_gb_month: float
    kafka_replicas: float
    kafka_disk_use: float
    """Part of a disk that is used, above 0."""
    kafka_producers_across: float
    """Part of the producers' bytes that cross zones."""
    kafka_consumers_across: float


_SHARES: Final = frozenset({"kafka_disk_use", "kafka_producers_across", "kafka_consumers_across"})


def parse_prices(text: str, source: str) -> Prices:
    """Return the price list of a TOML text. What it leaves out is as in the default list. Raises InvalidPrices."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InvalidPrices(f"{source}: no TOML: {error}") from None
    known = {each.name: each.type for each in fields(Prices)}
    values = {} if text is DEFAULT_PRICES else asdict(DEFAULT)
    for name, value in found.items():
        if name not in known:
            raise InvalidPrices(f"{source}: {name} is unknown, expected one of {', '.join(known)}")
        values[name] = _check(source, name, value, is_text=known[name] is str)
    return Prices(**values)


def prices_text(prices: Prices) -> str:
    """Return a price list as TOML without remarks, for `parse_prices`."""
    # Numbers and strings of JSON are also TOML's.
    return "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in asdict(prices).items())


def _check(source: str, name: str, value: Any, *, is_text: bool) -> str | float:
    if is_text:
        if isinstance(value, str):
            return value
        raise InvalidPrices(f"{source}: {name} is {value!r}, expected a text in quotes")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= (1 if name in _SHARES else PRICE_MAX):
        expected = "a number from 0 to 1" if name in _SHARES else f"a number from 0 to {PRICE_MAX:,}"
        raise InvalidPrices(f"{source}: {name} is {value!r}, expected {expected}")
    if name == "kafka_disk_use" and not value:
        raise InvalidPrices(f"{source}: {name} is 0, expected the part of a disk that is used, above 0")
    return float(value)


DEFAULT: Final = parse_prices(DEFAULT_PRICES, "the default prices")
