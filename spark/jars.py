"""Jars for Spark's Kafka source, the table formats and S3, by version of Spark, and the set-up's folder for them.

Standard library only, because the set-up uses the same table.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from anabranch.spark.java import cache_folder

SCALA = "2.13"
CLIENT_JARS = {
    "4.1": (("org.apache.kafka", "kafka-clients", "3.9.1"), ("org.apache.commons", "commons-pool2", "2.12.1")),
    "4.2": (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1")),
}
"""Dependencies of the Kafka source, by minor version of Spark."""
TABLE_JARS: Mapping[str, Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "4.1": {
        "iceberg": (("org.apache.iceberg", f"iceberg-spark-runtime-4.1_{SCALA}", "1.12.0"),),
        "delta": (("io.delta", f"delta-spark_4.1_{SCALA}", "4.4.0"), ("io.delta", "delta-storage", "4.4.0")),
    },
    "4.2": {
        "delta": (("io.delta", f"delta-spark_4.2_{SCALA}", "4.4.0"), ("io.delta", "delta-storage", "4.4.0")),
    },
}
"""Jars of the table formats. A minor version of Spark without jars for a format cannot write it."""

SDK = "software.amazon.awssdk"
HADOOP_AWS = {"4.1": ("3.4.2", "2.29.52"), "4.2": ("3.5.0", "2.35.4")}
"""Versions of Hadoop's `s3a://` file system and of the AWS SDK that it was built with, by minor version of Spark."""
SDK_MODULES = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-json-protocol", "aws-query-protocol"),
    *("aws-xml-protocol", "checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws"),
    *("http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi"),
    *("netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi", "s3"),
    *("s3-transfer-manager", "sdk-core", "sso", "ssooidc", "sts", "third-party-jackson-core", "utils"),
)
"""Modules of the AWS SDK that `s3a://` and the SDK's own search for credentials use: 11 MB. Hadoop's pom names a bundle
of all services instead (`NOT_NEEDED`)."""
SDK_MODULES_SINCE = {"4.2": ("utils-lite",)}
NOT_NEEDED = (f"{SDK}:bundle",)
"""All services of AWS, 640 MB, on which Hadoop's pom depends."""


class SparkVersionError(RuntimeError):
    """No jars are known for the installed pyspark."""


