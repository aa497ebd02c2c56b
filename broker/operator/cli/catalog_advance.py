"""`anabranch catalog advance`: use an older copy of a catalog, without assigning ids and epochs again."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.console import Console

from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import make_stores
from anabranch.broker.operator.cli.arguments import yes_option
from anabranch.broker.operator.cli.errors import run
from anabranch.broker.operator.cli.options import SettingsCommand, config_option, data_dir_option, read_settings
from anabranch.broker.operator.cli.questions import confirm
from anabranch.output import count_text, emit, output_option, show_plan
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.restore import Advance
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.maintain.manifest import parse_manifest_key
from anabranch.s3stream.maintain.rebuild import (
    OBJECT_IDS_SKIPPED,
    PRODUCER_IDS_SKIPPED,
    TABLE_FILE_IDS_SKIPPED,
    skip_progress,
)
from anabranch.s3stream.maintain.rebuild_plan import EPOCHS_SKIPPED
from anabranch.s3stream.model import parse_object_key
from anabranch.s3stream.object.marks import MarkPlace


@click.command(cls=SettingsCommand, short_help="Use an older copy of the catalog.")
@config_option
@data_dir_option
@yes_option
@output_option
def advance(config_file: Path | None, data_dir: Path | None, *, yes: bool, output: str) -> None:
    """Let a stopped node start with a catalog that is older than its object store, such as a restored backup.

    Records uploaded after the backup are no longer served, and their offsets are assigned again. Records
    compacted since may be missing. Prefer `anabranch catalog rebuild`, which keeps all.
    """
    settings = read_settings(config_file, data_dir)
    run(_run(settings, output, ask=not yes))


async def _run(settings: Settings, output: str, *, ask: bool) -> None:
    async with AsyncExitStack() as stack:
        stack.callback(DataDirLock(settings.node.data_dir).release_unused)
        log = await stack.enter_async_context(NodeLog.opened(settings, any_content=True))
        header, node_id = log.header, settings.node.node_id
        epochs = {node_id: header.node_epoch} if header is not None and header.node_id == node_id else {}
        catalog = Catalog(settings.catalog_url)
        stack.push_async_callback(catalog.close)
        if await catalog.is_blank():
            raise CatalogError(f"catalog {catalog.where}: it is empty: fill it with `anabranch catalog rebuild`")
        await catalog.open(cluster=settings.node.cluster)
        object_id, manifest, marks = await _newest(settings, catalog.identity())
        known, state = await catalog.read_state()
        objects = state.counters["object"] - 1

        def show(console: Console) -> None:
            console.print(
                f"the catalog has {count_text(known, 'manifest')} and {count_text(objects, 'object id')}; the store "
                f"has manifest {manifest:,} and object {object_id:,}",
                soft_wrap=True,
            )
            console.print(
                "Records uploaded after the backup will no longer be served, and their offsets will be assigned again.",
                soft_wrap=True,
            )

        show_plan(output, show, asks=ask)
        if ask:
            confirm("Use this catalog?")
        await catalog.advance(
            Advance(
                object_id=object_id + 1 + OBJECT_IDS_SKIPPED,
                manifest=manifest,
                progress=skip_progress(marks, state.nodes),
                node_epochs=epochs,
                epochs_skipped=EPOCHS_SKIPPED,
                producer_ids_skipped=PRODUCER_IDS_SKIPPED,
                table_file_ids_skipped=TABLE_FILE_IDS_SKIPPED,
            )
        )
    data = {
        "catalog": {"manifest": known, "object": objects},
        "store": {"manifest": manifest, "object": object_id},
    }
    emit(output, data, "done; find missing records with `anabranch storage verify --deep`")


async def _newest(settings: Settings, catalog_id: bytes) -> tuple[int, int, CatalogProgress]:
    """Return the largest object id and the largest manifest sequence number in the stores, and what marks say."""
    object_id = manifest = 0
    marks = CatalogProgress()
    rng = random.Random()  # noqa: S311 - spreads retries in time
    async with AsyncExitStack() as stack:
        for store in make_stores(settings, rng, read_only=True).values():
            stack.push_async_callback(store.close)
            await store.open()
            async for item in store.list():
                key, parsed = parse_object_key(item.key), parse_manifest_key(item.key)
                if key is not None and key[0] == settings.node.cluster:
                    object_id = max(object_id, key[1])
                if parsed is not None and parsed.cluster == settings.node.cluster:
                    manifest = max(manifest, parsed.sequence)
            marks = marks.joined(await MarkPlace(store, settings.node.cluster, catalog_id).read())
    return object_id, manifest, marks
