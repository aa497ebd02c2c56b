"""Environments of their own in the tools cache, for tests with other versions of packages than the project pins."""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def pins(without: Sequence[str]) -> str:
    """Return the lines of `constraints.txt` but those of some packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    left_out = {_normal(name) for name in without}
    return "".join(f"{line}\n" for line in lines if _normal(line.partition("==")[0]) not in left_out)


def _normal(name: str) -> str:
    """Return a name of a package as it is compared."""
    return name.lower().replace("_", "-").replace(".", "-")


def make_environment(place: Path, title: str, constraints: str, wanted: Sequence[str]) -> None:
    """Bring an environment up to date: it has what is `wanted` of pip, under `constraints`. It needs no separate pip.

    It is made anew when its inputs have changed. Raises CalledProcessError.
    """
    parts = (sys.version, str(ROOT), constraints, *wanted, (ROOT / "pyproject.toml").read_text())
    fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    stamp = place / "anabranch-stamp"
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return
    print(f"creating {place} with {title}", flush=True)
    venv.create(place, clear=True, symlinks=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(constraints)
        file.flush()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python_of(place))]
        subprocess.run([*pip, "install", "-q", "-c", file.name, *wanted], check=True, cwd=ROOT)
    stamp.write_text(fingerprint)


def python_of(place: Path) -> Path:
    """Return the interpreter of an environment."""
    return place / "bin" / "python"


def run_tests(place: Path, arguments: Sequence[str]) -> int:
    """Run pytest in an environment. Returns its exit code."""
    # Tests must start the programs of that environment by name.
    environ = os.environ | {"PATH": f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # The checkout's own cache belongs to its own environment.
    command = [str(python_of(place)), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode
