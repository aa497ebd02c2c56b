"""Which jars Spark's Kafka source needs for which version of Spark, and where the set-up keeps them.

Standard library only: the set-up reads the same table.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from spark.java import cache_folder

SCALA = "2.13"
CLIENT_JARS = {
    "4.1": (("org.apache.kafka", "kafka-clients", "3.9.1"), ("org.apache.commons", "commons-pool2", "2.12.1")),
    "4.2": (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1")),
}
"""What the Kafka source brings along, by the line of Spark."""


class SparkVersionError(RuntimeError):
    """The installed pyspark is not one that this project knows the jars of."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A Maven coordinate."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        """The usual notation, as `--packages` takes it."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """Name of the jar."""
        return f"{self.artifact}-{self.version}.jar"


def kafka_source_jars(spark_version: str) -> tuple[Coordinate, ...]:
    """The jars of the Kafka source and sink, transitive ones included, for a version of Spark.

    The token provider comes in one version for all: it is loaded by the source, but does nothing without Kerberos or
    delegation tokens, and its interface has not changed since 4.0. Raises SparkVersionError.
    """
    line = ".".join(spark_version.split(".")[:2])
    if line not in CLIENT_JARS:
        raise SparkVersionError(
            f"pyspark {spark_version} is installed; this project works with {' and '.join(CLIENT_JARS)}"
        )
    return (
        Coordinate("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", spark_version),
        Coordinate("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", "4.0.0"),
        *(Coordinate(*parts) for parts in CLIENT_JARS[line]),
    )


def installed_spark_version() -> str:
    """Version of the installed pyspark, without importing it."""
    return version("pyspark")


def jars_folder(spark_version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the set-up keeps the jars for a version of Spark."""
    return cache_folder(environ) / f"spark-{spark_version}"


def cached_jars(spark_version: str, environ: Mapping[str, str] = os.environ) -> Sequence[Path] | None:
    """The jars of the Kafka source when the set-up has fetched all of them, else None."""
    folder = jars_folder(spark_version, environ)
    jars = [folder / coordinate.file_name for coordinate in kafka_source_jars(spark_version)]
    return jars if all(jar.is_file() for jar in jars) else None
