"""The parent of the nodes of `anabranch serve --processes N`: starts them, starts again what ends, and stops them.

It is a program of its own, which imports the standard library only: it takes some MiB, and nothing of a node can stop
it. `broker.operator.cli.processes` replaces its own process by this one, with a `Plan` on the command line.

Each node has one end of a pair of sockets, its *lifeline*. A node writes a byte when it serves, and every few seconds
from then on: one that hangs is killed. It reads the numbers of nodes that were killed, so that it need not wait until
they are silent for long. It stops cleanly when the other end is closed: by the supervisor, when it is told to stop, or
by the kernel, when the supervisor was killed.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from time import monotonic  # noqa: TID251 - it has no event loop
from typing import Final, Self

FAILED: Final = 1
INTERRUPTED: Final = 130
"""Exit code after a second signal."""
RESTART_S: Final = (1.0, 30.0)
"""Shortest and longest pause before a node is started again; it doubles with each end.

It is long enough for the other nodes to take over: a node that comes back earlier recovers its log itself, and its
partitions wait for its whole start.
"""
SAYING_S: Final = 5.0
"""Interval at which a node says that it serves."""
LOOKING_S: Final = 10.0
LOOKS_MAX: Final = 6
"""A node hangs that has said nothing between so many looks in a row.

They are counted, and not the time, which passes while all processes are paused together.
"""
STEADY_S: Final = 60.0
"""Time of serving after which a node's next end is like the first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Commands and descriptors of the nodes, passed as JSON."""

    command: Sequence[str]
    """Command of every node; its number and the descriptor of its lifeline follow."""
    node_ids: Sequence[int]
    """Ids of the nodes, by number."""
    passed: Sequence[int]
    """Descriptors that the nodes inherit, and this process closes when it stops."""
    kept: Sequence[int]
    """Descriptors that the nodes inherit, and this process keeps to its end."""
    as_json: bool
    """Format of the lines of the log."""
    bootstrap: str
    """`host:port` for clients."""

    def text(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the plan that `text` wrote."""
        return cls(**json.loads(text))


@dataclass(slots=True)
class _Process:
    """A node, over all its lives."""

    number: int
    node_id: int
    running: subprocess.Popen[bytes] | None = None
    lifeline: socket.socket | None = None
    serves_since_s: float | None = None
    """None: it does not serve."""
    silent_looks: int = 0
    start_at_s: float = 0.0
    """Time of the next start, unless it runs."""
    pause_s: float = field(default=RESTART_S[0])
    is_done: bool = False
    """True if it has ended because a person told it alone to: it is not started again."""

    def leave(self) -> None:
        """Close the lifeline: the node stops."""
        if self.lifeline is not None:
            self.lifeline.close()
            self.lifeline = None


class Supervisor:
    """Runs the nodes of a plan from `run` on, until a signal."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._processes = [_Process(number, node_id) for number, node_id in enumerate(plan.node_ids)]
        self._signals, sink = socket.socketpair()
        sink.setblocking(False)
        self._sink = sink
        self._look_at_s = monotonic() + LOOKING_S
        self._stopping = False
        self._have_served = False
        """True once all nodes served at one time."""
        self._code = 0

    def run(self) -> int:
        """Run the nodes; return the exit code of this process."""
        signal.set_wakeup_fd(self._sink.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)  # the number arrives at the other end of the socket
        while self._due() or any(each.running for each in self._processes):
            self._start_due()
            self._wait()
            self._end_hanging()
            for process in self._processes:
                self._look_after(process)
        return self._code

    def _due(self) -> list[_Process]:
        """Return the nodes that are to be started, now or later."""
        return [each for each in self._processes if not (self._stopping or each.running or each.is_done)]

    def _wait(self) -> None:
        """Wait for a signal, a message of a node, or the time of a start or a look."""
        lifelines = {each.lifeline: each for each in self._processes if each.lifeline is not None}
        due_s = [each.start_at_s for each in self._due()]
        timeout_s = max(0.0, min([*due_s, self._look_at_s]) - monotonic())
        readable, _, _ = select.select([self._signals, *lifelines], (), (), timeout_s)
        for lifeline, process in lifelines.items():
            if lifeline not in readable:
                continue
            if _has_spoken(lifeline):
                process.silent_looks = 0
                if process.serves_since_s is None:
                    process.serves_since_s = monotonic()
                    self._note_serving()
            else:  # it ends
                process.leave()
        if self._signals in readable:  # afterwards: a stop closes the lifelines
            for number in self._signals.recv(64):
                if number == signal.SIGUSR1:
                    self._pass_on(number)
                elif number != signal.SIGCHLD:
                    self._told(signal.Signals(number).name)

    def _end_hanging(self) -> None:
        """Kill nodes that have served, and say nothing any more. They are started again."""
        if monotonic() < self._look_at_s:
            return
        self._look_at_s = monotonic() + LOOKING_S
        for process in self._processes:
            if process.running is None or process.lifeline is None or process.serves_since_s is None:
                continue
            process.silent_looks += 1
            if process.silent_looks > LOOKS_MAX:
                pid, silent_s = process.running.pid, round(LOOKS_MAX * LOOKING_S)
                self._say(
                    "error", f"the process of node {process.node_id} hangs: killing it", pid=pid, silent_s=silent_s
                )
                process.running.kill()

    def _pass_on(self, number: int) -> None:
        """Send a signal to the nodes that serve. Others may not handle it yet, and would end."""
        for process in self._processes:
            if process.running is not None and process.serves_since_s is not None:
                process.running.send_signal(number)

    def _told(self, name: str) -> None:
        """Stop, or at once if it was told so before."""
        if not self._stopping:
            self._say("info", "stopping", signal=name)
            self._stop()
            return
        self._say("warning", "second signal: exiting at once; acknowledged records are in the log", signal=name)
        for process in self._processes:
            if process.running is not None:
                process.running.kill()
        self._code = INTERRUPTED

    def _stop(self) -> None:
        self._stopping = True
        for descriptor in self._plan.passed:
            os.close(descriptor)
        for process in self._processes:
            process.leave()

    def _start_due(self) -> None:
        now_s = monotonic()
        for process in self._due():
            if now_s >= process.start_at_s:
                try:
                    self._start(process)
                except OSError as error:  # there is no memory now, or its program is being replaced
                    process.leave()
                    if not self._have_served:
                        raise
                    self._start_later(process, f"cannot be started, {error.strerror}")

    def _start(self, process: _Process) -> None:
        process.lifeline, end = socket.socketpair()
        process.silent_looks = 0
        plan = self._plan
        with end:
            process.running = subprocess.Popen(
                [*plan.command, str(process.number), str(end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(end.fileno(), *plan.passed, *plan.kept),
                start_new_session=True,  # Ctrl-C is for this process, which stops all of them
            )

    def _look_after(self, process: _Process) -> None:
        """Note the end of a node."""
        if process.running is None or (code := process.running.poll()) is None:
            return
        pid, serves_since_s = process.running.pid, process.serves_since_s
        process.running = process.serves_since_s = None
        process.leave()
        if self._stopping:
            self._code = self._code or (FAILED if code else 0)
            return
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._have_served:
            self._say(
                "error", f"the process of node {process.node_id} {ended} before all nodes served: stopping", pid=pid
            )
            self._code = FAILED
            self._stop()
            return
        if not code:
            process.is_done = True
            self._say("info", f"node {process.node_id} has stopped: it stays away until the next start of all", pid=pid)
            return
        if serves_since_s is not None and monotonic() - serves_since_s > STEADY_S:
            process.pause_s = RESTART_S[0]
        self._start_later(process, ended, pid=pid)
        for other in self._processes:
            if other.lifeline is not None:
                with suppress(OSError):  # it does not read, or has ended as well
                    other.lifeline.send(bytes([process.number]), socket.MSG_DONTWAIT)

    def _start_later(self, process: _Process, ended: str, **fields: object) -> None:
        process.start_at_s = monotonic() + process.pause_s
        self._say(
            "error",
            f"the process of node {process.node_id} {ended}: starting it again in {process.pause_s:g} s",
            **fields,
        )
        process.pause_s = min(2 * process.pause_s, RESTART_S[1])

    def _note_serving(self) -> None:
        if not self._have_served and all(each.serves_since_s is not None for each in self._processes):
            self._have_served = True
            self._say(
                "info",
                "all processes serve",
                bootstrap=self._plan.bootstrap,
                nodes=",".join(map(str, self._plan.node_ids)),
            )

    def _say(self, level: str, event: str, **fields: object) -> None:
        """Write a line to the log, in the form of those of the nodes."""
        if self._plan.as_json:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            line = json.dumps({**fields, "event": event, "level": level, "timestamp": now})
        else:
            shown = "".join(f" {name}={value}" for name, value in fields.items())
            line = f"{time.strftime('%H:%M:%S')} [{level:<9}] {event}{shown}"
        output = sys.stderr.fileno()
        with suppress(OSError):  # its reader has gone
            if select.select((), (output,), (), 0)[1]:  # else its reader hangs: the nodes are more important
                os.write(output, f"{line}\n".encode())


def _has_spoken(lifeline: socket.socket) -> bool:
    """Return whether a node says that it serves; False: it has ended."""
    try:
        return bool(lifeline.recv(1))
    except ConnectionResetError:  # it has not read all that it was told
        return False


if __name__ == "__main__":
    sys.exit(Supervisor(Plan.of(sys.argv[1])).run())
