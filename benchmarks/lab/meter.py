"""Use of CPU, memory, context switches and files by a broker during a load, from /proc."""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.processes import Broker

SWITCHES = re.compile(r"voluntary_ctxt_switches:\s+(\d+)")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
READ = re.compile(r"rchar: (\d+)")
RESET_PEAK = "5"
"""Written to clear_refs, it sets the peak of resident memory to the present value (proc(5))."""


@dataclass(frozen=True)
class Usage:
    """Use of a load. `file_bytes` were read from files, the page cache included."""

    cpu_s: float
    context_switches: int
    peak_bytes: int
    file_bytes: int


class BrokerMeter:
    """Measures a broker between `start` and `stop`; then `usage` is set."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._folder = Path(f"/proc/{broker.pid}")
        self.usage: Usage | None = None

    def start(self) -> None:
        """Take the counters, and forget the peak of memory so far."""
        (self._folder / "clear_refs").write_text(RESET_PEAK)
        self._switches = self._context_switches()
        self._file_bytes = self._file_bytes_read()
        self._cpu_s = self._broker.cpu_s()

    def stop(self) -> None:
        """Take them again."""
        cpu_s = self._broker.cpu_s() - self._cpu_s
        peak = PEAK.search((self._folder / "status").read_text())
        switches = self._context_switches()
        self.usage = Usage(
            cpu_s,
            sum(count - self._switches.get(thread, 0) for thread, count in switches.items()),
            int(peak[1]) * 1024 if peak else 0,
            self._file_bytes_read() - self._file_bytes,
        )

    def _context_switches(self) -> dict[str, int]:
        """Count them by thread, voluntary and involuntary. Those of a thread that ends are lost."""
        found = {}
        for thread in (self._folder / "task").iterdir():
            try:
                status = (thread / "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[thread.name] = sum(int(count) for count in SWITCHES.findall(status))
        return found

    def _file_bytes_read(self) -> int:
        found = READ.search((self._folder / "io").read_text())
        return int(found[1]) if found else 0
