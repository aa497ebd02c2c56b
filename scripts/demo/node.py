"""The demo's node: a real process, started and stopped as an operator would."""

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

from benchmarks.lab.processes import free_port
from scripts.demo.clients import DemoError

START_S = 60
STOP_S = 60
HTTP_S = 120
LOG_LINES = 15


class NodeProcess:
    """`anabranch serve` on free loopback ports over a data directory. It can be restarted."""

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
        """Bootstrap servers for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def admin_address(self) -> str:
        """`host:port` of the admin port."""
        return f"127.0.0.1:{self.admin_port}"

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> float:
        """Start, and wait until it accepts connections. Returns the seconds it took. Raises DemoError."""
        started = time.monotonic()
        command = [sys.executable, "-m", "anabranch", "serve", *self.flags]
        with self.log.open("ab") as log:
            # In a separate session: Ctrl-C reaches only the demo, which stops the node in an orderly way.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while not self._accepts():
            if not self.running:
                raise DemoError(f"the node did not start (exit code {self._process.returncode}):\n{self.last_words()}")
            if time.monotonic() - started > START_S:
                raise DemoError(f"the node does not accept connections after {START_S} s:\n{self.last_words()}")
            time.sleep(0.02)
        return time.monotonic() - started

    def stop(self) -> float:
        """Stop with SIGTERM: drain, upload, trim, exit 0. Returns the seconds it took. Raises DemoError."""
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

    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def end(self) -> None:
        """Make sure that the process has ended."""
        with contextlib.suppress(DemoError):
            self.stop()
        self.kill()

    def admin(self, method: str, path: str) -> Any:
        """Send a request of the admin port's API, and return the JSON of its answer. Raises DemoError."""
        request = urllib.request.Request(f"http://{self.admin_address}/api/v1{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=HTTP_S) as response:
                return json.load(response)
        except (urllib.error.URLError, TimeoutError, json.JSONDecodeError) as error:
            raise DemoError(f"{method} {path} on the admin port: {error}") from error

    def last_words(self) -> str:
        """Return the end of the node's log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _accepts(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def verify_storage(*flags: str) -> tuple[str, int]:
    """Have every object read and compared with the catalog. Returns the last line of the answer, and the exit code."""
    command = [sys.executable, "-m", "anabranch", "storage", "verify", "--deep", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return words[-1] if words else "no output", done.returncode
