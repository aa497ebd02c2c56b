"""The native part under AddressSanitizer, which ends a process that uses memory wrongly, with a report.

Miri can run neither Python nor an io_uring. Here the part is built with the sanitizer and runs its own tests, and those
of Python for ring, log and lanes, in which all memory of Python is the sanitizer's. What the kernel reads and writes
for the ring is not seen. A use of freed memory is planted first, and must be found: else the sanitizer is not at work.

    python -m tests.native.sanitized      needs Linux, cargo, and gcc with its libasan
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scripts.bootstrap import NATIVE, ROOT, find_cargo
from tests.native.planted import TESTS, Planted, install, run_cargo

BLOCK_TESTS: Final = "tests/wal/test_native_block.py"
RING_TESTS: Final = ("tests/wal/test_device_ring.py", "tests/wal/test_device_uring.py", "tests/wal/test_log.py")
FREED: Final = Planted(
    "copied-freed",
    "bytes are copied out of memory that is freed already",
    "memory.rs",
    "let (begin, length) = (from.as_ptr(), from.len());",
    "let freed = from.to_vec();\nlet (begin, length) = (freed.as_ptr(), freed.len());\ndrop(freed);",
)


def host() -> str:
    """Return the name of this machine as a target of the compiler. With a target, build scripts stay as they are."""
    cargo = find_cargo()
    assert cargo is not None, "there is no cargo"
    lines = subprocess.run([Path(cargo).with_name("rustc"), "-vV"], check=True, capture_output=True, text=True).stdout
    return lines.split("host: ")[1].split()[0]


def runtime() -> str:
    """Return the path of the sanitizer's library, which an interpreter without it has to load first."""
    command = ["gcc", "-print-file-name=libasan.so"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(found).is_absolute(), "gcc has no libasan"
    return found


def cargo(folder: Path, command: str, **variables: str) -> None:
    """Run a command of cargo on the part in `folder/native`, with the sanitizer."""
    variables |= {"RUSTC_BOOTSTRAP": "1"}  # the option is not stable
    run_cargo(folder, command, "--target", host(), flags="-Zsanitizer=address", **variables)


def build(folder: Path) -> None:
    """Build the part from `folder/native`, and put it where Python imports it from `folder/module`."""
    cargo(folder, "build")
    install(folder, folder / "target" / host() / "debug")


def pytest(folder: Path, *tests: str, **variables: str) -> None:
    """Run tests of Python with the part in `folder/module`."""
    path = os.pathsep.join([str(folder / "module"), str(ROOT)])
    variables |= {"LD_PRELOAD": runtime(), "PYTHONMALLOC": "malloc", "PYTHONPATH": path, "ANABRANCH_NATIVE": "require"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", "--timeout", "900", *tests]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


def report_of(folder: Path, run: Callable[..., None], *arguments: str) -> str:
    """Run tests; return what the sanitizer reports. Raises CalledProcessError if a test fails for another reason."""
    reports = folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    try:
        run(folder, *arguments, ASAN_OPTIONS=f"detect_leaks=0:log_path={reports / 'report'}")
    except subprocess.CalledProcessError:
        if not any(reports.iterdir()):
            raise
    return "\n".join(file.read_text() for file in reports.iterdir())


def main() -> int:
    """Check the sanitizer, then the part; return 1 if there is a report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(NATIVE, folder / "native", ignore=shutil.ignore_patterns("target"))
        file = folder / "native" / "src" / FREED.file
        source = file.read_text()
        file.write_text(FREED.changed(source))
        build(folder)
        found = report_of(folder, pytest, BLOCK_TESTS)
        assert "heap-use-after-free" in found, f"the use of freed memory was not found: {found or 'no report'}"
        print("a planted use of freed memory is found", flush=True)
        file.write_text(source)
        build(folder)
        for run, arguments in ((cargo, ["test"]), (pytest, [*RING_TESTS, *TESTS])):
            report = report_of(folder, run, *arguments)
            print(report or f"{run.__name__} {' '.join(arguments)}: no report", flush=True)
            if report:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
