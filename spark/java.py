"""Find a Java runtime that Spark can use: the machine's own, or the one that the set-up took from PyPI.

Standard library only, because the set-up asks the same question before anything else is there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

JAVA_VERSION_MIN = 17
CACHED_JAVA = "java-21"
"""Folder in the cache of tools that holds the runtime from PyPI behind a wrapper; it is used as JAVA_HOME."""


class JavaNotFoundError(RuntimeError):
    """No Java that Spark can use; the text says where was looked and what was found there."""


class SparkNotFoundError(RuntimeError):
    """pyspark is not installed."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where programs and jars that don't belong into a checkout are kept: ANABRANCH_CACHE or the user's cache."""
    if named := environ.get("ANABRANCH_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "anabranch"


def parse_version(text: str) -> int | None:
    """Major version in what `java -version` prints (`1.8.0_292` is 8), or None."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def java_version(program: Path) -> int | None:
    """Major version of a `java` program, or None when it does not run."""
    try:
        done = subprocess.run([program, "-version"], check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None


def find_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """A JAVA_HOME with Java 17 or newer: JAVA_HOME itself, `java` on the PATH, then the set-up's own.

    Raises JavaNotFoundError.
    """
    looked: list[str] = []
    for source, home in _candidates(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        looked.append(f"{source} ({home}): {'does not run' if version is None else f'Java {version}'}")
    found = "; ".join(looked) or "nothing in JAVA_HOME, on the PATH or in the cache of tools"
    raise JavaNotFoundError(f"Spark needs Java {JAVA_VERSION_MIN} or newer. Found: {found}")


def spark_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables under which Spark's programs and sessions of this Python work on this machine alone.

    Raises JavaNotFoundError and SparkNotFoundError.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkNotFoundError("pyspark is not installed: pip install 'anabranch[spark]'")
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
