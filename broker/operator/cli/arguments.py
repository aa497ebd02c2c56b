"""Options and types of arguments that many commands share. Imports little, so that commands start fast."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

import click

from anabranch.broker.node.settings.sizes import parse_size
from anabranch.broker.operator.cli.points import BadPoint, Point, parse_point

yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
plan_option: Final = click.option("--plan", "plan_only", is_flag=True, help="Only show what would be done.")


class SizeType(click.ParamType):  # type: ignore[type-arg]  # it is generic from click 8.4 on
    """A size in bytes, with or without a unit."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the text of an option."""
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class PointType(click.ParamType):  # type: ignore[type-arg]  # it is generic from click 8.4 on
    """A place in a partition."""

    name = "point"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Point:
        """Parse the text of an option."""
        if isinstance(value, Point):
            return value
        try:
            return parse_point(str(value), time.time_ns() // 1_000_000)
        except BadPoint as error:
            self.fail(str(error), param, ctx)


def parse_pairs(texts: Sequence[str], option: str) -> Mapping[str, str]:
    """Parse NAME=VALUE of a repeatable option. Raises BadParameter."""
    parsed = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}", param_hint=option)
        parsed[name] = value
    return parsed


def parse_partitions(texts: Sequence[str], option: str) -> Mapping[str, Sequence[int]]:
    """Parse TOPIC and TOPIC:PARTITION,... of a repeatable option; no partitions: all. Raises BadParameter."""
    parsed: dict[str, Sequence[int]] = {}
    for text in texts:
        topic, colon, partitions = text.partition(":")
        if not topic or (colon and not all(re.fullmatch("[0-9]{1,9}", each) for each in partitions.split(","))):
            raise click.BadParameter(f"expected TOPIC or TOPIC:PARTITION,..., found {text!r}", param_hint=option)
        found = [int(each) for each in partitions.split(",")] if colon else []
        earlier = parsed.get(topic)
        # One that names all of a topic's partitions, with `()`, includes those that others name.
        parsed[topic] = [*(earlier or ()), *found] if colon and earlier != () else ()
    return parsed
