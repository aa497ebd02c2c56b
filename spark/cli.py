"""Command line of the Spark jobs: `anabranch spark`, `python -m spark`, or `spark/__main__.py` under spark-submit."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.addresses import host_port
from anabranch.client.errors import ClientError, PropertyError
from anabranch.output import emit, output_option
from spark.checkpoints import committed_offsets
from spark.fetch import FetchError, fetch_jars
from spark.freshness import Freshness, parse_offsets
from spark.jars import (
    JDBC_JARS,
    TABLE_JARS,
    SparkVersionError,
    installed_spark_version,
    jars_folder,
    kafka_source_jars,
    s3_jars,
    spark_line,
    table_jars,
)
from spark.java import JavaNotFoundError, SparkNotFoundError, find_java_home
from spark.kafka_options import client_properties
from spark.listener import PipelineListener, group_commit, serve_metrics
from spark.pipeline.check import check_pipeline
from spark.pipeline.decode import read_schema_file
from spark.pipeline.errors import PipelineError, SettingError, reason_of
from spark.pipeline.iceberg import catalog_settings
from spark.pipeline.maintenance import maintain_now
from spark.pipeline.replay import Replayed
from spark.pipeline.replay import replay as replay_now
from spark.pipeline.run import ANSI, RunningPipeline, start_pipeline
from spark.pipeline.settings import PipelineSettings, TableFormat, TriggerSection, is_in_s3
from spark.pipeline.source import bootstrap_of, client_options, source_options
from spark.pipeline.toml_file import located, read_pipeline
from spark.pipeline.topics import matching
from spark.preflight import BrokerError, check_brokers
from spark.session import SessionError, build_session
from spark.status import LagUnknown, lag_reader, read_status, show_status
from spark.storage_commands import compact, verify

POLL_S = 0.2
LISTENER_TIMEOUT_S = 60
REASONS_SHOWN = 20
ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers of each error in a query, with Java's stack trace, whether or not somebody handles it."""
SEVERAL_WRITERS = (
    "two writers of a Delta table in S3 can lose each other's commits: stop the pipeline, and say --stopped"
)
ANOTHER_DRIVER = (
    "concurrently using",
    "should be empty on batch 0",
    "Race while writing batch",
    "ConcurrentTransactionException",
)
"""Parts of Spark's and Delta's errors when another query writes to the checkpoint, or has written the commit."""


class PairType(click.ParamType[tuple[str, str]]):
    """Option type for `name=value`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not of the form name=value", param, ctx)
        return name, text


PAIR = PairType()


class PipelineFileError(click.ClickException):
    """A missing or invalid pipeline file. The exit code is that of a node with a bad settings file."""

    exit_code = 2


@click.group(name="spark", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Spark jobs over topics."""
    for name in ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


main.add_command(verify)
main.add_command(compact)


@main.command(short_help="Copy topics into a table, each record exactly once.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Read what exists now and end, whatever the file's trigger is.")
@click.option("--check", is_flag=True, help="Only check the file, versions, brokers, schema, SQL and catalog.")
@click.option("--master", help="Where Spark runs. Default: the file's, else all cores of this machine.")
@click.option("--conf", "settings", type=PAIR, multiple=True, help="Settings of the Spark session.")
def ingest(*, file: Path, once: bool, check: bool, master: str | None, settings: tuple[tuple[str, str], ...]) -> None:
    """Copy topics into a table as the TOML file FILE describes, each record exactly once."""
    pipeline = _read(file)
    with _one_line_errors(file):
        if once:
            pipeline = pipeline.model_copy(update={"trigger": TriggerSection()})
        _check_versions(pipeline)
        found = check_client(pipeline) if pipeline.source.kind == "kafka" else []
        spark = _build_session(pipeline, master, settings)
    try:
        with _one_line_errors(file):
            changes = check_pipeline(spark, pipeline, found)
        if check:
            for change in changes:
                click.echo(f"{file}: {change}")
            click.echo(f"{file}: ready to run")
            return
        run_pipeline(spark, pipeline, Console())
    except PipelineError as error:
        raise click.ClickException(located(error, file)) from error
    except PySparkException as error:
        raise click.ClickException(f"the pipeline failed: {reason_of(error)}") from error
    except KeyboardInterrupt:
        silence_shutdown(spark)
        click.echo("stopped; run the same command to continue from here", err=True)
    finally:
        spark.stop()


