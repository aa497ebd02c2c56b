"""Two clusters of one name that begin in one object store: one serves, and the other one writes nothing there."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.broker.app import StartError
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.membership.rebuild import CatalogRebuild, ClockAndIds
from anabranch.broker.cluster.node import Node
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.maintain.claim import check_claim, claim_key, claim_store
from anabranch.s3stream.store.local import LocalStore
from tests.support.node import running_node, settings_for
from tests.support.s3 import S3Bucket

KEY = claim_key("anabranch")
NOW_MS = 1_760_000_000_000
REFUSED = "belongs to another cluster of the name 'anabranch'"


async def start_both(folder: Path, stack: AsyncExitStack, **settings: object) -> tuple[list[Node], list[StartError]]:
    """Start two clusters at the same moment; return the nodes that serve, and the refusals."""
    starts = [stack.enter_async_context(running_node(folder / name, **settings)) for name in ("first", "second")]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, StartError)]
    return [each for each in outcomes if isinstance(each, Node)], refused


@pytest.mark.parametrize("kind", ["local", "s3"])
async def test_of_two_clusters_that_begin_at_once_one_serves(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    settings: dict[str, object] = {"objects_path": tmp_path / "objects"}
    if kind == "s3":
        bucket: S3Bucket = request.getfixturevalue("bucket")
        settings = dict(bucket.node_settings())
    async with AsyncExitStack() as stack:
        served, refused = await start_both(tmp_path, stack, **settings)
        assert len(served) == len(refused) == 1
        assert REFUSED in str(refused[0])
        store = served[0].stores[served[0].serving.settings.objects.store]
        assert await check_claim(store, "anabranch", served[0].serving.catalog.identity())
        nodes = {manifest.key.split("/")[2] async for manifest in store.list("manifest/")}
        assert nodes <= {"1"}, "only one of them has written"


async def test_all_stores_are_claimed_and_each_start_compares(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    settings = {"stores": ["cold.type=local", f"cold.path={cold}"]}
    identity = b""
    for _ in range(2):
        async with running_node(tmp_path, **settings) as node:
            identity = node.serving.catalog.identity()
            assert [await check_claim(store, "anabranch", identity) for store in node.stores.values()] == [True] * 2
    (cold / KEY).unlink()  # as a store that was used before there were claims
    async with running_node(tmp_path, **settings) as node:
        assert await check_claim(node.stores["cold"], "anabranch", identity)
    (cold / KEY).unlink()
    await claim(cold, b"another catalog!")
    with pytest.raises(StartError, match=f"the object store 'cold' {REFUSED}"):
        async with running_node(tmp_path, **settings):
            pass


async def claim(folder: Path, catalog_id: bytes) -> None:
    store = LocalStore("cold", folder)
    await store.open()
    await claim_store(store, "anabranch", catalog_id)
    await store.close()


async def test_a_rebuilt_catalog_keeps_the_claim_and_no_other_is_rebuilt(tmp_path: Path) -> None:
    entropy = ClockAndIds(lambda: NOW_MS, Environment().new_topic_id, random.Random(1))
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await node.upkeep.manifests.ensure_current()
        identity = node.serving.catalog.identity()
    settings = settings_for(tmp_path)
    for file in settings.node.data_dir.glob("catalog.db*"):
        file.unlink()
    async with CatalogRebuild.opened(settings, entropy) as work:
        await work.make_plan(None, lambda *_: None)
        await work.execute(accept_loss=False, keep_ms=0, on_progress=lambda _: None)
    async with running_node(tmp_path) as node:
        assert node.serving.catalog.identity() == identity

    objects = settings.node.data_dir / "objects"
    (objects / KEY).unlink()
    await claim(objects, b"another catalog!")
    async with CatalogRebuild.opened(settings, entropy) as work:
        with pytest.raises(CatalogError, match=REFUSED):
            await work.make_plan(None, lambda *_: None)


async def test_a_node_with_another_store_than_the_others_does_not_join(tmp_path: Path) -> None:
    """The others could not read what it uploads. Nothing has been uploaded yet by which it could be seen."""
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db"}
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    async with running_node(tmp_path / "1", node_id=1, objects_path=right, **shared):
        with pytest.raises(StartError, match="holds nothing of cluster 'anabranch', to which node 1 belongs"):
            async with running_node(tmp_path / "2", node_id=2, objects_path=wrong, **shared):
                pass
        assert not [each for each in wrong.rglob("*") if each.is_file()]
        async with running_node(tmp_path / "2", node_id=2, objects_path=right, **shared):
            pass
