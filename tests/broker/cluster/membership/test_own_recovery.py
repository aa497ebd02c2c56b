"""A start waits for a living node that recovers its log, and for no other. Virtual time, two-row catalog."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from anabranch.broker.cluster.membership.own_recovery import POLL_S, wait_until_recovered
from anabranch.broker.node.peers.liveness import DEAD_AFTER_S
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo, WalState
from tests.support.virtual_time import VirtualTimeLoop, run_virtual

LIMIT_S = 30.0
FENCED = WalInfo("a" * 16, 1, 4, "/log", WalState.FENCED, 0, recoverer=2, recoverer_epoch=7)
RECOVERER = NodeInfo(2, 7, "h", 9092, 1_000, 3_000)


@dataclass
class Rows:
    """The log of node 1, and node 2, whose lease is renewed at each look until the virtual second `dies_s`."""

    log: WalInfo
    node: NodeInfo | None
    dies_s: float = 1e9

    async def list_wals(self, node_id: int) -> Sequence[WalInfo]:
        assert node_id == 1
        return [self.log]

    async def get_node(self, node_id: int) -> NodeInfo | None:
        assert node_id == 2
        if self.node is not None and asyncio.get_running_loop().time() < self.dies_s:
            self.node = replace(self.node, lease_until_ms=self.node.lease_until_ms + 1)
        return self.node


def waited(rows: Rows, *, recovered_s: float = 1e9) -> float:
    """Seconds until the start goes on."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        recovered = replace(rows.log, state=WalState.DRAINED)
        timer = loop.call_later(recovered_s, setattr, rows, "log", recovered)
        await wait_until_recovered(cast("Catalog", rows), 1, limit_s=LIMIT_S)
        timer.cancel()
        return loop.time()

    return run_virtual(run())


def is_about(seconds: float, expected: float) -> bool:
    return abs(seconds - expected) < 2 * POLL_S


def test_a_log_that_nobody_recovers_is_not_waited_for() -> None:
    for state in (WalState.OPEN, WalState.DRAINED, WalState.GIVEN_UP):
        assert waited(Rows(replace(FENCED, state=state), RECOVERER)) == 0


def test_a_living_recoverer_may_finish() -> None:
    assert is_about(waited(Rows(FENCED, RECOVERER), recovered_s=12), 12)


def test_a_recoverer_that_is_gone_is_not_waited_for() -> None:
    assert waited(Rows(FENCED, None)) == 0
    assert waited(Rows(FENCED, replace(RECOVERER, epoch=8))) == 0, "it has died, and was registered or taken over since"
    assert waited(Rows(FENCED, replace(RECOVERER, lease_until_ms=-5), dies_s=0)) == 0, "it has stopped"


def test_a_recoverer_that_dies_is_waited_for_until_that_is_known() -> None:
    assert is_about(waited(Rows(FENCED, RECOVERER, dies_s=5)), 5 + DEAD_AFTER_S)


def test_a_recovery_without_end_is_not_waited_for() -> None:
    assert is_about(waited(Rows(FENCED, RECOVERER)), LIMIT_S)
