"""Work that Spark's tasks do for the commands over a cluster's storage, and the one line that says why it failed."""

from typing import TypeVar

from pyspark import RDD
from pyspark.errors import PySparkException

from anabranch.s3stream.errors import StorageError

T = TypeVar("T")

OWN = "anabranch."


class TasksFailed(StorageError):
    """Spark gave up on a job."""


def collect(job: "RDD[T]") -> list[T]:
    """Return the results of a job in order. Raises TasksFailed."""
    try:
        return job.collect()
    except PySparkException as error:
        raise TasksFailed(f"Spark gave up: {reason_of_tasks(error)}") from error
    except Exception as error:
        # py4j's errors of a job are not PySparkExceptions.
        if type(error).__module__.split(".")[0] != "py4j":
            raise
        raise TasksFailed(f"Spark gave up: {reason_of_tasks(error)}") from error


def reason_of_tasks(error: Exception) -> str:
    """Return the line of a JVM's stack trace that names the cause: of an error of ours its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith(OWN):
            return line.partition(": ")[2] or line
    return next((line for line in lines if "Error:" in line), (lines or [type(error).__name__])[0])
