"""Programs that tests need and pip does not install; `make tools` fetches them (scripts/tools.py names the folder).

A function returns the path of each. If the program is missing, the test is skipped with the reason, or fails if
ANABRANCH_REQUIRE_TOOLS=1 declares that this machine must have it.
"""

import functools
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from anabranch.spark.java import JavaNotFoundError, cache_folder, find_java_home
from scripts.tools import (
    CONNECT,
    FLINK_REGISTRY,
    KAFKA_STREAMS,
    KAFKA_VERSION,
    REST_CATALOG,
    TRINO_VERSION,
    go_program,
    present_chromium,
    present_environment,
    present_prometheus,
)


def missing(what: str) -> NoReturn:
    """Skip or fail the test because a program is missing."""
    if os.environ.get("ANABRANCH_REQUIRE_TOOLS") == "1":
        pytest.fail(f"{what} is missing and ANABRANCH_REQUIRE_TOOLS=1", pytrace=False)
    pytest.skip(f"{what} is missing: run `make tools`")


def versitygw() -> Path:
    """The S3 server's program."""
    program = go_program("versitygw")
    return program if program.is_file() else missing("the S3 server versitygw")


def minio() -> Path:
    """The program of the S3 server that encrypts. It is fetched only by name, because it takes minutes to build."""
    program = go_program("minio")
    return (
        program if program.is_file() else pytest.skip("MinIO is missing: run `.venv/bin/python -m scripts.tools minio`")
    )


def hydra() -> Path:
    """The identity provider's program."""
    program = go_program("hydra")
    return program if program.is_file() else missing("the identity provider Ory Hydra")


def otelcol() -> Path:
    """The OpenTelemetry Collector's program."""
    program = go_program("otelcol")
    return program if program.is_file() else missing("the OpenTelemetry Collector")


def openssl() -> Path:
    """The program of OpenSSL."""
    program = shutil.which("openssl")
    return Path(program) if program else missing("openssl")


def kcat() -> Path:
    """The kcat program."""
    program = shutil.which("kcat")
    return Path(program) if program else missing("kcat")


def chromium() -> Path:
    """The program of a Chromium browser."""
    return present_chromium() or missing("a Chromium browser")


def prometheus(program: str = "prometheus") -> Path:
    """A program of Prometheus: `prometheus` or `promtool`."""
    folder = present_prometheus()
    return folder / program if folder else missing("Prometheus")


def faketime() -> Path:
    """The library that gives a process another clock."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else missing("libfaketime (Debian: faketime)")


@functools.cache
def java() -> Path:
    """A `java` program, 17 or newer."""
    try:
        return find_java_home() / "bin" / "java"
    except JavaNotFoundError as error:
        missing(str(error))


def javac() -> Path:
    """Java's compiler."""
    program = java().with_name("javac")
    return program if program.is_file() else missing("a Java compiler")


def kafka_streams_class_path() -> str:
    """Class path of Kafka Streams with its examples."""
    folder = cache_folder() / KAFKA_STREAMS
    return f"{kafka_class_path()}:{folder}/*" if folder.is_dir() else missing("Kafka Streams")


def connect_class_path() -> str:
    """Class path of Connect with its file connectors, and of MirrorMaker 2."""
    folder = cache_folder() / CONNECT
    return f"{folder}/*" if folder.is_dir() else missing("Kafka Connect")


def kafka_class_path() -> str:
    """Class path of Apache Kafka: `java -cp <this> kafka.tools.StorageTool ...` and other tools by class name."""
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    return f"{folder}/*" if folder.is_dir() else missing("Apache Kafka")


def flink_registry_class_path() -> str:
    """Class path of Flink's format for Avro with a schema registry, and of Apache Kafka's clients."""
    folder = cache_folder() / FLINK_REGISTRY
    return f"{folder}/*:{kafka_class_path()}" if folder.is_dir() else missing("a registry client in Java")


def helm() -> Path:
    """Helm's program."""
    program = go_program("helm")
    return program if program.is_file() else missing("Helm")


def actionlint() -> Path:
    """The program that checks workflows."""
    program = go_program("actionlint")
    return program if program.is_file() else missing("actionlint")


def registry_client() -> Path:
    """The program that leads a client of schema registries in Go through what it offers."""
    program = go_program("registry-client")
    return program if program.is_file() else missing("the program of a registry client in Go")


def share_client() -> Path:
    """The program of a share consumer in Go."""
    program = go_program("share-client")
    return program if program.is_file() else missing("the program of a share consumer in Go")


def rack_client() -> Path:
    """The program of two consumers in Go."""
    program = go_program("rack-client")
    return program if program.is_file() else missing("the program of consumers in Go")


def site(program: str) -> Path:
    """A program of the environment that builds the documentation's site."""
    return _in_environment("site", program)


def packaging(program: str) -> Path:
    """A program of the environment for checks of packages."""
    return _in_environment("packaging", program)


def monitoring(program: str) -> Path:
    """A program of the environment of tools that watch lag."""
    return _in_environment("monitoring", program)


def recipes(program: str) -> Path:
    """A program of the environment with the libraries that recipes are about."""
    return _in_environment("recipes", program)


def _in_environment(name: str, program: str) -> Path:
    place = present_environment(name)
    return missing(program) if place is None else place / "bin" / program


def duckdb(program: str) -> Path:
    """A program of the environment of a DuckDB that reads Iceberg."""
    return _in_environment("duckdb", program)


def trino() -> Path:
    """Folder of Trino's server. It is fetched only by name, because it is large."""
    folder = cache_folder() / f"trino-{TRINO_VERSION}"
    return folder if folder.is_dir() else pytest.skip("Trino is missing: run `.venv/bin/python -m scripts.tools trino`")


def java_25() -> Path:
    """A `java` program that Trino runs on: of JAVA_25_HOME, or one of the system's."""
    homes = [Path(named)] if (named := os.environ.get("JAVA_25_HOME")) else sorted(Path("/usr/lib/jvm").glob("*25*"))
    programs = (home / "bin" / "java" for home in homes)
    return next((each for each in programs if each.is_file()), None) or pytest.skip("Java 25 is missing")


def rest_catalog() -> Path:
    """Folder of the jars of Iceberg's REST catalog."""
    folder = cache_folder() / REST_CATALOG
    return folder if folder.is_dir() else missing("the REST catalog of Iceberg")
