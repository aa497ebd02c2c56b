"""Fetches jars from the registries that this machine's Maven, or Spark's own Ivy, is set up for.

Standard library only, because the set-up uses it before anything is installed.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anabranch.spark.jars import NOT_NEEDED, MavenCoordinate
from anabranch.spark.java import JavaNotFoundError, SparkNotFoundError, cache_folder, spark_environment

COMPLAINT = re.compile(r"not found|unresolved|unknown host|refused|timed out|could not|\[ERROR\]|error:", re.IGNORECASE)
IN_SPARK = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
SEPARATE_GROUPS = ("org.apache.spark", "org.apache.iceberg", "io.delta")
"""Groups whose jars Ivy fetches one by one: the dependencies that they name have other versions."""


class FetchError(RuntimeError):
    """A program or a jar cannot be fetched on this machine. The text says why, in one line."""


def run(*command: str | Path, environ: dict[str, str] | None = None) -> None:
    """Run a program quietly. Raises FetchError with its output when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | (environ or {})
    )
    if done.returncode:
        words = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        complaint = next((line for line in words if COMPLAINT.search(line)), words[-1] if words else "no output")
        raise FetchError(f"{Path(command[0]).name} failed ({done.returncode}): {complaint[:200]}")


def fetch_jars(wanted: Sequence[MavenCoordinate], folder: Path) -> list[Path]:
    """Fetch those jars that the folder lacks, and return the paths of all. Raises FetchError."""
    missing = [each for each in wanted if not (folder / each.file_name).is_file()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that each jar is renamed into it whole.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".jars-") as name:
            work = Path(name)
            has_maven = shutil.which("mvn") is not None
            found = fetch_with_maven(work, missing, transitive=False) if has_maven else fetch_with_ivy(work, missing)
            if lost := [each.file_name for each in missing if not (found / each.file_name).is_file()]:
                raise FetchError(f"not found: {', '.join(lost)}")
            for each in missing:
                (found / each.file_name).replace(folder / each.file_name)
    return [folder / each.file_name for each in wanted]


def fetch_with_maven(work: Path, coordinates: Sequence[MavenCoordinate], *, transitive: bool) -> Path:
    """Copy jars into a folder under `work`, with a temporary project that has these dependencies. Raises FetchError."""
    if shutil.which("mvn") is None:
        raise FetchError("needs Maven")
    stop = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "\n".join(
        f"<dependency><groupId>{c.group}</groupId><artifactId>{c.artifact}</artifactId><version>{c.version}</version>"
        f"<classifier>{c.classifier}</classifier>{'' if transitive else stop}</dependency>"
        for c in coordinates
    )
    (work / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>anabranch</groupId><artifactId>tools</artifactId>"
        f"<version>1</version>\n<dependencies>\n{dependencies}\n</dependencies></project>\n"
    )
    jars = work / "jars"
    # A separate repository: a ~/.m2 with only POMs would make Spark's Ivy fail later.
    places = (f"-Dmaven.repo.local={cache_folder() / 'm2'}", f"-DoutputDirectory={jars}")
    run("mvn", "-q", "-B", "-Dstyle.color=never", "-f", work / "pom.xml", *places, "dependency:copy-dependencies")
    return jars


def fetch_with_ivy(work: Path, wanted: Sequence[MavenCoordinate]) -> Path:
    """Copy jars into a folder under `work`, with `spark-submit --packages`. Raises FetchError.

    Ivy fetches dependencies as well, which are dropped, and takes one version of each, so some jars are fetched alone.
    """
    try:
        environ = spark_environment()
    except (JavaNotFoundError, SparkNotFoundError) as error:
        raise FetchError(str(error)) from error
    (work / "nothing.py").write_text("")
    submit = Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"
    together = [each for each in wanted if each.group not in SEPARATE_GROUPS]
    for each in ([one] for one in wanted if one not in together):
        _resolve_with_ivy(submit, work, environ, each, [other for other in wanted if other not in each])
    if together:
        _resolve_with_ivy(submit, work, environ, together, [])
    jars = work / "jars"
    jars.mkdir()
    for c in wanted:
        downloaded = work / "ivy" / "jars" / f"{c.group}_{c.file_name}"
        if downloaded.is_file():
            downloaded.rename(jars / c.file_name)
    return jars


def _resolve_with_ivy(
    submit: Path,
    work: Path,
    environ: dict[str, str],
    packages: Sequence[MavenCoordinate],
    others: Sequence[MavenCoordinate],
) -> None:
    excluded = [*IN_SPARK, *NOT_NEEDED, *(f"{each.group}:{each.artifact}" for each in others)]
    names = ("--packages", ",".join(map(str, packages)), "--exclude-packages", ",".join(excluded))
    run(submit, *names, "--conf", f"spark.jars.ivy={work / 'ivy'}", work / "nothing.py", environ=environ)
