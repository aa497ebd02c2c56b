"""`anabranch table commit | drop`."""

from uuid import UUID

import click

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.questions import confirm
from anabranch.broker.operator.cli.table_show import table_path
from anabranch.output import count_text, emit, output_option


@click.command(short_help="Commit what was produced so far, and wait for it.")
@click.argument("name")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to wait.",
)
@output_option
@on_node
def commit(node: AdminPort, name: str, timeout_s: float, output: str) -> None:
    """Upload and commit the records of the table NAME at once, and wait until all that are committed now are in it."""
    answer = node.ask("POST", table_path(name, "commit"), timeout_ms=str(round(timeout_s * 1000)))
    emit(output, answer, f"table {name}: {count_text(answer['rows'], 'row')}, version {answer['version']:,}")


@click.command(short_help="Drop a table, and make no rows of its topic any more.")
@click.argument("name")
@click.option("--keep-files", is_flag=True, help="Leave its files in the store, where nothing looks after them.")
@click.option(
    "--id",
    "table_id",
    type=click.UUID,
    metavar="UUID",
    help="Drop the table only if it has this id, which `table describe` shows: a script may repeat that.",
)
@yes_option
@output_option
@on_node
def drop(node: AdminPort, name: str, *, keep_files: bool, table_id: UUID | None, yes: bool, output: str) -> None:
    """Drop the table NAME, and set table.enable of its topic to false. The topic keeps its records.

    The files are deleted after storage.delete_delay_ms, so that a query that has begun can end.
    """
    query = {"keep_files": "true" if keep_files else None, "table_id": str(table_id) if table_id else None}
    plan = node.ask("DELETE", table_path(name), validate_only="true", **query)
    if not yes:
        what = f"{count_text(plan['rows'], 'row')} in {count_text(plan['files'], 'file')}"
        confirm(f"Drop table {name}, with {what}{', which stay in the store' if keep_files else ''}?")
    answer = node.ask("DELETE", table_path(name), **query | {"table_id": plan["table_id"]})
    topic = answer["disabled_topic"]
    emit(output, answer, f"dropped table {name}" + (f"; topic {topic} is no table any more" if topic else ""))