@main.command(short_help="Expire old versions of a pipeline's tables, and delete what nothing needs.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--master", help="Where Spark runs. Default: the file's, else all cores of this machine.")
@click.option("--conf", "settings", type=PAIR, multiple=True, help="Settings of the Spark session.")
@click.option("--stopped", is_flag=True, help="The pipeline does not run meanwhile; needed for Delta tables in S3.")
def maintain(*, file: Path, master: str | None, settings: tuple[tuple[str, str], ...], stopped: bool) -> None:
    """Maintain the tables of the pipeline FILE now: rewrite small files, expire old versions, delete orphans.

    Running pipelines do it by themselves, unless [maintenance] of their file says otherwise. Both may run at once,
    except on Delta tables in S3.
    """
    pipeline = _read(file)
    with _one_line_errors(file):
        _refuse_parquet(pipeline, "a table of format parquet has no old versions, and is not rewritten")
        _refuse_beside_others(pipeline, stopped=stopped)
        _check_versions(pipeline)
        spark = _build_session(pipeline, master, settings)
    console = Console()
    try:
        with console.status(f"{pipeline.name}: maintenance"):
            for line in maintain_now(spark, pipeline):
                console.print(line, highlight=False)
    except PipelineError as error:
        raise click.ClickException(f"{file}: {error}") from error
    except PySparkException as error:
        raise click.ClickException(f"the maintenance failed: {reason_of(error)}") from error
    except KeyboardInterrupt:
        silence_shutdown(spark)
        click.echo("stopped; nothing is lost, and the next maintenance does the rest", err=True)
    finally:
        spark.stop()


@main.command(short_help="Put a pipeline's dead letters back that can be decoded now, each exactly once.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--where", help="Only dead letters that fit this SQL condition, such as \"error LIKE 'n: %'\".")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be put back, and why others would not.")
@click.option("--master", help="Where Spark runs. Default: the file's, else all cores of this machine.")
@click.option("--conf", "settings", type=PAIR, multiple=True, help="Settings of the Spark session.")
@click.option("--stopped", is_flag=True, help="The pipeline does not run meanwhile; needed for Delta tables in S3.")
def replay(
    *,
    file: Path,
    where: str | None,
    dry_run: bool,
    master: str | None,
    settings: tuple[tuple[str, str], ...],
    stopped: bool,
) -> None:
    """Decode the dead letters of the pipeline FILE again, as FILE says now, and move those that fit into its table.

    Mend the schema or the settings first, or the values in the dead-letter table. What still does not fit stays a dead
    letter.
    Each record is put back exactly once, however often this runs. The pipeline may run meanwhile, except on Delta
    tables in S3.
    """
    pipeline = _read(file)
    with _one_line_errors(file):
        _refuse_parquet(pipeline, "dead letters of format parquet cannot be deleted one by one, so none is put back")
        if not pipeline.has_dead_letters:
            raise SettingError("decode.format", "nothing is decoded, so this pipeline has no dead letters")
        if not dry_run:
            _refuse_beside_others(pipeline, stopped=stopped)
        _check_versions(pipeline)
        spark = _build_session(pipeline, master, settings)
    console = Console()
    try:
        with _one_line_errors(file), console.status(f"{pipeline.name}: dead letters"):
            found = replay_now(spark, pipeline, where, dry_run=dry_run)
        show_replayed(pipeline, found, console, dry_run=dry_run)
    except PySparkException as error:
        raise click.ClickException(f"the replay failed: {reason_of(error)}{hint_of(str(error))}") from error
    except KeyboardInterrupt:
        silence_shutdown(spark)
        click.echo("stopped; nothing is lost, and the next replay does the rest", err=True)
    finally:
        spark.stop()


def show_replayed(pipeline: PipelineSettings, found: Replayed, console: Console, *, dry_run: bool) -> None:
    """Print the outcome of a replay."""
    if not found.total:
        topic = pipeline.dead_letters.topic
        place = pipeline.dead_letter_place if topic is None else f"topic {topic}"
        console.print(f"{place}: no dead letters to put back", highlight=False)
        return
    done = "can be put back" if dry_run else f"put back into {pipeline.table_place}"
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


@main.command(short_help="Show what a pipeline has done, and how far it is behind its topics.")
@click.argument("file", type=click.Path(path_type=Path))
@output_option
def status(*, file: Path, output: str) -> None:
    """Show the last micro-batch of the pipeline FILE and its lag, from its checkpoint and the brokers.

    It starts no Java, and works whether the pipeline runs or not. The checkpoint must be a folder of this machine.
    """
    pipeline = _read(file)
    now_ms = time.time_ns() // 1_000_000
    with _one_line_errors(file):
        try:
            found = read_status(pipeline, now_ms)
        except ClientError as error:
            raise click.ClickException(str(error)) from error
    emit(output, found, lambda console: show_status(found, now_ms, console))


