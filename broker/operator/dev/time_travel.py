"""Time travel: a test moves the clocks of a node forward, and what is due by them happens at once.

Moved are the clocks by which things that users see grow old: records, committed offsets, transactions, producers,
tokens, members of groups. What waits for a device, a store or another process stays on the event loop's own clock, such
as leases of nodes, connections and requests: nothing of that has become late.
"""

import asyncio
from typing import Final

from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.broker_table import PRODUCER_ID_EXPIRATION
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.partitions.producer_expiry import expire_all
from anabranch.broker.kafka.partitions.retention import enforce_all

POLL_S: Final = 0.002
_MACHINE: Final = Environment()


class MovedClock:
    """The clocks of a node, which are ahead of the machine's by `ahead_ms`."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Return ms since 1970."""
        return _MACHINE.now_ms() + self.ahead_ms

    def now_ns(self) -> int:
        """Return ns since 1970."""
        return _MACHINE.now_ns() + self.ahead_ms * 1_000_000

    def steady_ms(self) -> int:
        """Return ms since an arbitrary moment."""
        return _MACHINE.steady_ms() + self.ahead_ms


async def travel(node: Node, clock: MovedClock, ahead_ms: int) -> None:
    """Move the clocks of a node forward until they are ahead by `ahead_ms`, and do what has become due.

    When it returns, members of groups whose sessions have ended are out, transactions that have timed out are aborted,
    and what has expired is gone. Raises StorageError; the clocks are moved then.
    """
    serving = node.serving
    groups, transactions = serving.groups, serving.transactions
    while clock.ahead_ms < ahead_ms:
        # From deadline to deadline: the retention of a group's offsets begins when its last member is out.
        deadline_ms = groups.wake_ms - clock.steady_ms() + clock.ahead_ms
        clock.ahead_ms = min(max(deadline_ms, clock.ahead_ms), ahead_ms)
        groups.reset_timers()
        await _settled(groups)
    await transactions.abort_timed_out()
    await transactions.expire()
    await transactions.wait_settled()
    await groups.expire()
    await _settled(groups)
    partitions, now_ms = serving.topics.led_partitions, node.cautious_now_ms
    await enforce_all(partitions(), now_ms)
    await expire_all(partitions(), now_ms() - serving.broker_configs.number(PRODUCER_ID_EXPIRATION))
    if serving.delegation_tokens is not None:
        await serving.delegation_tokens.remove_expired()


async def _settled(groups: GroupCoordinator) -> None:
    while not groups.is_settled:  # noqa: ASYNC110 - a matter of milliseconds, in tests only
        await asyncio.sleep(POLL_S)
