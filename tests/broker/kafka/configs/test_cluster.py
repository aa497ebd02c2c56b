"""Configs of other resources than topics follow the catalog, also when one of its answers is lost."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.kafka.configs.cluster import GROUP, ClusterConfigs
from anabranch.s3stream.catalog import configs as rows
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import OutcomeUnknown


@pytest.mark.parametrize("asked_by", ["settle", "the next change"])
@pytest.mark.parametrize("altered", [False, True])
async def test_a_change_whose_answer_is_lost_is_found_out(tmp_path: Path, asked_by: str, *, altered: bool) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    configs = ClusterConfigs(catalog)
    await configs.load()
    really = catalog.alter_config

    async def answer_lost(*arguments: Any, **named: Any) -> Mapping[str, str]:
        if altered:
            await really(*arguments, **named)
        raise OutcomeUnknown("a commit was not answered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "alter_config", answer_lost)
        with pytest.raises(OutcomeUnknown):
            await configs.alter(GROUP, "g", set_configs={"a": "1"}, unset=())
    assert configs.get(GROUP, "g") == {}
    if asked_by == "settle":
        await configs.resolve_outcomes()
    else:
        await configs.alter(GROUP, "h", set_configs={"b": "2"}, unset=())
        assert configs.get(GROUP, "h") == {"b": "2"}
    assert configs.get(GROUP, "g") == ({"a": "1"} if altered else {})
    version = configs.version
    await configs.resolve_outcomes()
    assert configs.version == version, "nothing is in doubt any more"
    await catalog.close()


async def test_a_change_that_takes_effect_after_it_was_given_up_is_found_out(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    configs = ClusterConfigs(catalog)
    await configs.load()
    loop, began, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    really = rows.alter_config

    def slow(*arguments: Any) -> Mapping[str, str]:
        loop.call_soon_threadsafe(began.set)
        may_end.wait()
        return really(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "alter_config", slow)
        change = asyncio.create_task(configs.alter(GROUP, "g", set_configs={"a": "1"}, unset=()))
        await began.wait()
        change.cancel()
        await asyncio.wait([change])
        resolving = asyncio.create_task(configs.resolve_outcomes())
        try:
            assert await catalog.list_configs() == {}, "a plain read passes the change by"
        finally:
            may_end.set()
        await resolving
    assert configs.get(GROUP, "g") == {"a": "1"}
    await catalog.close()
