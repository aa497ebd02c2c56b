"""A catalog that goes back to an earlier state while nodes run: they notice, say so, and do not start with it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.app import StartError
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.errors import CatalogWentBack
from anabranch.s3stream.object.marks import MarkPlace, MarkWriter
from tests.broker.cluster.membership.test_after_rebuild import all_led, rebuild
from tests.broker.cluster.membership.test_log_recovery import read, send
from tests.support.node import running_node, settings_for
from tests.support.postgres import postgres_server

FAIL_S = 60


async def test_what_a_standby_that_was_behind_has_forgotten_is_not_given_again(tmp_path: Path) -> None:
    """Acknowledged and uploaded records are in no log any more, and the catalog does not know them."""
    with postgres_server() as server:
        shared = {"catalog_url": server.new_database(), "objects_path": tmp_path / "objects"}
        values = [b"1", b"2", b"3"]
        with capture_logs() as said:
            async with AsyncExitStack() as stack:
                first, second = [
                    await stack.enter_async_context(running_node(tmp_path / str(key), node_id=key, **shared))
                    for key in (1, 2)
                ]
                topic = await first.serving.topic_commands.create("t", partitions=1, configs={})
                leader = first if topic.info.partitions[0].leader == 1 else second
                await send(leader, values[0])
                await leader.serving.storage.flush()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.keep_copy)
                await asyncio.to_thread(server.start)
                await send(leader, *values[1:])
                await leader.serving.storage.flush()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.put_back)
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(FAIL_S):
                    reason = await leader.failed
                assert "it has gone back to an earlier state" in reason
                assert "do not restart the nodes" in reason
                assert "`anabranch catalog rebuild`" in reason
        forgotten = [line for line in said if line["event"] == "a partition that the catalog has forgotten a part of"]
        assert [(line["partition"], line["known_to_offset"], line["uploaded_to_offset"]) for line in forgotten] == [
            ("t-0", 1, 3)
        ]
        for key in (1, 2):
            with pytest.raises(StartError, match=r"gone back to an earlier state.*`anabranch catalog rebuild`"):
                async with running_node(tmp_path / str(key), node_id=key, **shared):
                    pass
        shared["catalog_url"] = server.new_database()
        await rebuild(settings_for(tmp_path / "1", node_id=1, **shared))
        async with (
            running_node(tmp_path / "1", node_id=1, **shared) as first,
            running_node(tmp_path / "2", node_id=2, **shared),
        ):
            await all_led(first, {1, 2})
            assert await read(first, len(values)) == values


async def test_no_log_is_given_up_for_a_catalog_that_has_gone_back(tmp_path: Path) -> None:
    """Its ends are not those of the records: uploads that it has forgotten would be lost with the log."""
    async with running_node(tmp_path, catalog_lease_ms=1_500) as node:  # it beats every half second
        place = MarkPlace(node.stores["local"], "anabranch", node.serving.catalog.identity())
        await MarkWriter(place, 2, lambda: "writer").write(CatalogProgress(0, {2: 1}))
        with pytest.raises(CatalogWentBack, match="node 2 has committed 1 uploads, and it knows 0"):
            await node.serving.operations.plan_loss(2)
        async with asyncio.timeout(FAIL_S):
            assert "it has gone back to an earlier state" in await node.failed
