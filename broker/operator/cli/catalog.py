"""`anabranch catalog ...`: make a new catalog from the object store, or use an older copy of the database."""

import click

from anabranch.broker.operator.cli.catalog_advance import advance
from anabranch.broker.operator.cli.catalog_rebuild import rebuild


@click.group()
def catalog() -> None:
    """Make a new catalog from the object store, or use an older copy of the database."""


catalog.add_command(rebuild)
catalog.add_command(advance)
