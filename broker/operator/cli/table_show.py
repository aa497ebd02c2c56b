"""`anabranch table list | describe | snapshots`."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console

from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.operator.cli.admin_port import AdminPort, on_node
from anabranch.output import count_text, emit, make_facts, make_table, number_text, output_option, plain, show_each
from anabranch.times import age_text, second_text


def table_path(name: str, *steps: str) -> str:
    """Return the path of a table in the API."""
    return "/".join(["/tables", quote(name, safe=""), *steps])


@click.command(name="list", short_help="List tables, with their sizes and what they lack.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@output_option
@on_node
def list_(node: AdminPort, patterns: Sequence[str], output: str) -> None:
    """List tables: all, or those whose names match a PATTERN, such as 'orders-*'.

    The lag is that of committed records that are not in the table yet: their offsets, and the age of the oldest.
    """
    found = node.ask("GET", "/tables")
    rows = [each for each in found["tables"] if not patterns or any(fnmatchcase(each["name"], one) for one in patterns)]

    def show(console: Console) -> None:
        numbers = ("rows", "files", "size", "lag")
        table = make_table("table", *numbers, "behind", "committed", "error", right=(*numbers, "behind"))
        for row in rows:
            counts = (number_text(row["rows"]), number_text(row["files"]), size_text(row["bytes"]))
            times = (_behind_text(row), second_text(row["committed_ms"] or -1))
            table.add_row(plain(row["name"]), *counts, number_text(row["lag"]), *times, plain(_error_text(row)))
        none = (
            "no table matches"
            if patterns
            else "there are no tables: `anabranch topic create NAME --table json` makes one"
        )
        console.print(table if rows else none)
        if found["more"]:
            console.print("there are more tables than are listed")

    emit(output, rows, show)


def _behind_text(row: Mapping[str, Any]) -> str:
    return age_text(row["lag_ms"]) if row["lag"] else "-"


def _error_text(row: Mapping[str, Any]) -> str:
    gone = "" if row["topic"] else "topic deleted or detached"
    return row["last_error"] or gone or ("" if row["enabled"] else "not enabled")


@click.command(short_help="Show columns, partitions, place and errors.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@output_option
@on_node
def describe(node: AdminPort, names: Sequence[str], output: str) -> None:
    """Show the columns and partitions of each table NAME, where it is, and what went wrong."""
    found = [node.ask("GET", table_path(name)) for name in names]
    emit(output, found, partial(show_each, found, _show))


def _show(found: Mapping[str, Any], console: Console) -> None:
    rows = f"{found['rows']:,} in {count_text(found['files'], 'file')}, {size_text(found['bytes'])}"
    lag = f"{number_text(found['lag'])} offsets" + (f", {_behind_text(found)}" if found["lag"] else "")
    topic = plain(found["topic"] or "deleted or detached")
    if found["topic"] and not found["enabled"]:
        topic += " (not enabled)"
    facts = [
        ("table", plain(found["name"])),
        ("id", found["table_id"] or "-"),
        ("topic", topic),
        ("rows", rows),
        ("committed", f"{second_text(found['committed_ms'] or -1)}, {count_text(found['version'], 'commit')}"),
        ("committer", "-" if found["committer"] is None else f"node {found['committer']}"),
        ("lag", lag),
        ("metadata", plain(found["metadata_location"] or "-")),
    ]
    if (there := found["publication"]) is not None:
        version = "" if there["version"] is None else f", version {there['version']:,}"
        version += f", snapshot {there['snapshot_id']}" if there["snapshot_id"] else ""
        behind = f", behind for {age_text(there['lag_ms'])}" if there["lag_ms"] else ""
        facts.append(("published", plain(f"in {there['catalog']}{version}{behind}")))
        if there["error"]:
            facts.append(("", plain(there["error"])))
    if found["error_rows"]:
        facts.append(("errors", f"{count_text(found['error_rows'], 'row')} since the start of the node"))
    facts += [("", plain(reason)) for reason in found["reasons"]]
    if found["last_error"]:
        facts.append(("waits", plain(found["last_error"])))
    console.print(make_facts(facts))
    if found["columns"]:
        console.print()
        table = make_table("id", "column", "type", right=("id",))
        for each in found["columns"]:
            table.add_row(str(each["id"]), plain(each["name"]), plain(each["type"]))
        console.print(table)
    console.print()
    numbers = ("partition", "start", "end", "topic end", "lag")
    table = make_table(*numbers, right=numbers)
    for each in found["partitions"]:
        offsets = [number_text(each[name]) for name in ("start_offset", "end_offset", "topic_end_offset", "lag")]
        table.add_row(str(each["partition"]), *offsets)
    console.print(table)


@click.command(short_help="Show the snapshots that can be read.")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of snapshots.")
@output_option
@on_node
def snapshots(node: AdminPort, name: str, limit: int, output: str) -> None:
    """Show the snapshots of the table NAME that can be read, newest first."""
    found = node.ask("GET", table_path(name, "snapshots"), limit=str(limit))
    rows = found["snapshots"]

    def show(console: Console) -> None:
        numbers = ("version", "added", "removed", "rows")
        table = make_table("snapshot", *numbers, "operation", "committed", right=numbers)
        for row in rows:
            counts = [_count_text(row, part) for part in ("added-records", "deleted-records", "total-records")]
            operation = plain(row["operation"] or "-")
            committed = second_text(row["committed_ms"])
            table.add_row(row["snapshot_id"], f"{row['version']:,}", *counts, operation, committed)
        console.print(table if rows else f"table {plain(name)} has no snapshots")
        if found["more"]:
            console.print("older ones are shown with a larger --limit")

    emit(output, rows, show)


def _count_text(row: Mapping[str, Any], name: str) -> str:
    text = row["summary"].get(name, "0" if name != "total-records" else "")
    return number_text(int(text)) if text.isdigit() else "-"
