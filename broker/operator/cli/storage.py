"""`anabranch storage ...`: list and verify the objects of a node, running or stopped.

Reads the catalog and the object stores in the node's settings, and changes neither. `stopped` and `discard` are sent to
the running node.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import update_wrapper
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import click
from rich.console import Console
from rich.progress import SpinnerColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sizes import size_text
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsGroup, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.progress import progress_bar
from anabranch.broker.operator.cli.stopped import discard, stopped
from anabranch.extras import install_command, is_installed
from anabranch.output import count_text, emit, make_facts, make_table, output_option
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import TABLE_KEYS, TableFileKind, parse_table_key
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.maintain.findings import VerifyReport
from anabranch.s3stream.maintain.verify import verify as verify_storage
from anabranch.s3stream.model import ObjectInfo, ObjectState, RangeLocation, object_key, parse_object_key
from anabranch.s3stream.object.reader import read_index
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.times import second_text

PAGE: Final = 500
FINDINGS_SHOWN: Final = 50
KINDS: Final = "SSO: stream set object, of several partitions. SO: stream object, of one."
"""Explanation below tables that name kinds of objects."""


@dataclass(frozen=True, slots=True)
class NodeStorage:
    """Catalog and object stores of a node, open for reading."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    cluster: str
    topics: Mapping[int, str]
    """Topic and partition of each stream, by stream id."""

    def key(self, object_id: int) -> str:
        """Return the key of an object."""
        return object_key(self.cluster, object_id)

    def topic(self, stream_id: int) -> str:
        """Return the topic and partition of a stream."""
        return self.topics.get(stream_id, "(no topic)")


@asynccontextmanager
async def open_storage(settings: Settings, *, read_only: bool = True) -> AsyncIterator[NodeStorage]:
    """Open catalog and stores: nothing is created or migrated, and only the stores may be written to."""
    if not settings.catalog.url and not (settings.node.data_dir / "catalog.db").is_file():
        raise click.ClickException(
            f"no catalog in the data directory {settings.node.data_dir}: find the node with --data-dir or --config"
        )
    cluster = settings.node.cluster
    async with AsyncExitStack() as stack:
        catalog = Catalog(settings.catalog_url, read_only=True)
        stack.push_async_callback(catalog.close)
        await catalog.open(cluster=cluster)
        stores = make_stores(settings, random.Random(), read_only=read_only)  # noqa: S311 - spreads retries, hides nothing
        for store in stores.values():
            stack.push_async_callback(store.close)
            await store.open()
        topics = {
            partition.stream_id: f"{topic.name}-{partition.index}"
            for topic in await catalog.list_topics()
            for partition in topic.partitions
        }
        for detached in await catalog.list_detached():
            for index, stream_id in enumerate(detached.stream_ids):
                topics[stream_id] = f"{detached.name}-{index} (detached)"
        yield NodeStorage(catalog, stores, cluster, topics)


@click.group(cls=SettingsGroup)
def storage() -> None:
    """List and verify a node's objects, and handle stopped partitions."""


storage.add_command(stopped)
storage.add_command(discard)


