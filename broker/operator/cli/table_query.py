"""`anabranch table query`: SQL over the data files of a table, by DuckDB in this process."""

import csv
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.broker.operator.cli.table_show import table_path
from anabranch.extras import needed
from anabranch.output import emit, make_table, plain

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

FIRST_ROWS: Final = 20
FILES_PAGE: Final = 1000


@click.command(short_help="Query a table in SQL, by DuckDB on this machine.")
@click.argument("name")
@click.argument("sql", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "csv"]),
    default="table",
    show_default=True,
    help="Form of the output.",
)
@on_node
def query(node: AdminPort, name: str, sql: str | None, output: str) -> None:
    """Run SQL, in which the table has its own NAME. By default, show its first 20 rows.

    \b
    anabranch table query orders 'SELECT item, sum(price) FROM orders GROUP BY item'
    anabranch table query my-orders 'DESCRIBE "my-orders"'

    It reads the files of the current snapshot, on this machine or in S3. Credentials and region come from where AWS's
    programs find them, and AWS_ENDPOINT_URL names another store.
    """
    try:
        import duckdb
    except ImportError:
        raise click.ClickException("table query needs DuckDB: pip install duckdb") from None
    files = _files(node, name)
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        sources = _sources(connection, files)
        whole = connection.read_parquet(sources, union_by_name=True)  # files may have earlier schemas
        whole.create_view(name)
        found: DuckDBPyRelation | None = whole.limit(FIRST_ROWS) if sql is None else connection.sql(sql)
        # A statement such as COPY has no result. DuckDB's own JSON has a form of each type.
        columns = [] if found is None else found.columns
        texts = [] if found is None else found.project("to_json(COLUMNS(*))").fetchall()
    except duckdb.Error as error:
        raise click.ClickException(" ".join(str(error).split())) from None
    finally:
        connection.close()
    rows = [[None if text is None else json.loads(text, parse_constant=str) for text in row] for row in texts]
    _print(output, columns, rows)


def _files(node: AdminPort, name: str) -> Sequence[str]:
    """Return the addresses of the table's data files."""
    found: list[str] = []
    place: Mapping[str, int] | None = {}
    while place is not None:
        query = {key: str(value) for key, value in place.items()}
        page = node.ask("GET", table_path(name, "files"), limit=str(FILES_PAGE), **query)
        found += [each["location"] for each in page["files"]]
        place = page["next"]
    if not found:
        raise click.ClickException(f"table {name} has no rows yet: `anabranch table describe {name}` says why")
    if None in found:
        raise click.ClickException(f"{node} does not have the store of table {name}: ask another node")
    return found


def _sources(connection: "DuckDBPyConnection", uris: Sequence[str]) -> list[str]:
    """Return what DuckDB reads files by, and let it read from S3 if they are there."""
    found = []
    for uri in uris:
        scheme, _, path = uri.partition("://")
        if scheme != "file":
            continue
        if not Path(path).exists():
            raise click.ClickException(f"{path} is not on this machine: run the command where the node's objects are")
        found.append(path)
    if len(found) == len(uris):
        return found
    with needed("table query of files in S3"):
        from fsspec.implementations.arrow import ArrowFSWrapper  # type: ignore[import-untyped]
        from pyarrow.fs import S3FileSystem
    # Arrow has AWS's chain of credentials, and needs no extension of DuckDB.
    files = ArrowFSWrapper(S3FileSystem(endpoint_override=os.environ.get("AWS_ENDPOINT_URL")))
    connection.register_filesystem(files)
    return list(uris)


def _print(output: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([["" if value is None else _text(value) for value in row] for row in rows])
        return

    def show(console: Console) -> None:
        table = make_table(
            *columns,
            right=[name for name, value in zip(columns, rows[0], strict=True) if _is_number(value)] if rows else (),
        )
        for row in rows:
            table.add_row(*(plain("null" if value is None else _text(value)) for value in row))
        console.print(table if columns else "done")

    emit(output, [dict(zip(columns, row, strict=True)) for row in rows], show)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
