"""Command line of the Spark jobs: `anabranch spark`, `python -m spark`, or `spark/__main__.py` under spark-submit."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.ingest import IngestError, IngestSettings, Period, source_options, start_ingest
from spark.jars import SparkVersionError
from spark.java import JavaNotFoundError, SparkNotFoundError
from spark.session import build_session

POLL_S = 0.2


class PairType(click.ParamType[tuple[str, str]]):
    """`name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name, text


PAIR = PairType()


@click.group(name="spark", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Spark jobs over topics."""


@main.command()
@click.option("--bootstrap-servers", "-b", default="127.0.0.1:9092", show_default=True, help="Nodes to ask first.")
@click.option("--topic", "-t", "topics", multiple=True, help="A topic; may be repeated.")
@click.option("--topic-pattern", help="Regular expression of topic names, instead of --topic.")
@click.option("--table", required=True, help="Folder or URL of the Parquet table.")
@click.option("--checkpoint", required=True, help="Folder or URL that only this job uses.")
@click.option("--schema", help="DDL of the JSON values, as 'id INT, name STRING'; @FILE reads it from a file.")
@click.option(
    "--period",
    type=click.Choice([period.value for period in Period]),
    default=Period.DAY.value,
    show_default=True,
    help="Grain of the table's partitions in time.",
)
@click.option(
    "--interval", help="Run on, with a micro-batch every so often, as '10 seconds'. Default: once, then stop."
)
@click.option("--starting-offsets", default="earliest", show_default=True, help="For a new checkpoint.")
@click.option("--offsets-per-batch-max", type=click.IntRange(min=1), help="Offsets of one micro-batch at most.")
@click.option("--option", "options", type=PAIR, multiple=True, help="More options of the Kafka source.")
@click.option("--conf", "settings", type=PAIR, multiple=True, help="Settings of the Spark session.")
@click.option("--master", help="Where Spark runs. Default: all cores of this machine.")
def ingest(
    *,
    topics: tuple[str, ...],
    schema: str | None,
    period: str,
    options: tuple[tuple[str, str], ...],
    settings: tuple[tuple[str, str], ...],
    master: str | None,
    **rest: Any,
) -> None:
    """Copy topics into a partitioned Parquet table, each record exactly once."""
    job = IngestSettings(topics=topics, schema=read_text(schema), period=Period(period), options=dict(options), **rest)
    try:
        source_options(job)
        spark = build_session("anabranch ingest", master=master, settings=dict(settings))
    except (IngestError, JavaNotFoundError, SparkNotFoundError, SparkVersionError) as error:
        raise click.ClickException(str(error)) from error
    try:
        query = start_ingest(spark, job)
        for line in follow(query):
            click.echo(line)
    except IngestError as error:
        raise click.ClickException(str(error)) from error
    except (StreamingQueryException, PySparkException) as error:
        raise click.ClickException(f"the job failed: {str(error).strip().splitlines()[0]}") from error
    except KeyboardInterrupt:
        quiet(spark)
        click.echo("stopped; the same command goes on from here", err=True)
    finally:
        spark.stop()


def quiet(spark: SparkSession) -> None:
    """Spark and its bridge are about to complain about being stopped in the middle."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("OFF")


def read_text(text: str | None) -> str | None:
    """The text itself, or what the file holds that `@FILE` names."""
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except OSError as error:
        raise click.BadParameter(f"{text[1:]}: {error.strerror}", param_hint="--schema") from error


def follow(query: StreamingQuery) -> Iterator[str]:
    """Wait for the end of a query; one line per micro-batch that had rows. Raises what the query failed with."""
    rows, seen = 0, -1
    active = True
    while active:
        # Not awaitTermination: an interrupt should find Python asleep rather than in a call to the JVM.
        time.sleep(POLL_S)
        active = query.isActive
        for progress in query.recentProgress:
            if progress["batchId"] <= seen or not progress["numInputRows"]:
                continue
            seen = progress["batchId"]
            rows += progress["numInputRows"]
            seconds = progress["batchDuration"] / 1000
            yield f"batch {seen}: {progress['numInputRows']:,} rows in {seconds:.1f} s"
    query.awaitTermination()
    yield f"{rows:,} rows in the table from this run"