@dataclass(frozen=True, slots=True)
class MavenCoordinate:
    """A Maven coordinate."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    """Name of a second jar of the artifact."""

    def __str__(self) -> str:
        """Return the usual notation, as in `--packages`."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """Name of the jar."""
        return f"{self.artifact}-{self.version}{self.classifier and '-'}{self.classifier}.jar"


JDBC_JARS = {"postgresql": MavenCoordinate("org.postgresql", "postgresql", "42.7.8")}
"""JDBC drivers for catalogs, by the second part of their URL."""


def kafka_source_jars(spark_version: str) -> tuple[MavenCoordinate, ...]:
    """Return the jars of the Kafka source and sink for a version of Spark, with transitive ones.

    The token provider has the same version for all: the source loads it, but it does nothing without Kerberos or
    delegation tokens, and its interface has not changed since 4.0. Raises SparkVersionError.
    """
    line = spark_line(spark_version)
    return (
        MavenCoordinate("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", spark_version),
        MavenCoordinate("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", "4.0.0"),
        *(MavenCoordinate(*parts) for parts in CLIENT_JARS[line]),
    )


def spark_line(spark_version: str) -> str:
    """Return the minor version of Spark (`4.1`) of a version. Raises SparkVersionError for an unknown one."""
    line = ".".join(spark_version.split(".")[:2])
    if line not in CLIENT_JARS:
        raise SparkVersionError(
            f"pyspark {spark_version} is installed; this project works with {' and '.join(CLIENT_JARS)}"
        )
    return line


def table_jars(spark_version: str, table_format: str) -> tuple[MavenCoordinate, ...]:
    """Return the jars of a table format; none for Parquet, which is part of Spark. Raises SparkVersionError."""
    if table_format == "parquet":
        return ()
    line = spark_line(spark_version)
    if table_format not in TABLE_JARS[line]:
        others = " or ".join(other for other, known in TABLE_JARS.items() if table_format in known)
        here = " or ".join([*TABLE_JARS[line], "parquet"])
        raise SparkVersionError(
            f"there is no {table_format} for Spark {line}: install 'pyspark=={others}.*', or write format {here}"
        )
    return tuple(MavenCoordinate(*parts) for parts in TABLE_JARS[line][table_format])


def s3_jars(spark_version: str) -> tuple[MavenCoordinate, ...]:
    """Return the jars of `s3a://`. Raises SparkVersionError."""
    line = spark_line(spark_version)
    hadoop, sdk = HADOOP_AWS[line]
    return (
        MavenCoordinate("org.apache.hadoop", "hadoop-aws", hadoop),
        *(MavenCoordinate(SDK, each, sdk) for each in (*SDK_MODULES, *SDK_MODULES_SINCE.get(line, ()))),
        MavenCoordinate("software.amazon.eventstream", "eventstream", "1.0.1"),
        MavenCoordinate("org.reactivestreams", "reactive-streams", "1.0.4"),
    )


def jdbc_jars(url: str) -> tuple[MavenCoordinate, ...]:
    """Return the driver for a JDBC URL; none for a database that is not known here."""
    _, _, rest = url.partition(":")
    driver = JDBC_JARS.get(rest.partition(":")[0])
    return () if driver is None else (driver,)


def all_jars(spark_version: str) -> tuple[MavenCoordinate, ...]:
    """Return all jars that the set-up fetches for a version of Spark. Raises SparkVersionError."""
    return (
        *kafka_source_jars(spark_version),
        *(jar for each in TABLE_JARS[spark_line(spark_version)] for jar in table_jars(spark_version, each)),
        *JDBC_JARS.values(),
        *s3_jars(spark_version),
    )


_MADE_FOR = re.compile(
    r"(?P<name>iceberg-spark-runtime|delta-spark|spark-[a-z0-9-]*?)(?:[-_](?P<spark>\d\.\d))?_(?P<scala>2\.\d+)"
)


def check_jars(jars: str, spark_version: str) -> None:
    """Check that jars or packages given by the user are for this Spark and Scala. Raises SparkVersionError."""
    line = spark_line(spark_version)
    for jar in filter(None, (part.strip() for part in jars.split(","))):
        name = re.split(r"[/:]", jar)[-1] if jar.endswith(".jar") else jar
        found = _MADE_FOR.search(name)
        if found is None:
            continue
        if found["scala"] != SCALA:
            raise SparkVersionError(f"{jar} is for Scala {found['scala']}, but this Spark is built with Scala {SCALA}")
        own = re.search(r"^\W(\d+\.\d+)\.\d+", name[found.end() :])
        made_for = found["spark"] or (own[1] if own and found["name"].startswith("spark-") else None)
        # The token provider is the same for all versions (see `kafka_source_jars`).
        if made_for not in {None, line} and "token-provider" not in name:
            raise SparkVersionError(f"{jar} is for Spark {made_for}, but pyspark {spark_version} is installed")


def installed_spark_version() -> str:
    """Return the version of the installed pyspark, without importing it."""
    return version("pyspark")


def jars_folder(spark_version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the set-up stores the jars for a version of Spark."""
    return cache_folder(environ) / f"spark-{spark_version}"


def cached(
    wanted: Sequence[MavenCoordinate], spark_version: str, environ: Mapping[str, str] = os.environ
) -> Sequence[Path] | None:
    """Return the jars if the set-up has fetched all of them, else None."""
    folder = jars_folder(spark_version, environ)
    jars = [folder / coordinate.file_name for coordinate in wanted]
    return jars if all(jar.is_file() for jar in jars) else None