@main.command(short_help="Fetch the jars that Spark needs, and print their paths.")
@click.option("--s3", is_flag=True, help="Also fetch those for files in S3 (s3a://).")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice([TableFormat.ICEBERG.value, TableFormat.DELTA.value]),
    help="Only this format of tables; may be repeated. Default: all that this Spark has.",
)
def jars(*, s3: bool, formats: tuple[str, ...]) -> None:
    """Fetch jars for this version of Spark, and print their paths with commas between them, as for spark-submit --jars.

    They come from the registries that Maven, or Spark's Ivy, is set up for, and stay in the user's cache, where
    `ingest` and the other commands find them: those need no network afterwards.
    """
    version = installed_spark_version()
    try:
        chosen = formats or tuple(TABLE_JARS[spark_line(version)])
        wanted = [*kafka_source_jars(version), *(jar for each in chosen for jar in table_jars(version, each))]
        wanted += JDBC_JARS.values()
        wanted += s3_jars(version) if s3 else ()
        folder = jars_folder(version)
        with Console(stderr=True).status(f"fetching jars for Spark {version} into {folder}"):
            found = fetch_jars(wanted, folder)
    except (FetchError, SparkVersionError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(",".join(map(str, found)))


def _read(file: Path) -> PipelineSettings:
    try:
        pipeline = read_pipeline(file)
        for own in map(pipeline.for_topic, pipeline.source.topics if pipeline.has_table_per_topic else (None,)):
            read_schema_file(own.decode, "decode")
            read_schema_file(own.key, "key")
    except PipelineError as error:
        raise PipelineFileError(located(error, file)) from error
    return pipeline


@contextmanager
def _one_line_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except SettingError as error:
        raise PipelineFileError(located(error, file)) from error
    except (
        BrokerError,
        JavaNotFoundError,
        PipelineError,
        SessionError,
        SparkNotFoundError,
        SparkVersionError,
    ) as error:
        raise click.ClickException(str(error)) from error


def _refuse_parquet(pipeline: PipelineSettings, why: str) -> None:
    if pipeline.table.format is TableFormat.PARQUET:
        raise SettingError("table.format", why)


def _refuse_beside_others(pipeline: PipelineSettings, *, stopped: bool) -> None:
    places = {"table.location": pipeline.table.location, "dead_letters.location": pipeline.dead_letter_place}
    for name, place in places.items():
        if pipeline.table.format is TableFormat.DELTA and is_in_s3(place) and not stopped:
            raise SettingError(name, SEVERAL_WRITERS)


def _check_versions(pipeline: PipelineSettings) -> None:
    find_java_home()
    table_jars(installed_spark_version(), pipeline.table.format)


def _build_session(
    pipeline: PipelineSettings, master: str | None, settings: tuple[tuple[str, str], ...]
) -> SparkSession:
    return build_session(
        f"anabranch {pipeline.name}",
        master=master or pipeline.spark.master,
        settings={ANSI: "false", **_catalogs(pipeline), **pipeline.spark.conf, **dict(settings)},
        table_formats=[pipeline.table.format],
        s3=pipeline.uses_s3,
        jdbc_url=(pipeline.catalog.uri or "") if pipeline.catalog.type == "jdbc" else "",
    )


def check_client(pipeline: PipelineSettings) -> list[str]:
    """Check that brokers accept the pipeline's client, and have its topics. Raises BrokerError, SettingError.

    Returns the topics.
    """
    source = pipeline.source
    options = client_options(source)
    try:
        servers, properties = bootstrap_of(source, options), client_properties(options)
        found = check_brokers(servers, None if source.topic_pattern else source.topics, properties)
        if pipeline.dead_letters.topic is not None:
            check_brokers(servers, [pipeline.dead_letters.topic], properties)
    except PropertyError as error:
        name = "source.options" if source.client_config is None else "source.client_config"
        raise SettingError(name, str(error)) from None
    return matching(source.topic_pattern, found) if source.topic_pattern else found


def _catalogs(pipeline: PipelineSettings) -> dict[str, str]:
    return catalog_settings(pipeline) if pipeline.table.format is TableFormat.ICEBERG else {}


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
    """Return what to do, where the error text tells: about another driver, or records that are gone."""
    if any(word in text for word in ANOTHER_DRIVER):
        return " (does another driver run on the same checkpoint? Only one at a time may)"
    if "failOnDataLoss" in text:
        return " (to continue without them: source.fail_on_data_loss = false; a topic made anew needs a new checkpoint)"
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
