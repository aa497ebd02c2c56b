"""The node of the demo: a real process, started and stopped as an operator would."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from scripts.demo.clients import DemoError

START_S = 60
STOP_S = 60
HTTP_S = 120
LOG_LINES = 15


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NodeProcess:
    """`anabranch serve` on free loopback ports over a data directory; may be started again after it was stopped."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.log = folder / "node.log"
        self.port, self.admin_port = free_port(), free_port()
        self.flags = [
            f"--data-dir={folder / 'node'}", f"--port={self.port}", f"--admin-port={self.admin_port}",
            "--wal-allow-volatile=true", *flags
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """What a client is given to connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> float:
        """Start, and wait until it accepts connections; how long that took, in seconds. Raises DemoError."""
        started = time.monotonic()
        command = [sys.executable, "-m", "broker", "serve", *self.flags]
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C reaches the demo, and the demo stops the node in order.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while not self._accepts():
            if not self.running:
                raise DemoError(f"the node did not start (exit code {self._process.returncode}):\n{self.last_words()}")
            if time.monotonic() - started > START_S:
                raise DemoError(f"the node does not accept connections after {START_S} s:\n{self.last_words()}")
            time.sleep(0.02)
        return time.monotonic() - started

    def stop(self) -> float:
        """SIGTERM: drain, upload, trim, exit 0; how long that took, in seconds. Raises DemoError."""
        if self._process is None:
            return 0.0
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the node did not stop within {STOP_S} s:\n{self.last_words()}") from None
        self._process = None
        if status:
            raise DemoError(f"the node stopped with exit code {status}:\n{self.last_words()}")
        return time.monotonic() - started

    def end(self) -> None:
        """Make sure that nothing runs on, whatever happened before."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(DemoError):
            self.stop()
        if process.poll() is None:
            process.kill()
            process.wait()
        self._process = None

    def admin(self, method: str, path: str) -> Any:
        """Ask the admin port; what it answers, from JSON. Raises DemoError."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=HTTP_S) as response:
                return json.load(response)
        except (urllib.error.URLError, TimeoutError, json.JSONDecodeError) as error:
            raise DemoError(f"{method} {path} on the admin port: {error}") from error

    def last_words(self) -> str:
        """The end of the node's log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _accepts(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False
