"""An address that creates too many connections has the next ones held and closed; other addresses are served."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from anabranch.broker.kafka.quotas.addresses import AddressQuotas
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.settings.client_areas import QuotaSettings
from tests.broker.kafka.quotas.test_metering import FakeConfigs
from tests.broker.node.net.test_connection import FakeManager, FakeTransport
from tests.support.virtual_time import run_virtual


class Rig:
    def __init__(self) -> None:
        self.now_ms = 0
        self.configs = FakeConfigs()
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.hosts = {"localhost": "127.0.0.1"}
        configs: Any = self.configs
        self.quotas = AddressQuotas(
            QuotaTable(configs),
            QuotaSettings(window_num=2),
            lambda: self.now_ms,
            resolve=self._resolve,
            spawn=self.spawned.append,
        )
        self.quotas.watch(configs)

    async def _resolve(self, host: str) -> str:
        if host not in self.hosts:
            raise OSError("unknown")
        return self.hosts[host]

    def set(self, address: str | None, rate: float) -> None:
        self.configs.set({"ip": address}, connection_creation_rate=rate)


def test_connections_over_the_rate_are_delayed_and_do_not_count() -> None:
    rig = Rig()
    assert rig.quotas.delay_s("10.0.0.1") == 0
    assert len(rig.quotas.usages) == 0
    rig.set("10.0.0.1", 2)
    assert [rig.quotas.delay_s("10.0.0.1") for _ in range(4)] == [0, 0, 0.5, 0.5]
    assert rig.quotas.delay_s("10.0.0.2") == 0
    rig.now_ms = 2000
    assert rig.quotas.delay_s("10.0.0.1") == 0


def test_a_default_applies_to_each_address_without_a_quota_of_its_own() -> None:
    rig = Rig()
    rig.set(None, 1)
    rig.set("10.0.0.1", 3)
    assert [rig.quotas.delay_s("10.0.0.2") > 0 for _ in range(2)] == [False, True]
    assert [rig.quotas.delay_s("10.0.0.3") > 0 for _ in range(2)] == [False, True]
    assert [rig.quotas.delay_s("10.0.0.1") > 0 for _ in range(4)] == [False, False, False, True]
    rig.set("::FFFF:10.0.0.3", 10)
    assert rig.quotas.delay_s("10.0.0.3") == 0
    rig.configs.clear()
    assert len(rig.quotas.usages) == 0


def test_a_delay_is_one_window_at_most() -> None:
    rig = Rig()
    rig.set(None, 0.001)
    assert rig.quotas.delay_s("10.0.0.2") == 1


def test_a_host_is_resolved() -> None:
    rig = Rig()
    rig.set("localhost", 1)
    rig.set("no-such-host", 1)
    for work in rig.spawned:
        asyncio.run(work)
    assert [rig.quotas.delay_s("127.0.0.1") > 0 for _ in range(2)] == [False, True]
    assert rig.quotas.delay_s("10.0.0.1") == 0


def test_a_held_connection_is_not_read_and_closed_after_the_delay() -> None:
    async def check() -> None:
        manager, transport = FakeManager(), FakeTransport()
        manager.delay_s = 0.5
        connection = Connection(manager, 1)
        connection.connection_made(transport)
        await asyncio.sleep(0)
        assert (transport.reading, transport.closed) == (False, False)
        await asyncio.sleep(0.49)
        assert not transport.closed
        await asyncio.sleep(0.02)
        assert transport.aborted
        connection.connection_lost(None)

    run_virtual(check())
