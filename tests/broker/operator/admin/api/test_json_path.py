"""Paths in JSON documents, and what their values are compared with."""

from typing import Any, Final

import pytest

from anabranch.broker.operator.admin.api.json_path import parse_condition

ORDER: Final[Any] = {
    "id": 7,
    "paid": True,
    "note": None,
    "items": [{"sku": "tea-1", "price": 2.5}, {"sku": "cup", "price": 10}],
    "first name": "Ada",
    "it's": [[1, 2], [3]],
}

HOLDS: Final = [
    "$",
    "$.items",
    "$.items[0].sku",
    "$.items[-1].sku == 'cup'",
    '$.items[*].sku == "tea-1"',
    "$.items[*].price>=10",
    "$.items.*.price < 3",
    "$['first name'] == 'Ada'",
    "$[\"first name\"] != 'Lin'",
    "$['it\\'s'][*][*] == 3",
    "$.id == 7.0",
    "$.note == null",
    "$.paid == true",
    '$.items[0] == {"sku": "tea-1", "price": 2.5}',
    "$.id != 'seven'",
    "$['first name'] > 'Abe'",
]
HOLDS_NOT: Final = [
    "$.total",
    "$.items.sku",
    "$.items[2]",
    "$.id[0]",
    "$.paid == 1",
    "$.id == '7'",
    "$.id > '6'",
    "$.note < 1",
    "$.paid > false",
    "$.total != 1",
]


@pytest.mark.parametrize("text", HOLDS)
def test_a_condition_holds(text: str) -> None:
    assert parse_condition(text).holds(ORDER)


@pytest.mark.parametrize("text", HOLDS_NOT)
def test_a_condition_does_not_hold(text: str) -> None:
    assert not parse_condition(text).holds(ORDER)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id", "a JSON path begins with $, as in $.items[0].sku"),
        ("$..sku", "a JSON path has .name, ['name'], [0] and [*], and a comparison, not '..sku'"),
        ("$.id = 1", "a JSON path has .name, ['name'], [0] and [*], and a comparison, not ' = 1'"),
        ("$.id == tea", "a JSON path is compared with a number, a text in quotes, or null, not 'tea'"),
    ],
)
def test_what_is_no_condition_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="JSON path") as raised:
        parse_condition(text)
    assert str(raised.value) == reason
