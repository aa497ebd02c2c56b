"""What a node tells of itself when something it needs is away."""

from pathlib import Path

import pytest

from broker.metrics import prometheus_text, status
from s3stream.errors import CatalogUnavailable
from tests.support.node import running_node
from tests.support.waiting import until


async def test_a_catalog_that_is_away_is_in_the_status_and_keeps_nobody_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path, catalog_lease_ms=1_000) as running:

        async def away(*_: object, **__: object) -> None:
            raise CatalogUnavailable("catalog postgresql://h/d: connection refused")

        assert (await status(running))["outages"] == []
        with monkeypatch.context() as patch:
            patch.setattr(running.node.catalog, "renew_lease", away)
            await until(lambda: bool(running.node.storage.outages.current()), timeout_s=60, pause_s=0.01)
            patch.setattr(running.node.catalog, "count_objects", away)
            told = await status(running)
            assert told["objects"] is None
            (outage,) = told["outages"]
            assert (outage["where"], outage["reason"]) == ("catalog", "catalog postgresql://h/d: connection refused")
            assert 0 < outage["since_ms"] <= running.node.now_ms()
            assert told["node"]["writable"], "what is acknowledged is in the log"
            assert 'anabranch_outage_since_seconds{where="catalog"}' in prometheus_text(running)
        await until(lambda: not running.node.storage.outages.current(), timeout_s=60, pause_s=0.01)
        assert (await status(running))["objects"] == {}
