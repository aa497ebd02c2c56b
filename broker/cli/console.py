"""`anabranch console`: open the web console of a running node."""

import webbrowser

import click

from broker.cli.admin_port import AdminPort, on_node

PATH = "/console/"


@click.command()
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@on_node
def console(
    port: AdminPort,
    no_browser: bool,  # noqa: FBT001 - click passes by name
) -> None:
    """Open the web console of a running node.

    Prints its address, and opens it in a browser where there is one.
    """
    try:
        if not port.serves(PATH):
            raise click.ClickException(f"{port} has no console: it is no admin port, or that of an older node")
    except OSError as error:
        raise port.unreachable(error) from None
    click.echo(port.url + PATH)
    if not no_browser:
        webbrowser.open(port.url + PATH)
