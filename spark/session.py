"""Starts a Spark session with the Kafka source, on a laptop or a cluster. Errors name what is missing.

Under `spark-submit` the JVM is already running with its settings and jars: then its session is used.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from spark.jars import cached, check_jars, installed_spark_version, kafka_source_jars, table_jars
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


def build_session(
    name: str,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    table_formats: Sequence[str] = (),
) -> SparkSession:
    """Return a session named `name` with Spark's Kafka source. `settings` override the project's and Spark's.

    `master` None means all cores of this machine, or spark-submit's. `table_formats` are those of `jars.TABLE_JARS`
    that the session must be able to write. Raises JavaNotFoundError, SparkNotFoundError or SparkVersionError.
    """
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        given = {**_format_settings(table_formats), **(settings or {})}
    else:
        os.environ.update(spark_environment())
        builder = builder.master(master or "local[*]")
        given = _local_settings({**_format_settings(table_formats), **(settings or {})}, table_formats)
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


def _local_settings(settings: Mapping[str, str], table_formats: Sequence[str]) -> dict[str, str]:
    given = {**SETTINGS, **settings}
    quiet = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    given[DRIVER_OPTIONS] = f"{quiet} {given.get(DRIVER_OPTIONS, '')}".strip()
    version = installed_spark_version()
    check_jars(",".join(given.get(key, "") for key in ("spark.jars", "spark.jars.packages")), version)
    source, *_ = kafka_source_jars(version)
    tables = [jar for name in table_formats for jar in table_jars(version, name)]
    if jars := cached([*kafka_source_jars(version), *tables], version):
        given["spark.jars"] = ",".join(filter(None, (given.get("spark.jars"), *map(str, jars))))
    else:
        wanted = (given.get("spark.jars.packages"), str(source), *map(str, tables))
        given["spark.jars.packages"] = ",".join(filter(None, wanted))
    return given
