"""`anabranch cluster cost`: what the traffic, calls and bytes of the cluster cost in a month, beside Apache Kafka."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from anabranch.broker.operator.admin.prices import DEFAULT_PRICES, InvalidPrices, Prices, parse_prices, prices_text
from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.durations import parse_duration
from anabranch.output import count_text, emit, make_table, output_option, plain
from anabranch.times import age_text

TOPICS: Final = 10
"""Topics that are shown: those that cost most."""
DURATION_MS_MAX: Final = 86_400_000


def _print_prices(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's call
    if wanted:
        click.echo(DEFAULT_PRICES, nl=False)
        context.exit()


def _seconds(_context: click.Context, _: click.Parameter, text: str | None) -> int:
    if text is None:
        return 0
    duration_ms = parse_duration(text)
    if duration_ms is None or not 1000 <= duration_ms <= DURATION_MS_MAX:
        raise click.BadParameter(f"{text!r} is no duration from a second to a day, such as 60s or 10m")
    return duration_ms // 1000


@click.command(short_help="Show what the cluster costs in a month, by topic, beside Apache Kafka.")
@click.option(
    "--prices",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Price list to use; --print-prices prints one to change.",
)
@click.option(
    "--print-prices", is_flag=True, expose_value=False, is_eager=True, callback=_print_prices, help="Print the default."
)
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    callback=_seconds,
    help="Measure for this time, such as 10m, instead of taking the mean since the start of the nodes.",
)
@output_option
@on_node
def cost(node: AdminPort, *, file: Path | None, seconds: int, output: str) -> None:
    """Show what the cluster costs in a month: traffic across zones, calls to object stores, what is stored.

    Beside it is what Apache Kafka would cost with the same traffic, replicated over three zones on disks. Machines are
    left out on both sides. Zones are racks: listener.rack of nodes, client.rack of consumers, and rack=ID in the client
    id of any client, as in "orders,rack=eu-1a".

    Default prices are the public list prices of one cloud, without discounts.
    """
    prices = None if file is None else prices_text(_read_prices(file))
    found = node.ask("GET", "/cluster/cost", seconds=str(seconds) if seconds else None, prices=prices)
    emit(output, found, partial(_show, found))


def _read_prices(file: Path) -> Prices:
    try:
        return parse_prices(file.read_text("utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: cannot be read: {error}") from None
    except InvalidPrices as error:
        raise click.ClickException(str(error)) from None


def _show(found: Mapping[str, Any], console: Console) -> None:
    use, cost = found["use"], found["cost"]
    currency = plain(cost["prices"]["currency"])
    zones = (
        f"{count_text(len(use['zones']), 'zone')} ({plain(', '.join(use['zones']))})" if use["zones"] else "no zones"
    )
    console.print(
        f"[bold]A month at the mean of {age_text(round(use['measured_s'] * 1000))}[/], {zones}; prices in {currency}: "
        f"{plain(cost['prices']['name'])}"
    )
    console.print()
    numbers = ("amount", "cost", "Apache Kafka: amount", "cost ")
    table = make_table("", numbers[0], "", *numbers[1:], right=numbers)
    for line in cost["lines"]:
        table.add_row(
            line["item"],
            _amount(line["amount"]),
            line["unit"],
            _money(line["cost"]),
            _amount(line["kafka_amount"]),
            _money(line["kafka_cost"]),
        )
    table.add_row(
        "[bold]sum[/]", "", "", f"[bold]{_money(cost['cost'])}[/]", "", f"[bold]{_money(cost['kafka_cost'])}[/]"
    )
    console.print(table)
    console.print()
    _show_topics(cost["topics"], console)
    for each in cost["assumptions"]:
        console.print(f"- {plain(each)}")
    if found["unreachable"]:
        nodes = ", ".join(map(str, found["unreachable"]))
        console.print(f"[yellow]not counted, as they do not tell their use: nodes {nodes}[/]")


def _show_topics(rows: list[Mapping[str, Any]], console: Console) -> None:
    if not rows:
        return
    numbers = ("GB across zones", "GB kept", "cost", "Apache Kafka")
    table = make_table("topic", *numbers, right=numbers)
    for each in rows[:TOPICS]:
        table.add_row(
            each["topic"],
            _amount(each["across_gb"]),
            _amount(each["kept_gb"]),
            _money(each["cost"]),
            _money(each["kafka_cost"]),
        )
    if len(rows) > TOPICS:
        rest = rows[TOPICS:]
        table.add_row(
            f"{len(rest):,} more",
            *(_amount(sum(each[name] for each in rest)) for name in ("across_gb", "kept_gb")),
            *(_money(sum(each[name] for each in rest)) for name in ("cost", "kafka_cost")),
        )
    console.print(table)
    console.print()


def _amount(value: float) -> str:
    return "-" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float) -> str:
    return f"{value:,.2f}"
