"""`anabranch console`: open the web console of a running node."""

import time
import webbrowser
from typing import Final

import click

from anabranch.broker.operator.admin.paths import CONSOLE_PREFIX
from anabranch.broker.operator.cli.admin_port import AdminPort, on_node

WAIT_S: Final = 10.0
POLL_S: Final = 0.2


@click.command()
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=WAIT_S,
    show_default=True,
    help="Seconds to wait for a node that is starting.",
)
@on_node
def console(
    port: AdminPort,
    no_browser: bool,  # noqa: FBT001 - click passes by name
    wait_s: float,
) -> None:
    """Open the web console of a running node.

    Prints its address, and opens it in a browser where there is one.
    """
    if not _serves(port, wait_s):
        raise click.ClickException(f"{port} has no console: it is no admin port, or that of an older node")
    click.echo(port.url + CONSOLE_PREFIX)
    if not no_browser and not webbrowser.open(port.url + CONSOLE_PREFIX):
        click.echo("no browser was found here: open the address in one that reaches this machine", err=True)


def _serves(port: AdminPort, wait_s: float) -> bool:
    """Return whether the port has the console, as soon as it answers. Raises ClickException if it does not."""
    until = time.perf_counter() + wait_s
    waits = False
    while True:
        try:
            return port.serves(CONSOLE_PREFIX)
        except OSError as error:
            if time.perf_counter() >= until or not isinstance(error, ConnectionError | TimeoutError):
                raise port.unreachable(error) from None
        if not waits:
            click.echo(f"nothing answers at {port} yet: waiting {wait_s:g} s for a node that is starting", err=True)
            waits = True
        time.sleep(POLL_S)
