"""Runs the Spark tests on the next minor version of Spark, in a separate environment in the tools cache.

The project pins one version of pyspark and supports two minor versions. This script makes an environment with the newer
one under all other pins, fetches its jars, and runs the tests there. Tests of table formats without a release for it
skip themselves. The environment is recreated when its inputs have changed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from anabranch.spark.java import cache_folder

ROOT = Path(__file__).resolve().parent.parent
VERSION = "4.2.0"
UNPINNED = ("pyspark", "py4j")
"""Packages whose version depends on pyspark's."""
TESTS = ("tests/spark", "tests/interop/test_spark_source.py")


def constraints() -> str:
    """Return the project's pins without those of pyspark."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] not in UNPINNED)


def fingerprint() -> str:
    """Return a hash of the environment's inputs."""
    parts = (sys.version, str(ROOT), VERSION, constraints(), (ROOT / "pyproject.toml").read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def make_environment(place: Path) -> None:
    """Bring the environment up to date. It needs no separate pip."""
    stamp = place / "anabranch-stamp"
    if stamp.is_file() and stamp.read_text() == fingerprint():
        return
    print(f"creating {place} with pyspark {VERSION}", flush=True)
    venv.create(place, clear=True, symlinks=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(constraints())
        pins.flush()
        wanted = ["-c", pins.name, "-e", ".[postgres,spark,demo]", "--group", "dev", f"pyspark=={VERSION}"]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(place / "bin" / "python")]
        subprocess.run([*pip, "install", "-q", *wanted], check=True, cwd=ROOT)
    stamp.write_text(fingerprint())


def main(arguments: Sequence[str]) -> int:
    """Make the environment, fetch the jars, and run pytest with `arguments`. Returns its exit code."""
    place = cache_folder() / f"venv-spark-{VERSION}"
    python = str(place / "bin" / "python")
    try:
        make_environment(place)
        subprocess.run([python, "-m", "scripts.tools", "java", "spark"], check=True, cwd=ROOT)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    # Tests must start the programs of that environment by name.
    environ = os.environ | {"PATH": f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # The checkout's own cache belongs to its own environment.
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *arguments]
    return subprocess.run(command, check=False, cwd=ROOT, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
