"""Starts a Spark session with the Kafka source, on a laptop or a cluster. Errors name what is missing.

Under `spark-submit` the JVM is already running with its settings and jars: then its session is used.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from spark.jars import (
    NOT_NEEDED,
    MavenCoordinate,
    cached,
    check_jars,
    installed_spark_version,
    jdbc_jars,
    kafka_source_jars,
    s3_jars,
    table_jars,
)
from spark.java import spark_environment

LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
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
    Raises JavaNotFoundError, SparkNotFoundError or SparkVersionError.
    """
    builder = SparkSession.builder.appName(name)
    given = {**_format_settings(table_formats), **(_s3_settings() if s3 else {}), **(settings or {})}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.update(spark_environment())
        builder = builder.master(master or "local[*]")
        version = installed_spark_version()
        tables = [jar for format_name in table_formats for jar in table_jars(version, format_name)]
        given = _local_settings(given, version, [*tables, *jdbc_jars(jdbc_url), *(s3_jars(version) if s3 else ())])
    for key, value in given.items():
        builder = builder.config(key, value)
    # In a separate thread: a JVM whose start is interrupted is left behind and never ends. And Spark's handler of
    # Ctrl-C, which it installs in the main thread only, would call the JVM from within the call that was interrupted.
    with ThreadPoolExecutor(1) as starter:
        return starter.submit(builder.getOrCreate).result()


def _format_settings(table_formats: Sequence[str]) -> dict[str, str]:
    given = {key: value for name in table_formats for key, value in FORMAT_SETTINGS.get(name, {}).items()}
    extensions = [EXTENSIONS[name] for name in table_formats if name in EXTENSIONS]
    return given | ({"spark.sql.extensions": ",".join(extensions)} if extensions else {})


def _s3_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings for files in S3. Of the environment, Hadoop itself reads the keys and not the region."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return S3_SETTINGS | ({S3_REGION: region} if region else {})


def _local_settings(settings: Mapping[str, str], version: str, further: Sequence[MavenCoordinate]) -> dict[str, str]:
    given = {**SETTINGS, **settings}
    quiet = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    given[DRIVER_OPTIONS] = f"{quiet} {given.get(DRIVER_OPTIONS, '')}".strip()
    check_jars(",".join(given.get(key, "") for key in ("spark.jars", "spark.jars.packages")), version)
    source, *_ = kafka_source_jars(version)
    if jars := cached([*kafka_source_jars(version), *further], version):
        given["spark.jars"] = ",".join(filter(None, (given.get("spark.jars"), *map(str, jars))))
    else:
        wanted = (given.get("spark.jars.packages"), str(source), *map(str, further))
        given["spark.jars.packages"] = ",".join(filter(None, wanted))
        given["spark.jars.excludes"] = ",".join(filter(None, (given.get("spark.jars.excludes"), *NOT_NEEDED)))
    return given
