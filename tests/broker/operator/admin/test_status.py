"""Status and metrics of a node while a service it needs is unavailable."""

import asyncio
from pathlib import Path

import pytest

from anabranch.broker.operator.admin.api import storage as storage_module
from anabranch.broker.operator.admin.api.status import node_status
from anabranch.s3stream.errors import CatalogUnavailable
from anabranch.s3stream.outages import CATALOG
from tests.support.metrics import metrics_of
from tests.support.node import running_node
from tests.support.waiting import until


async def test_a_catalog_that_is_away_is_in_the_status_and_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path, catalog_lease_ms=1_000) as running:

        async def away(*_: object, **__: object) -> None:
            raise CatalogUnavailable("catalog postgresql://h/d: connection refused")

        assert (await node_status(running)).outages == []
        with monkeypatch.context() as patch:
            patch.setattr(running.serving.catalog, "beat", away)
            await until(lambda: bool(running.serving.storage.outages.current()), timeout_s=60, pause_s=0.01)
            patch.setattr(running.serving.catalog, "count_objects", away)
            told = await node_status(running)
            assert told.objects is None
            (outage,) = told.outages
            assert (outage.where, outage.reason) == ("catalog", "catalog postgresql://h/d: connection refused")
            assert 0 < outage.since_ms <= running.serving.now_ms()
            assert told.node.writable, "what is acknowledged is in the log"
            found = await metrics_of(running)
            assert found.value("anabranch_outage", where="catalog") == 1
            assert found.value("anabranch_outage_start_timestamp_seconds", where="catalog") == outage.since_ms / 1000
            assert found.value("anabranch_outage", where="object store local") == 0
        await until(lambda: not running.serving.storage.outages.current(), timeout_s=60, pause_s=0.01)
        assert (await node_status(running)).objects == {}


async def test_a_status_that_waited_too_shortly_does_not_hide_why_the_catalog_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(storage_module, "CATALOG_TIMEOUT_S", 0.01)
    async with running_node(tmp_path) as running:
        await running.serving.membership.stop()  # a beat that is answered ends the outage
        monkeypatch.setattr(running.serving.catalog, "count_objects", hang)
        outages = running.serving.storage.outages
        assert [each.reason for each in (await node_status(running)).outages] == ["no answer within 0.01 s"]
        outages.note(CATALOG, CatalogUnavailable("connection refused"))
        assert [each.reason for each in (await node_status(running)).outages] == ["connection refused"]
