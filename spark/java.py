"""Finds a Java runtime for Spark: the machine's own, or the one that the set-up installed from PyPI.

Standard library only, because the set-up uses it before anything is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from anabranch.extras import missing

JAVA_VERSION_MIN = 17
JAVA_VERSION_MAX = 22
"""Java 23 refuses `Subject.getSubject` (JDK-8296244), which Hadoop calls in Spark before 4.2."""
CACHED_JAVA = "java-21"
"""Folder in the tools cache with the runtime from PyPI behind a wrapper. It is used as JAVA_HOME."""


class JavaNotFoundError(RuntimeError):
    """No suitable Java. The text lists the places that were searched and what was found there."""


class SparkNotFoundError(RuntimeError):
    """pyspark is not installed."""


class SessionError(RuntimeError):
    """A session that cannot be started. The text is the one line to show."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for programs and jars outside the checkout: ANABRANCH_CACHE or the user's cache."""
    if named := environ.get("ANABRANCH_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "anabranch"


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version` (8 for `1.8.0_292`), or None."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def java_version(program: Path) -> int | None:
    """Return the major version of a `java` program, or None if it does not run."""
    try:
        done = subprocess.run([program, "-version"], check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None


def find_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a JAVA_HOME on which Spark starts: JAVA_HOME itself, `java` on the PATH, or the set-up's own.

    Raises JavaNotFoundError.
    """
    newest = newest_java()
    looked: list[str] = []
    for source, home in _candidates(environ):
        found = java_version(home / "bin" / "java")
        if found is not None and found >= JAVA_VERSION_MIN and (newest is None or found <= newest):
            return home
        looked.append(f"{source} ({home}): {'does not run' if found is None else f'Java {found}'}")
    listed = "; ".join(looked) or "nothing in JAVA_HOME, on the PATH or in the cache of tools"
    needed = f"Java {JAVA_VERSION_MIN} or newer" if newest is None else f"Java {JAVA_VERSION_MIN} to {newest}"
    raise JavaNotFoundError(f"Spark needs {needed}. Found: {listed}")


def newest_java() -> int | None:
    """Return the newest Java version on which the installed Spark starts, or None if none is known to be too new."""
    try:
        major, minor = (int(part) for part in version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return None
    return JAVA_VERSION_MAX if (major, minor) < (4, 2) else None


def spark_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return environment variables for Spark's programs and sessions on this machine.

    Raises JavaNotFoundError and SparkNotFoundError.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkNotFoundError(str(missing("a Spark job", "pyspark")))
    return {
        "JAVA_HOME": str(find_java_home(environ)),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if home := environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home)))
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        found.append(("PATH", Path(program).resolve().parent.parent))
    cached = cache_folder(environ) / CACHED_JAVA
    if cached.is_dir():
        found.append(("cache of tools", cached))
    return found
