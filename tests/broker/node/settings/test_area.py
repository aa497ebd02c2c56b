"""Settings from text and values: conversions, bounds, and where an invalid one is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from anabranch.broker.node.settings.area import Area, Bytes, InvalidSetting, Port, Secret, definitions, setting


@dataclass(frozen=True, kw_only=True)
class Inner(Area):
    """An area in an area."""

    name: str = setting(description="", min_length=1, max_length=3, pattern="^[a-z]*$")
    """Required."""
    size: Bytes | None = setting(default=None, ge=1024, description="A size.")


@dataclass(frozen=True, kw_only=True)
class Outer(Area):
    """One of each kind."""

    number: int = setting(default=1, ge=0, le=10, description="A number.")
    ratio: float = setting(default=0.5, ge=0, le=1, description="A ratio.")
    port: Port = setting(default=0, description="A port.")
    is_on: bool = setting(default=False, description="A switch.")
    perhaps: bool | None = setting(default=None, description="A switch that may be unset.")
    kind: Literal["a", "b", "c"] = setting(default="a", description="A choice.")
    path: Path | None = setting(default=None, description="A path.")
    secret: Secret | None = setting(default=None, description="A secret.")
    inner: Inner = Inner(name="x")
    others: Mapping[str, Inner] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("number", " 7 ", 7),
        ("number", 7, 7),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("port", "65535", 65535),
        ("is_on", "Yes", True),
        ("is_on", "off", False),
        ("is_on", 1, True),
        ("perhaps", True, True),
        ("perhaps", "false", False),
        ("perhaps", None, None),
        ("kind", "c", "c"),
        ("path", "a/b", Path("a/b")),
        ("path", Path("a"), Path("a")),
        ("secret", "s", Secret("s")),
        ("inner", {"name": "y", "size": "1MiB"}, Inner(name="y", size=1 << 20)),
        ("others", {"n": {"name": "z"}}, {"n": Inner(name="z")}),
    ],
)
def test_values_become_those_of_the_setting(name: str, given: object, value: object) -> None:
    found = getattr(Outer.of({name: given}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("values", "place", "allowed"),
    [
        ({"number": "7.5"}, "number", "should be a whole number"),
        ({"number": 7.0}, "number", "should be a whole number"),
        ({"number": True}, "number", "should be a number or a text, not true or false"),
        ({"number": None}, "number", "should be a whole number"),
        ({"number": 11}, "number", "should be less than or equal to 10"),
        ({"number": "-1"}, "number", "should be greater than or equal to 0"),
        ({"ratio": "nan"}, "ratio", "should be greater than or equal to 0"),
        ({"ratio": "half"}, "ratio", "should be a number"),
        ({"port": 65536}, "port", "should be less than or equal to 65535"),
        ({"is_on": "maybe"}, "is_on", "should be true or false"),
        ({"kind": "d"}, "kind", "should be 'a', 'b' or 'c'"),
        ({"path": 1}, "path", "should be a text"),
        ({"secret": ["s"]}, "secret", "should be a text"),
        ({"inner": {"name": ""}}, "inner.name", "should have at least 1 character"),
        ({"inner": {"name": "long"}}, "inner.name", "should have at most 3 characters"),
        ({"inner": {"name": "X"}}, "inner.name", "should match ^[a-z]*$"),
        ({"inner": {"name": "x\n"}}, "inner.name", "should match ^[a-z]*$"),
        ({"inner": {"name": "x", "size": 1}}, "inner.size", "should be greater than or equal to 1024"),
        ({"inner": {"size": 4096}}, "inner.name", "required"),
        ({"inner": {"name": "x", "nam": 1}}, "inner.nam", "unknown: expected one of name, size"),
        ({"others": {"n": {"name": "X"}}}, "others.n.name", "should match ^[a-z]*$"),
        ({"inner": 5}, "inner", "should be a table of settings"),
        ({"others": 5}, "others", "should be a table of settings"),
    ],
)
def test_an_invalid_value_is_named_by_its_place(values: Mapping[str, Any], place: str, allowed: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        Outer.of(values)
    assert (".".join(raised.value.place), raised.value.allowed) == (place, allowed)


def test_a_copy_is_checked_too() -> None:
    assert replace(Outer(), number=3).number == 3
    with pytest.raises(InvalidSetting, match="number: should be less than or equal to 10"):
        replace(Outer(), number=30)


def test_a_secret_is_shown_nowhere() -> None:
    area = Outer(secret=Secret("marked"))
    assert area.secret is not None
    assert area.secret.reveal() == "marked"
    assert "marked" not in f"{area} {area!r}"
    assert bool(Secret("x"))
    assert not Secret("")
    assert {Secret("x")} == {Secret("x")}


def test_definitions_say_what_the_class_states() -> None:
    found = definitions(Outer)
    assert list(found) == [
        "number", "ratio", "port", "is_on", "perhaps", "kind", "path", "secret", "inner", "others",
    ]  # fmt: skip
    assert found["number"].description == "A number."
    assert found["port"].kind is int
    assert definitions(Inner)["name"].is_required
    assert found["secret"].is_secret
    assert found["others"].default == {}
