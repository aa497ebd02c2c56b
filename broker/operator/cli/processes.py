"""The processes of `anabranch serve --processes N`: how they are started, and what each of them is told.

The command checks all settings, locks the data directory, binds the ports that all nodes have, and becomes the small
program in `anabranch.supervisor`. That runs the command again for each node, with a hidden option more.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from time import monotonic, sleep  # noqa: TID251 - no event loop runs yet
from typing import TYPE_CHECKING, Final, NoReturn

import click

from anabranch.addresses import host_port
from anabranch.broker.node.logging.logs import is_pretty
from anabranch.broker.node.logging.writer import LineWriter
from anabranch.broker.node.net.ports import ReservedPorts, reserve_listeners, reserve_ports
from anabranch.broker.node.settings.data_dir import DataDirInUse, DataDirLock
from anabranch.broker.node.settings.model import PROCESSES_MAX, Settings
from anabranch.broker.node.settings.processes import settings_of_each
from anabranch.broker.operator.cli.node_process import LOG_FLUSH_TIMEOUT_S, log
from anabranch.supervisor import SAYING_S, Plan

if TYPE_CHECKING:
    from anabranch.broker.cluster.membership.environment import Environment

LOCK_NAME: Final = "PROCESSES"
"""File in the data directory that all processes of one start hold locked."""
LOCK_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """This process, as one of several."""

    settings: Settings
    node_ids: Sequence[int]
    """Ids of all nodes, by number."""
    shared: Sequence[socket.socket]
    """Bound sockets of the listeners, which all of them have."""
    lifeline: socket.socket
    """Ends when all stop."""

    @property
    def siblings(self) -> frozenset[int]:
        """Ids of the nodes of the others."""
        return frozenset(self.node_ids) - {self.settings.node.node_id}

    def watch(
        self,
        loop: asyncio.AbstractEventLoop,
        all_stop: Callable[[], None],
        ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Call `all_stop` once all processes are to stop, and `ended` with the id of a node whose process was killed.

        They replace those of an earlier call.
        """
        lifeline = self.lifeline.fileno()
        loop.remove_reader(lifeline)

        def read() -> None:
            numbers = b""
            with suppress(ConnectionResetError):  # the supervisor was killed before it had read all
                numbers = self.lifeline.recv(PROCESSES_MAX)
            if not numbers:
                loop.remove_reader(lifeline)
                all_stop()
            for number in numbers:
                ended(self.node_ids[number])

        loop.add_reader(lifeline, read)

    def say_serving(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the supervisor that the node serves, now and for as long as the loop runs."""
        with suppress(OSError):  # it was killed, or does not read
            self.lifeline.send(b"1", socket.MSG_DONTWAIT)
        loop.call_later(SAYING_S, self.say_serving, loop)

    def environment(self) -> "Environment":
        """Return the surroundings of the node, which are those of any node but for the sockets and the siblings."""
        from anabranch.broker.cluster.membership.environment import Environment

        return Environment(reserve_ports=self._reserve_ports, siblings=self.siblings)

    def _reserve_ports(self, settings: Settings, stack: AsyncExitStack) -> ReservedPorts:
        for each in self.shared:
            stack.callback(each.close)
        return reserve_ports(settings, stack)._replace(shared=self.shared)


process_option: Final = click.option("--process", type=(int, str, int, int), hidden=True)
"""Facts for the process of a node: how many there are, descriptors of the shared sockets with commas
between them, its number, and the descriptor of its lifeline."""


def own_process(settings: Settings, told: tuple[int, str, int, int]) -> OwnProcess:
    """Return what the option says. Raises SettingsError: the settings may have changed since the start."""
    count, shared, number, lifeline = told
    nodes = settings_of_each(settings, count)
    return OwnProcess(
        settings=nodes[number],
        node_ids=[each.node.node_id for each in nodes],
        shared=[_inherited(int(each)) for each in shared.split(",")],
        lifeline=_inherited(lifeline),
    )


def _inherited(descriptor: int) -> socket.socket:
    found = socket.socket(fileno=descriptor)
    found.set_inheritable(False)
    return found


def run_processes(settings: Settings, count: int, *, wait_s: float, writer: LineWriter) -> NoReturn:
    """Become the supervisor of several nodes. Raises SettingsError, DataDirError, OSError.

    The processes of a start whose supervisor was killed are stopping: they are waited for, up to `wait_s`.
    """
    nodes = settings_of_each(settings, count)
    with ExitStack() as stack:
        lock = _lock(settings, wait_s)
        stack.callback(lock.release_unused)
        shared = reserve_listeners(settings, stack)
        plan = Plan(
            command=[
                *_python("anabranch", *sys.argv[1:]),
                "--process",
                str(count),
                ",".join(str(each.fileno()) for each in shared),
            ],
            node_ids=[each.node.node_id for each in nodes],
            passed=[each.fileno() for each in shared],
            kept=[lock.fileno()],
            as_json=not is_pretty(settings.log),
            bootstrap=host_port(settings.listeners[0].advertised_host, _announced_port(settings, shared[0])),
        )
        for descriptor in (*plan.passed, *plan.kept):
            os.set_inheritable(descriptor, True)
        writer.flush(LOG_FLUSH_TIMEOUT_S)
        os.execv(sys.executable, _python("anabranch.supervisor", plan.text()))  # noqa: S606 - without a shell


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, *arguments]


def _announced_port(settings: Settings, bound: socket.socket) -> int:
    return settings.listeners[0].advertised_port or int(bound.getsockname()[1])


def _lock(settings: Settings, wait_s: float) -> DataDirLock:
    """Lock the data directory for one start. Raises DataDirError."""
    end_s, is_said = monotonic() + wait_s, False
    while True:
        try:
            return DataDirLock(settings.node.data_dir, LOCK_NAME)
        except DataDirInUse as error:
            if _lives(error.holder) or monotonic() > end_s:
                raise
        if not is_said:
            log.info("waiting for the processes of a start that was killed: they are stopping")
            is_said = True
        sleep(LOCK_POLL_S)


def _lives(process_id: str) -> bool:
    if not process_id.isdecimal():
        return True
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
