"""Detection of Spark Connect sessions, which have neither a Spark context nor a JVM."""

from pyspark.sql import SparkSession


class ConnectError(RuntimeError):
    """A session of Spark Connect that cannot do what is asked of it. The text is the one line to show."""


def is_connect(spark: object) -> bool:
    """Return whether a session is one of Spark Connect."""
    return not isinstance(spark, SparkSession)
