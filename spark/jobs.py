"""Commands over a pipeline that need a Spark session. Importing it imports PySpark."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.addresses import host_port
from anabranch.spark.checkpoints import committed_offsets
from anabranch.spark.freshness import Freshness, parse_offsets
from anabranch.spark.listener import PipelineListener, group_commit, serve_metrics
from anabranch.spark.pipeline.errors import PipelineError, SettingError, reason_of
from anabranch.spark.pipeline.iceberg import catalog_settings
from anabranch.spark.pipeline.maintenance import maintain_now
from anabranch.spark.pipeline.replay import Replayed
from anabranch.spark.pipeline.replay import replay as replay_now
from anabranch.spark.pipeline.run import ANSI, RunningPipeline, start_pipeline
from anabranch.spark.pipeline.sections import TableFormat
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import source_options
from anabranch.spark.session import build_session, quiet_errors
from anabranch.spark.status import LagUnknown, lag_reader

POLL_S = 0.2
LISTENER_TIMEOUT_S = 60
REASONS_SHOWN = 20
ANOTHER_DRIVER = (
    "concurrently using",
    "should be empty on batch 0",
    "Race while writing batch",
    "ConcurrentTransactionException",
)
"""Parts of Spark's and Delta's errors when another query writes to the checkpoint, or has written the commit."""


@contextmanager
def session_for(
    pipeline: PipelineSettings, what: str, master: str | None, settings: Mapping[str, str], *, after_interrupt: str
) -> Iterator[SparkSession]:
    """Provide a session for `what` is done with a pipeline. Raises PipelineError for what Spark raises.

    An interrupt ends the work, and `after_interrupt` is printed.
    """
    quiet_errors()
    catalogs = catalog_settings(pipeline) if pipeline.table.format is TableFormat.ICEBERG else {}
    spark = build_session(
        f"anabranch {pipeline.name}",
        master=master or pipeline.spark.master,
        settings={ANSI: "false", **catalogs, **pipeline.spark.conf, **settings},
        table_formats=[pipeline.table.format],
        s3=pipeline.uses_s3,
        jdbc_url=(pipeline.catalog.uri or "") if pipeline.catalog.type == "jdbc" else "",
    )
    try:
        yield spark
    except PySparkException as error:
        raise PipelineError(f"{what} failed: {reason_of(error)}{hint_of(str(error))}") from error
    except KeyboardInterrupt:
        silence_shutdown(spark)
        click.echo(f"stopped; {after_interrupt}", err=True)
    finally:
        spark.stop()


def maintain(spark: SparkSession, pipeline: PipelineSettings, console: Console) -> None:
    """Maintain the tables of a pipeline, and print what was done."""
    with console.status(f"{pipeline.name}: maintenance"):
        for line in maintain_now(spark, pipeline):
            console.print(line, highlight=False)


def replay(
    spark: SparkSession, pipeline: PipelineSettings, where: str | None, console: Console, *, dry_run: bool
) -> None:
    """Put the dead letters of a pipeline back, and print the outcome."""
    with console.status(f"{pipeline.name}: dead letters"):
        found = replay_now(spark, pipeline, where, dry_run=dry_run)
    show_replayed(pipeline, found, console, dry_run=dry_run)


def show_replayed(pipeline: PipelineSettings, found: Replayed, console: Console, *, dry_run: bool) -> None:
    """Print the outcome of a replay."""
    if not found.total:
        topic = pipeline.dead_letters.topic
        place = pipeline.dead_letter_place if topic is None else f"topic {topic}"
        console.print(f"{place}: no dead letters to put back", highlight=False)
        return
    done = "can be put back" if dry_run else f"put back into {pipeline.table.place}"
    lines = [f"{found.put_back:,} of {found.total:,} dead letters {done}"]
    if found.there_before:
        lines.append(f"{found.there_before:,} were in the table already")
    console.print("; ".join(lines), highlight=False)
    if not found.reasons:
        return
    rows = Table("dead letters that stay", "reason", box=SIMPLE_HEAD)
    rows.columns[0].justify = "right"
    for reason, count in islice(found.reasons.items(), REASONS_SHOWN):
        rows.add_row(f"{count:,}", Text(reason))
    console.print(rows)
    if (more := len(found.reasons) - REASONS_SHOWN) > 0:
        console.print(f"and {more:,} other reasons", highlight=False)


def run_pipeline(spark: SparkSession, pipeline: PipelineSettings, console: Console) -> None:
    """Run to the end or an interrupt, with the listener, and print the progress.

    Raises PipelineError, and what Spark raises.
    """
    operations = pipeline.operations
    with ExitStack() as stack:
        commit = None
        if operations.consumer_group is not None and pipeline.source.kind == "kafka":
            options = source_options(pipeline.source)
            commit = stack.enter_context(group_commit(spark, operations.consumer_group, options))
        counted: dict[int, int] = {}
        listener = PipelineListener(pipeline.name, commit, counted)
        if operations.metrics_port is not None:
            host = operations.metrics_host
            freshness = open_freshness(spark, pipeline, console)
            if freshness is not None:
                stack.callback(freshness.close)
            try:
                port = stack.enter_context(serve_metrics(host, operations.metrics_port, listener.metrics, freshness))
            except OSError as error:
                where = host_port(host, operations.metrics_port)
                raise SettingError("operations.metrics_port", f"cannot listen on {where}: {error.strerror}") from error
            console.print(f"metrics on http://{host_port(host, port)}/metrics", highlight=False)
        spark.streams.addListener(listener)
        stack.callback(spark.streams.removeListener, listener)
        running = start_pipeline(spark, pipeline, counted, lambda line: console.print(line, highlight=False))
        stack.callback(running.stop)
        with console.status(f"{pipeline.name}: starting") as status:
            for line in follow(running.queries, counted, lambda text: status.update(f"{pipeline.name}: {text}")):
                console.print(line, highlight=False)
                if running.batches is None and running.topic_ids is not None:
                    running.topic_ids.check()  # Spark's own sink has no hook before it writes
            wait_for_all(running)
            status.update(f"{pipeline.name}: rewriting small files")
            if rewritten := running.finish():
                console.print(f"{rewritten:,} small files rewritten", highlight=False)
        listener.terminated.wait(LISTENER_TIMEOUT_S)
        print_failures(running, listener, console)


def open_freshness(spark: SparkSession, pipeline: PipelineSettings, console: Console) -> Freshness | None:
    """Return what looks up the lag in seconds; None if that is not possible."""
    try:
        reader = lag_reader(pipeline)
    except LagUnknown as error:
        console.print(f"the lag in seconds is not measured: {error}", highlight=False)
        return None
    begun = parse_offsets(committed_offsets(spark, pipeline.checkpoint))
    return Freshness(pipeline.name, reader, pipeline.source.topics, begun)


def wait_for_all(running: RunningPipeline) -> None:
    """Wait for the end of all queries of a pipeline. Raises PipelineError if one failed."""
    try:
        # First the one that failed: the others are stopped then.
        for query in sorted(running.queries, key=lambda each: each.exception() is None):
            query.awaitTermination()
    except PySparkException as error:
        # The Python error is closer to the cause than Spark's report of it.
        cause = None if running.batches is None else running.batches.failure
        if isinstance(cause, PipelineError):
            raise cause from None
        hint = hint_of(f"{error} {cause}")
        raise PipelineError(f"the pipeline failed: {reason_of(cause or error)}{hint}") from error


def hint_of(text: str) -> str:
    """Return advice for errors that name another driver or deleted records."""
    if any(word in text for word in ANOTHER_DRIVER):
        return " (does another driver run on the same checkpoint? Only one at a time may)"
    if "failOnDataLoss" in text:
        return " (to continue without them: source.fail_on_data_loss = false)"
    return ""


def print_failures(running: RunningPipeline, listener: PipelineListener, console: Console) -> None:
    """Print failures that did not stop the pipeline."""
    if listener.metrics.last_failure:
        console.print(f"offsets were not written to the group: {listener.metrics.last_failure}", highlight=False)
    if running.batches is not None and running.batches.compaction_failure:
        console.print(f"small files were not rewritten: {running.batches.compaction_failure}", highlight=False)
    if running.batches is not None and running.batches.maintenance_failure:
        console.print(f"tables were not maintained: {running.batches.maintenance_failure}", highlight=False)


def silence_shutdown(spark: SparkSession) -> None:
    """Silence Spark's and py4j's errors about being stopped in the middle of work."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("OFF")


def follow(queries: Sequence[StreamingQuery], counted: Mapping[int, int], tell: Callable[[str], None]) -> Iterator[str]:
    """Follow the first query to its end, or until another one fails.

    Yields a line for each micro-batch with rows, and passes the status to `tell`. `counted` holds the number of rows of
    micro-batches where it is more accurate than Spark's. Does not raise the queries' errors: `awaitTermination` does.
    """
    query, *others = queries
    rows, seen = 0, -1
    active = True
    while active:
        # Not awaitTermination: an interrupt should arrive during a sleep rather than a call to the JVM.
        time.sleep(POLL_S)
        active = query.isActive and all(each.isActive or each.exception() is None for each in others)
        for progress in query.recentProgress:
            if progress["batchId"] <= seen or not progress["numInputRows"]:
                continue
            seen = progress["batchId"]
            batch_rows = counted.get(seen, progress["numInputRows"])
            rows += batch_rows
            seconds = max(progress["batchDuration"], 1) / 1000
            yield f"batch {seen}: {_rows(batch_rows)} in {seconds:.1f} s ({batch_rows / seconds:,.0f} rows/s)"
        tell(f"{_rows(rows)}; {query.status['message'].lower()}")
    yield f"{_rows(rows)} from this run"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
