"""Ports that stay bound while a node stops and starts again: clients that connect meanwhile wait until it serves."""

from contextlib import AsyncExitStack, ExitStack

from anabranch.broker.node.net.ports import ReservedPorts, reserve_ports
from anabranch.broker.node.settings.model import Settings


class KeptPorts:
    """The ports of a node over all its starts in this process."""

    def __init__(self) -> None:
        self._kept: ReservedPorts | None = None
        self._binding = ExitStack()

    def reserve(self, settings: Settings, stack: ExitStack | AsyncExitStack) -> ReservedPorts:
        """Return sockets bound to the ports, which `stack` closes. The first call binds them. Raises OSError."""
        if self._kept is None:
            self._kept = reserve_ports(settings, self._binding)
        kept = self._kept
        return ReservedPorts(
            [stack.enter_context(each.dup()) for each in kept.clients],
            stack.enter_context(kept.internal.dup()),
            None if kept.admin is None else stack.enter_context(kept.admin.dup()),
        )

    def close(self) -> None:
        """Give the ports back."""
        self._binding.close()
        self._kept = None
