"""A node of a test broker, in a process of its own that takes orders."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from anabranch.broker.node.logging.stacks import END as END_OF_STACKS

START_TIMEOUT_S: Final = 60.0
ORDER_TIMEOUT_S: Final = 30.0
STACKS_TIMEOUT_S: Final = 5.0
STACKS_POLL_S: Final = 0.05
BAD_SETTING: Final = 2
"""Exit code of a broker that cannot start with its settings."""
PART_BYTES: Final = 64 * 1024
LOG_BYTES_MAX: Final = 64 * 1024
"""Part of the log that is shown: its end."""


class BrokerError(RuntimeError):
    """The broker does not start, or does not carry out a request. The text ends with its log, if there is one."""


class BrokerProcess:
    """One node, whose data and log are in a folder. Its ports stay the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.admin_port = 0
        """0 before the first start, and if it has no admin port."""
        self.is_paused = False
        self.has_faults = False
        self._process: subprocess.Popen[bytes] | None = None
        self._owed = 0
        """Answers to come: more than one after an order that was not answered in time."""
        self._received = b""
        """Bytes that have arrived of the answers to come."""

    @property
    def is_running(self) -> bool:
        """True while the process runs, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process is not None, "the broker was never started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Warnings and errors of the node, at most the last 64 KiB."""
        try:
            with (self.folder / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES_MAX))
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def spawn(self, settings: Mapping[str, object], ahead_ms: int) -> None:
        """Start the process, whose clocks are ahead by a time. It serves when `wait_ready` has returned."""
        flags = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
        # -P: a module of the tests that is named like one of the broker's must not take its place.
        command = [sys.executable, "-P", "-m", "anabranch", "dev", "--controlled", "--folder", str(self.folder)]
        self.folder.mkdir(exist_ok=True)
        ports = ("--port", str(self.port), "--admin-port", str(self.admin_port))
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *ports, "--ahead-ms", str(ahead_ms), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests
            )
        self.is_paused = self.has_faults = False
        self._owed = 1
        self._received = b""

    def wait_ready(self) -> None:
        """Wait until it serves. Raises BrokerError."""
        said = self.answer(START_TIMEOUT_S)
        self.port = _port(said["address"])
        self.admin_port = _port(said["admin"])

    def kill(self) -> None:
        """End the process (SIGKILL). No error if it does not run."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP). Nothing of it runs any more when this returns."""
        self.check_running()
        if self.is_paused:
            return
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        self.is_paused = True

    def resume(self) -> None:
        """Let the process go on after `pause`."""
        self.check_running()
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def check_running(self) -> None:
        """Raise BrokerError if it does not run."""
        if not self.is_running:
            raise BrokerError(f"the broker does not run{self.with_log()}")

    def order(self, **order: object) -> Mapping[str, Any]:
        """Give an order (`broker.operator.dev.orders`), and return the answer. Raises BrokerError."""
        self.send(**order)
        return self.answer()

    def send(self, **order: object) -> None:
        """Give an order, whose `answer` is yet to come. Raises BrokerError."""
        self.check_running()
        if self.is_paused:
            raise BrokerError("the broker is paused")
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BrokerError(f"the broker has ended{self.with_log()}") from None
        self._owed += 1

    def answer(self, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Return the answer to the last order, by default within `ORDER_TIMEOUT_S`. Raises BrokerError."""
        answer: Mapping[str, Any] = {}
        while self._owed:
            answer = self._read(ORDER_TIMEOUT_S if timeout_s is None else timeout_s)
            self._owed -= 1
        if "error" in answer:
            raise BrokerError(str(answer["error"]))
        return answer

    def _read(self, timeout_s: float) -> Mapping[str, Any]:
        """Return the next answer. Raises BrokerError."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(timeout_s * 1000):
                if self.port:  # it has served, so it can tell what it does
                    self._write_stacks()
                raise BrokerError(f"the broker did not answer within {timeout_s:g} s{self.with_log()}")
            part = os.read(pipe, PART_BYTES)
            if not part:
                if self._process.wait() == BAD_SETTING and self.log:
                    raise BrokerError(self.log.splitlines()[-1].removeprefix("Error: "))
                raise BrokerError(f"the broker has ended{self.with_log()}")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        found: Mapping[str, Any] = json.loads(line)
        return found

    def _write_stacks(self) -> None:
        """Let it write the stacks of all threads and tasks into its log, or of the main thread if its loop is stuck."""
        before = self.log.count(END_OF_STACKS)
        os.kill(self.pid, signal.SIGUSR1)
        until_s = time.perf_counter() + STACKS_TIMEOUT_S
        while self.log.count(END_OF_STACKS) == before and self.is_running and time.perf_counter() < until_s:
            time.sleep(STACKS_POLL_S)

    def with_log(self) -> str:
        """Return the log as the end of a message."""
        said = self.log.strip()
        return f":\n{said}" if said else ""


def _port(address: str) -> int:
    """Return the port of an address; 0: there is none."""
    return int(address.rpartition(":")[2] or 0)
