"""`anabranch table ...`: tables that topics are, as the admin port of a running node has them."""

from typing import Final

import click

from anabranch.broker.operator.cli.lazy import LazyGroup

SUBCOMMANDS: Final = {
    "list": ("table_show:list_", "List tables, with their sizes and what they lack."),
    "describe": ("table_show:describe", "Show columns, partitions, place and errors."),
    "snapshots": ("table_show:snapshots", "Show the snapshots that can be read."),
    "query": ("table_query:query", "Query a table in SQL, by DuckDB on this machine."),
    "commit": ("table_changes:commit", "Commit what was produced so far, and wait for it."),
    "drop": ("table_changes:drop", "Drop a table, and make no rows of its topic any more."),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def table() -> None:
    """List, describe, query, commit and drop tables: topics whose records are rows of an Iceberg table, too.

    \b
    anabranch topic create orders --table json
    anabranch table commit orders
    anabranch table query orders "SELECT count(*) FROM orders"
    """
