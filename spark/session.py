"""Starts a Spark session with the Kafka source, on a laptop or a cluster. Errors name what is missing.

Under `spark-submit` the JVM is already running with its settings and jars: then its session is used.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from anabranch.spark.jars import (
    NOT_NEEDED,
    MavenCoordinate,
    cached,
    check_jars,
    installed_spark_version,
    jars_folder,
    jdbc_jars,
    kafka_source_jars,
    s3_jars,
    table_jars,
)
from anabranch.spark.java import SessionError, spark_environment
from anabranch.spark.java_stderr import start_copier

ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers that print each error of a query with Java's stack trace, even if it is handled."""
CONNECT_SCHEME = "sc://"
LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"
"""Arrow in Java checks the bounds of each value that is read, which takes a tenth of the CPU of a direct read. Here
Arrow in Python has created and checked the data."""
REDACTION = "(?i)secret|password|passphrase|token|access[.]?key|jaas|keystore[.]key|private key"
"""Names and values that Spark does not show in plans, its interface and its event log: its default, and keys in PEM."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.redaction.regex": REDACTION,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Differences from Spark's defaults: the same table on every machine, secrets, and no ports that are not needed."""
EXTENSIONS = {
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
FORMAT_SETTINGS = {"delta": {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}}
"""Settings that a table format needs when the session starts."""
PACKAGES = "spark.jars.packages"
PYTHON_DAEMON = "anabranch.spark.python_daemon"
S3_REGION = "spark.hadoop.fs.s3a.endpoint.region"
S3_SETTINGS = {
    # Catalogs name places by either scheme.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    # Keys in Spark's settings, and else the usual places of AWS: environment, files, SSO, containers, instances.
    "spark.hadoop.fs.s3a.aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    ),
}
"""Settings for files in S3."""


def quiet_errors() -> None:
    """Silence PySpark's own report of errors, for commands that print one line for each."""
    for name in ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def build_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    table_formats: Sequence[str] = (),
    s3: bool = False,
    jdbc_url: str = "",
) -> SparkSession:
    """Return a session named `name` with Spark's Kafka source. `settings` override the project's and Spark's.

    `master` None means all cores of this machine, or spark-submit's. `table_formats` are those of `jars.TABLE_JARS`
    that the session must be able to write, `s3` says that it has files in S3, and `jdbc_url` is that of a catalog.
    Raises JavaNotFoundError, SessionError, SparkNotFoundError or SparkVersionError.
    """
    _refuse_connect(master, settings or {})
    given: dict[str, Any] = {**_format_settings(table_formats), **(_s3_settings() if s3 else {}), **(settings or {})}
    java_is_running = "PYSPARK_GATEWAY_PORT" in os.environ
    if not java_is_running:
        os.environ.update(spark_environment())
        version = installed_spark_version()
        tables = [jar for format_name in table_formats for jar in table_jars(version, format_name)]
        given = {"spark.master": master or "local[*]", **given}
        given = _local_settings(given, version, [*tables, *jdbc_jars(jdbc_url), *(s3_jars(version) if s3 else ())])
    given = {"spark.app.name": name, **given}

    def start() -> SparkSession:
        if not java_is_running:
            _start_java(given)
        return SparkSession.builder.config(map=given).getOrCreate()

    # In a separate thread: a JVM whose start is interrupted is left behind and never ends. And Spark's handler of
    # Ctrl-C, which it installs in the main thread only, would call the JVM from within the call that was interrupted.
    with ThreadPoolExecutor(1) as starter:
        return starter.submit(start).result()


def _refuse_connect(master: str | None, settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Refuse settings that make PySpark start a session of Spark Connect. Raises SessionError."""
    ways = {
        "master": master if (master or "").startswith(CONNECT_SCHEME) else None,
        **{name: settings.get(name) for name in ("spark.remote", "spark.api.mode")},
        **{name: environ.get(name) for name in ("SPARK_REMOTE", "SPARK_API_MODE")},
    }
    for name, value in ways.items():
        if value and value != "classic":
            raise SessionError(
                f"{name}={value} means Spark Connect, but this needs a driver of its own: "
                "leave it out, and use a master such as local[*] or spark://HOST:7077"
            )


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's JVM for this process, unless it has one. Raises SessionError."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark has no other way to give its JVM a standard error
        return
    launch: Any = launch_gateway
    copier = start_copier()
    try:
        gateway = launch(SparkConf().setAll(list(settings.items())), {"stderr": copier.stdin})
    except PySparkRuntimeError as error:
        copier.communicate()  # what Java has to say comes first
        home = os.environ["JAVA_HOME"]
        raise SessionError(f"{home}: Java ended before Spark had started, and says why above") from error
    assert copier.stdin is not None, "a pipe"
    copier.stdin.close()
    gateway.stderr_copier = copier
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above


def _format_settings(table_formats: Sequence[str]) -> dict[str, str]:
    given = {key: value for name in table_formats for key, value in FORMAT_SETTINGS.get(name, {}).items()}
    extensions = [EXTENSIONS[name] for name in table_formats if name in EXTENSIONS]
    return given | ({"spark.sql.extensions": ",".join(extensions)} if extensions else {})


def _s3_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings for files in S3. Of the environment, Hadoop itself reads the keys and not the region."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return S3_SETTINGS | ({S3_REGION: region} if region else {})


def _local_settings(settings: Mapping[str, str], version: str, further: Sequence[MavenCoordinate]) -> dict[str, str]:
    """Return the settings of a session that starts Java, with its jars. Raises SessionError, SparkVersionError.

    Jars come from the user's cache: the start asks no registry, unless the settings ask it for packages anyway.
    """
    given = {**SETTINGS, **settings}
    quiet = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    for name, own in ((DRIVER_OPTIONS, f"{quiet} {UNCHECKED_ARROW}"), (EXECUTOR_OPTIONS, UNCHECKED_ARROW)):
        given[name] = f"{own} {given.get(name, '')}".strip()
    if given["spark.master"].startswith("local"):
        given.setdefault("spark.python.daemon.module", PYTHON_DAEMON)  # workers elsewhere may have no Anabranch
    check_jars(",".join(given.get(key, "") for key in ("spark.jars", PACKAGES)), version)
    wanted = [*kafka_source_jars(version), *further]
    if jars := cached(wanted, version):
        given["spark.jars"] = ",".join(filter(None, (given.get("spark.jars"), *map(str, jars))))
    elif PACKAGES in given:
        source, *_ = wanted
        given[PACKAGES] = ",".join((given[PACKAGES], str(source), *map(str, further)))
        given["spark.jars.excludes"] = ",".join(filter(None, (given.get("spark.jars.excludes"), *NOT_NEEDED)))
    else:
        s3 = " --s3" if any(jar.artifact == "hadoop-aws" for jar in further) else ""
        raise SessionError(
            f"not all jars for Spark {version} are in {jars_folder(version)}: fetch them once, with "
            f"`anabranch spark jars{s3}`"
        )
    return given
