"""Quotas of addresses: how many connections a client may create in a second (KIP-612).

A connection over the quota is accepted, not read, and closed after the throttle time, so that its client does not try
again at once. Meanwhile it counts against the limits on connections.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import structlog

from anabranch.addresses import normal_address
from anabranch.broker.kafka.configs.cluster import ClusterConfigs
from anabranch.broker.kafka.quotas.entities import CONNECTION_CREATION_RATE, IP
from anabranch.broker.kafka.quotas.rates import Rate, Windows
from anabranch.broker.kafka.quotas.table import QuotaTable
from anabranch.broker.kafka.quotas.usage import UsageTable
from anabranch.broker.node.settings.client_areas import QuotaSettings

_log = structlog.get_logger("network")


class AddressQuotas:
    """The quotas of all addresses, and the rates of their connections.

    `steady_ms` is a clock that never goes back, `resolve` returns the address of a host or raises OSError, and `spawn`
    runs a coroutine.
    """

    def __init__(
        self,
        table: QuotaTable,
        settings: QuotaSettings,
        steady_ms: Callable[[], int],
        *,
        resolve: Callable[[str], Awaitable[str]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        windows = Windows(settings.window_num, settings.window_size_seconds * 1000)
        self._table = table
        self._throttle_ms_max = windows.window_ms
        self._steady_ms = steady_ms
        self._resolve = resolve
        self._spawn = spawn
        self._quotas: Mapping[str | None, float] = {}
        """As they are set, by address or host; None is the default."""
        self._limits: dict[str | None, float] = {}
        """By address."""
        self.usages = UsageTable[str, Rate](lambda: Rate(windows), clients_max=settings.clients_max)

    def watch(self, configs: ClusterConfigs) -> None:
        """Take in the quotas, now and whenever they change."""
        self._follow()
        configs.watch(self._follow)

    def _follow(self) -> None:
        quotas = {
            dict(entity.parts)[IP]: each[CONNECTION_CREATION_RATE]
            for entity, each in self._table.all().items()
            if CONNECTION_CREATION_RATE in each
        }
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self._limits = {}
        for name, limit in quotas.items():
            address = None if name is None else normal_address(name)
            if name is not None and address is None:
                self._spawn(self._limit_host(name, limit))
            else:
                self._limits[address] = limit
        self.usages.limit_each(self._limit_of)

    async def _limit_host(self, host: str, limit: float) -> None:
        try:
            address = normal_address(await self._resolve(host))
        except OSError as error:
            _log.warning("a quota has no effect: its host cannot be resolved", host=host, reason=str(error))
            return
        if self._quotas.get(host) == limit:
            self._limits.setdefault(address, limit)

    def _limit_of(self, address: str) -> float | None:
        limit = self._limits.get(address)
        return self._limits.get(None) if limit is None else limit

    def delay_s(self, host: str) -> float:
        """Count a new connection of a host; return for how long it is held, or 0 if it is within the quota.

        A connection that is held is not served.
        """
        if not self._limits:
            return 0.0
        limit = self._limit_of(host)
        if limit is None:
            return 0.0
        now_ms = self._steady_ms()
        usage = self.usages.get(host, limit, now_ms)
        usage.meter.record(1, now_ms)
        throttle_ms = min(usage.meter.throttle_ms(limit, now_ms), self._throttle_ms_max)
        if throttle_ms > 0:
            usage.meter.record(-1, now_ms)  # it is not served
        return usage.throttle(throttle_ms) / 1000