def on_storage(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Add the options that find a node's storage; the command receives the open storage."""

    @config_option
    @data_dir_option
    def wrapped(config_file: Path | None, data_dir: Path | None, **arguments: Any) -> None:
        async def main() -> None:
            async with open_storage(read_settings(config_file, data_dir)) as opened:
                await command(opened, **arguments)

        run(main())

    return update_wrapper(wrapped, command)


@storage.command()
@click.option("--topic", "topic_name", help="Only objects with records of this topic, ordered by partition and offset.")
@click.option(
    "--state",
    type=click.Choice([state.name.lower() for state in ObjectState]),
    help="Only objects in this state  [default: all]",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Show at most this many rows.")
@output_option
@on_storage
async def ls(opened: NodeStorage, topic_name: str | None, state: str | None, limit: int, output: str) -> None:
    """List objects, and count them by kind and state.

    An SSO (stream set object) has data of several partitions, an SO (stream object) of one. The node may be
    running.
    """
    if topic_name is not None and state is not None:
        raise click.UsageError("--state cannot be combined with --topic: all objects of a topic are committed")
    counts = sorted((await opened.catalog.count_objects()).items())
    data: dict[str, Any] = {}
    if topic_name is None:
        data["objects"], more = await _objects(opened, state, limit)
        table = _objects_table(data["objects"])
    else:
        located, more = await _ranges(opened, topic_name, limit)
        data["ranges"] = [{"partition": partition, **_range_data(location)} for partition, location in located]
        table = _ranges_table("partition", data["ranges"])
    data |= {"more": more, "total": [_total_data(*each) for each in counts]}

    def show(console: Console) -> None:
        console.print(table)
        if more:
            console.print(f"(more than {limit}; --limit shows more)")
        console.print()
        total = make_table("total", "objects", "bytes", right=("objects", "bytes"))
        for name, (count, size) in counts:
            total.add_row(name, f"{count:,}", size_text(size))
        console.print(total)
        console.print(KINDS, soft_wrap=True)

    emit(output, data, show)


def _total_data(name: str, total: tuple[int, int]) -> Mapping[str, Any]:
    kind, _, state = name.partition(" ")
    return {"kind": kind, "state": state, "count": total[0], "size_bytes": total[1]}


async def _objects(opened: NodeStorage, state: str | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return objects, and whether there are more of them."""
    found: list[ObjectInfo] = []
    after, more = 0, True
    while more and len(found) <= limit:
        page = await opened.catalog.list_objects(after=after, limit=PAGE)
        found += [info for info in page if state in {None, info.state.name.lower()}]
        more = len(page) == PAGE
        after = page[-1].object_id if page else after
    located = await opened.catalog.object_ranges([info.object_id for info in found[:limit]])
    rows = []
    for info in found[:limit]:
        ranges = located.get(info.object_id, ())
        rows.append(
            {
                "id": info.object_id,
                "kind": info.kind.name if info.committed_ms else None,
                "state": info.state.name.lower(),
                "store": info.store,
                "size_bytes": info.size_bytes,
                "ranges": len(ranges),
                "committed_ms": info.committed_ms or None,
                "streams": sorted(opened.topic(each) for each in {location.range.stream_id for location in ranges}),
            }
        )
    return rows, len(found) > limit


def _objects_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    names = ("id", "kind", "state", "store", "size", "ranges", "committed")
    table = make_table(*names, "streams", right=("id", "size", "ranges"), whole=names)
    for row in rows:
        streams = row["streams"]
        table.add_row(
            str(row["id"]),
            row["kind"] or "-",
            row["state"],
            row["store"],
            size_text(row["size_bytes"]),
            str(row["ranges"]),
            moment(row["committed_ms"]),
            streams[0] if len(streams) == 1 else str(len(streams)),
        )
    return table


async def _ranges(opened: NodeStorage, topic_name: str, limit: int) -> tuple[list[tuple[int, RangeLocation]], bool]:
    """Return ranges of a topic with their partitions, and whether there are more of them."""
    found = [topic for topic in await opened.catalog.list_topics() if topic.name == topic_name]
    if not found:
        raise click.ClickException(f"topic {topic_name} does not exist")
    located: list[tuple[int, RangeLocation]] = []
    for partition in found[0].partitions:
        info = (await opened.catalog.get_streams([partition.stream_id]))[partition.stream_id]
        ranges = await opened.catalog.find_ranges(
            partition.stream_id, info.start_offset, info.end_offset, limit=limit - len(located) + 1
        )
        located += [(partition.index, location) for location in ranges]
        if len(located) > limit:
            return located[:limit], True
    return located, False


def _range_data(location: RangeLocation) -> Mapping[str, Any]:
    span = location.range
    return {
        "first": span.start_offset,
        "end": span.end_offset,
        "records": span.record_count,
        "size_bytes": span.size_bytes,
        "object": location.object.object_id,
        "kind": location.object.kind.name,
        "store": location.object.store,
    }


def _ranges_table(owner: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of ranges, whose owner is a `partition` of a topic or a `stream`."""
    numbers = ("first", "end", "records", "bytes", "object")
    table = make_table("partition", *numbers, "kind", "store", right=numbers)
    for row in rows:
        table.add_row(
            str(row[owner]),
            *(f"{row[name]:,}" for name in ("first", "end", "records")),
            size_text(row["size_bytes"]),
            str(row["object"]),
            row["kind"],
            row["store"],
        )
    return table


@storage.command(short_help="Show one object and its index, or a file of a table.")
@click.argument("which", metavar="ID|KEY")
@click.option("--blocks", type=click.IntRange(0), default=50, show_default=True, help="Show at most this many blocks.")
@output_option
@on_storage
async def inspect(opened: NodeStorage, which: str, blocks: int, output: str) -> None:
    """Show one object: its row and ranges in the catalog, its footer, and its index.

    Of a file of a table, which is named by its key, its row is shown, and what Parquet's footer says.
    """
    if which.startswith(TABLE_KEYS):
        await _inspect_table_file(opened, which, output)
        return
    object_id = _object_id(which)
    info = (await opened.catalog.get_objects([object_id])).get(object_id)
    if info is None:
        raise click.ClickException(f"object {object_id} is not in the catalog")
    located = (await opened.catalog.object_ranges([object_id]))[object_id]
    ranges = [{"stream": opened.topic(each.range.stream_id), **_range_data(each)} for each in located]
    data: dict[str, Any] = {**_object_data(opened, info), "ranges": ranges, "footer": None, "blocks": []}
    error = None
    if info.state is ObjectState.COMMITTED:
        try:
            data |= await _index_data(opened, info, blocks)
        except StorageError as failure:
            error = failure
    emit(output, data, lambda console: _print_object(data, console))
    if error is not None:
        raise click.ClickException(str(error))


async def _inspect_table_file(opened: NodeStorage, key: str, output: str) -> None:
    place = parse_table_key(key)
    if place is None:
        raise click.BadParameter(f"expected the key of a file of a table, found {key!r}", param_hint="ID|KEY")
    file = (await opened.catalog.tables.get_files([place.file_id])).get(place.file_id)
    if file is None or file.file_key != key:
        raise click.ClickException(f"file {key} is not in the catalog")
    tables = {table.table_id: table.name for table in await opened.catalog.tables.list()}
    is_data = file.kind is TableFileKind.DATA
    data: dict[str, Any] = {
        "id": file.file_id,
        "key": file.file_key,
        "table": tables.get(file.table_id),
        "kind": file.kind.name.lower(),
        "state": file.state.name.lower(),
        "store": file.store,
        "size_bytes": file.size_bytes,
        "crc32c": f"{file.crc32c:08x}",
        "partition": file.idx if is_data else None,
        "first": file.start_offset if is_data else None,
        "end": file.end_offset if is_data else None,
        "rows": file.record_count if is_data else None,
        "schema": file.schema_id if is_data else None,
        "added_by_version": file.added or None,
        "removed_by_version": file.removed or None,
        "node": file.node_id,
        "writer": file.writer_id,
        "committed_ms": file.committed_ms or None,
        "deadline_ms": file.deadline_ms or None,
        "footer": None,
    }
    store = opened.stores.get(file.store)
    if is_data and file.committed_ms and store is not None and is_installed("tables"):
        from anabranch.tables.footers import describe_footer  # imports Arrow

        data["footer"] = await describe_footer(store, file)

    def show(console: Console) -> None:
        facts = [(name.replace("_", " "), _shown(name, value)) for name, value in data.items() if name != "footer"]
        console.print(make_facts(facts))
        if data["footer"] is not None:
            console.print(make_facts([(name.replace("_", " "), str(value)) for name, value in data["footer"].items()]))

    emit(output, data, show)


def _shown(name: str, value: object) -> str:
    """Return a field of a file's row for people."""
    if name.endswith("_ms"):
        return moment(cast("int | None", value))
    return "-" if value is None else f"{value:,}" if isinstance(value, int) and name != "id" else str(value)


def _object_id(which: str) -> int:
    if which.isascii() and which.isdigit():
        return int(which)
    parsed = parse_object_key(which)
    if parsed is None:
        raise click.BadParameter(f"expected the id or key of an object, found {which!r}", param_hint="ID|KEY")
    return parsed[1]


def _object_data(opened: NodeStorage, info: ObjectInfo) -> dict[str, Any]:
    return {
        "id": info.object_id,
        "key": opened.key(info.object_id),
        "store": info.store,
        "kind": info.kind.name if info.committed_ms else None,
        "state": info.state.name.lower(),
        "size_bytes": info.size_bytes,
        "node": info.node_id,
        "writer": info.writer_id,
        "committed_ms": info.committed_ms or None,
        "deadline_ms": info.deadline_ms or None,
    }


async def _index_data(opened: NodeStorage, info: ObjectInfo, blocks: int) -> dict[str, Any]:
    """Return footer and first blocks of an object as JSON and YAML have them. Raises StorageError."""
    store = opened.stores.get(info.store)
    if store is None:
        raise StorageError(f"store {info.store!r} is not configured")
    index = await read_index(store, opened.key(info.object_id), object_bytes=info.size_bytes)
    footer = index.footer
    return {
        "footer": {
            "kind": footer.kind.name,
            "object": footer.object_id,
            "blocks": footer.entry_count,
            "index_bytes": footer.index_bytes,
            "index_position": footer.index_position,
        },
        "blocks": [
            {
                "stream": opened.topic(entry.stream_id),
                "first": entry.start_offset,
                "end": entry.end_offset,
                "records": entry.record_count,
                "position": entry.position,
                "size_bytes": entry.size_bytes,
                "max_timestamp_ms": entry.max_timestamp_ms,
                "crc32c": f"{entry.crc:08x}",
            }
            for entry in islice(index, blocks)
        ],
    }


def _print_object(data: Mapping[str, Any], console: Console) -> None:
    facts = (
        ("object", str(data["id"])),
        ("key", data["key"]),
        ("store", data["store"]),
        ("kind", data["kind"] or "-"),
        ("state", data["state"]),
        ("size", f"{size_text(data['size_bytes'])} ({data['size_bytes']:,} bytes)"),
        ("node", str(data["node"])),
        ("writer", data["writer"]),
        ("committed", moment(data["committed_ms"])),
        ("deadline", moment(data["deadline_ms"])),
    )
    console.print(make_facts(facts))
    console.print(KINDS, soft_wrap=True)
    console.print()
    ranges = _ranges_table("stream", data["ranges"])
    ranges.title = "Live ranges in the catalog"
    console.print(ranges)
    footer = data["footer"]
    if footer is None:
        return
    console.print()
    console.print(
        f"footer: {footer['kind']} of object {footer['object']}, index of {count_text(footer['blocks'], 'block')} "
        f"({footer['index_bytes']:,} bytes) at {footer['index_position']:,}",
        highlight=False,
    )
    numbers = ("first", "end", "records", "position", "bytes")
    table = make_table("block", "partition", *numbers, "newest", "crc32c", right=("block", *numbers))
    for number, block in enumerate(data["blocks"]):
        table.add_row(
            str(number),
            block["stream"],
            *(f"{block[name]:,}" for name in ("first", "end", "records", "position", "size_bytes")),
            moment(block["max_timestamp_ms"]),
            block["crc32c"],
        )
    console.print(table)
    if (more := footer["blocks"] - len(data["blocks"])) > 0:
        console.print(f"({more:,} more blocks; --blocks shows more)")


@storage.command(short_help="Verify that all objects exist and are sound.")
@click.option("--deep", is_flag=True, help="Also read every data block.")
@output_option
@on_storage
async def verify(opened: NodeStorage, deep: bool, output: str) -> None:  # noqa: FBT001 - click passes by name
    """Verify that every object exists, is sound and belongs to something, and that no partition has a gap.

    Exit code 1 if anything is wrong. The node may be running.
    """
    with progress_bar(SpinnerColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("listing the store")

        def show(report: VerifyReport) -> None:
            done = sum(report.objects.values())
            progress.update(
                task, description=f"{count_text(done, 'object')}, {count_text(report.streams, 'stream')} checked"
            )

        report = await verify_storage(
            catalog=opened.catalog, stores=opened.stores, cluster=opened.cluster, deep=deep, on_progress=show
        )
        progress.update(task, description="checking tables")
        await _verify_tables(opened, report)
    detached = await opened.catalog.list_detached()

    def print_all(console: Console) -> None:
        print_report(report, console)
        if detached:
            console.print(
                f"including {count_text(len(detached), 'detached topic')}, with data that is kept until it is deleted"
            )

    emit(output, report_data(report), print_all)
    if not report.ok:
        count = len(report.findings) + report.findings_dropped
        raise click.ClickException(f"{count_text(count, 'finding')}: the storage is not sound")


async def _verify_tables(opened: NodeStorage, report: VerifyReport) -> None:
    """Check metadata and rows of tables, if there are any and the packages for it."""
    if not report.tables:
        return
    if not is_installed("tables"):
        what = "manifests and rows" if report.deep else "manifests"
        report.not_checked.append(f"{what} of tables, which need packages: {install_command('tables')}")
        return
    from anabranch.tables.verify import verify_tables  # imports Arrow

    with TemporaryDirectory() as folder:
        await verify_tables(
            catalog=opened.catalog, stores=opened.stores, cluster=opened.cluster, report=report, folder=Path(folder)
        )


def report_data(report: VerifyReport) -> Mapping[str, object]:
    """Return the report for JSON and YAML."""
    return {
        "sound": report.ok,
        "deep": report.deep,
        "objects": {state.name.lower(): report.objects[state] for state in ObjectState},
        "object_bytes": report.object_bytes,
        "stored_objects": report.stored_objects,
        "stored_bytes": report.stored_bytes,
        "manifests": report.manifests,
        "streams": report.streams,
        "ranges": report.ranges,
        "blocks": report.blocks,
        "block_bytes": report.block_bytes,
        "tables": report.tables,
        "table_files": {state.name.lower(): report.table_files[state] for state in ObjectState},
        "table_bytes": report.table_bytes,
        "kept_table_files": report.kept_table_files,
        "table_rows": report.table_rows,
        "not_checked": list(report.not_checked),
        "findings": [
            {"finding": each.kind.value, "where": each.where, "detail": each.detail} for each in report.findings
        ],
        "findings_dropped": report.findings_dropped,
    }


def print_report(report: VerifyReport, console: Console) -> None:
    """Print the report as tables."""
    facts: Sequence[tuple[str, str]] = (
        *((f"{state.name.lower()} objects", f"{report.objects[state]:,}") for state in ObjectState),
        ("bytes of committed objects", size_text(report.object_bytes)),
        ("objects in the store", f"{report.stored_objects:,} ({size_text(report.stored_bytes)})"),
        ("manifests", f"{report.manifests:,}"),
        ("streams without a gap", f"{report.streams:,}"),
        ("live ranges", f"{report.ranges:,}"),
        ("data blocks " + ("read" if report.deep else "in the indexes"), f"{report.blocks:,}"),
        ("bytes of data blocks", size_text(report.block_bytes)),
        *_table_facts(report),
    )
    console.print(make_facts(facts))
    for reason in report.not_checked:
        console.print(f"[yellow]not checked[/yellow]: {reason}")
    if report.ok:
        console.print("[green]sound[/green]: nothing missing, nothing damaged, nothing unaccounted for")
        return
    table = make_table("finding", "where", "detail")
    for finding in report.findings[:FINDINGS_SHOWN]:
        table.add_row(*map(Text, (finding.kind.value, finding.where, finding.detail)))
    console.print(table)


def _table_facts(report: VerifyReport) -> Sequence[tuple[str, str]]:
    """Return what is shown about tables; nothing without any."""
    files = report.table_files
    found = [
        ("tables", f"{report.tables:,}"),
        *((f"{state.name.lower()} files of tables", f"{files[state]:,}") for state in ObjectState if files[state]),
        ("bytes of committed files of tables", size_text(report.table_bytes)),
        ("files of dropped tables, kept", f"{report.kept_table_files:,}"),
        *([("rows compared with records", f"{report.table_rows:,}")] if report.deep else []),
    ]
    return found if report.tables or files or report.kept_table_files else ()


def moment(ms: int | None) -> str:
    """Return a time of the storage for a table; `-` if it is unset."""
    return second_text(ms) if ms else "-"
