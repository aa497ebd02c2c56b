"""Command line of the Spark jobs: `anabranch spark`, `python -m anabranch.spark`, `spark/__main__.py` in spark-submit.

Importing PySpark takes a second of CPU, so it is imported when files, versions and brokers have been checked.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from anabranch.client.errors import ClientError, PropertyError
from anabranch.output import emit, output_option
from anabranch.spark.fetch import FetchError, fetch_jars
from anabranch.spark.jars import (
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
from anabranch.spark.java import JavaNotFoundError, SessionError, SparkNotFoundError, find_java_home
from anabranch.spark.pipeline.errors import PipelineError, SettingError
from anabranch.spark.pipeline.names import matching
from anabranch.spark.pipeline.schema_file import read_schema_file
from anabranch.spark.pipeline.sections import TableFormat, TriggerSection, is_in_s3
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.toml_file import located, read_pipeline
from anabranch.spark.storage_commands import compact, session_options, verify
from anabranch.spark.table_command import table

SEVERAL_WRITERS = (
    "two writers of a Delta table in S3 can lose each other's commits: stop the pipeline, and say --stopped"
)
NOTHING_LOST = "nothing is lost, and the next {} does the rest"


class PipelineFileError(click.ClickException):
    """A missing or invalid pipeline file. The exit code is that of a node with a bad settings file."""

    exit_code = 2


@click.group(name="spark", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Spark jobs over topics."""


main.add_command(verify)
main.add_command(compact)
main.add_command(table)


@main.command(short_help="Copy topics into a table, each record exactly once.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Read what exists now and end, whatever the file's trigger is.")
@click.option("--check", is_flag=True, help="Only check the file, versions, brokers, schema, SQL and catalog.")
@session_options
def ingest(*, file: Path, once: bool, check: bool, master: str | None, settings: tuple[tuple[str, str], ...]) -> None:
    """Copy topics into a table as the TOML file FILE describes, each record exactly once."""
    pipeline = _read(file)
    with _one_line_errors(file):
        if once:
            pipeline = pipeline.model_copy(update={"trigger": TriggerSection()})
        _check_versions(pipeline)
        found = check_client(pipeline) if pipeline.source.kind == "kafka" else []
        from anabranch.spark import jobs
        from anabranch.spark.pipeline.check import check_pipeline

        again = "run the same command to continue from here"
        with jobs.session_for(pipeline, "the pipeline", master, dict(settings), after_interrupt=again) as spark:
            changes = check_pipeline(spark, pipeline, found)
            if not check:
                jobs.run_pipeline(spark, pipeline, Console())
                return
    for change in changes:
        click.echo(f"{file}: {change}")
    click.echo(f"{file}: ready to run")


@main.command(short_help="Expire old versions of a pipeline's tables, and delete what nothing needs.")
@click.argument("file", type=click.Path(path_type=Path))
@session_options
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
        from anabranch.spark import jobs

        rest = NOTHING_LOST.format("maintenance")
        with jobs.session_for(pipeline, "the maintenance", master, dict(settings), after_interrupt=rest) as spark:
            jobs.maintain(spark, pipeline, Console())


@main.command(short_help="Put a pipeline's dead letters back that can be decoded now, each exactly once.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--where", help="Only dead letters that fit this SQL condition, such as \"error LIKE 'n: %'\".")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be put back, and why others would not.")
@session_options
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

    Correct the schema or the settings first, or the values in the dead-letter table. Records that still do not fit stay
    dead letters. Each record is put back exactly once, however often this runs. The pipeline may run meanwhile, except
    on Delta tables in S3.
    """
    pipeline = _read(file)
    with _one_line_errors(file):
        _refuse_parquet(pipeline, "dead letters of format parquet cannot be deleted one by one, so none is put back")
        if not pipeline.has_dead_letters:
            raise SettingError("decode.format", "nothing is decoded, so this pipeline has no dead letters")
        if not dry_run:
            _refuse_beside_others(pipeline, stopped=stopped)
        _check_versions(pipeline)
        from anabranch.spark import jobs

        rest = NOTHING_LOST.format("replay")
        with jobs.session_for(pipeline, "the replay", master, dict(settings), after_interrupt=rest) as spark:
            jobs.replay(spark, pipeline, where, Console(), dry_run=dry_run)


@main.command(short_help="Show what a pipeline has done, and how far it is behind its topics.")
@click.argument("file", type=click.Path(path_type=Path))
@output_option
def status(*, file: Path, output: str) -> None:
    """Show the last micro-batch of the pipeline FILE and its lag, from its checkpoint and the brokers.

    It starts no Java, and works whether the pipeline runs or not. The checkpoint must be a folder of this machine.
    """
    pipeline = _read(file)
    from anabranch.spark.status import read_status, show_status

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
        for own in map(pipeline.for_topic, pipeline.source.topics if pipeline.table.is_per_topic else (None,)):
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
    except (JavaNotFoundError, PipelineError, SessionError, SparkNotFoundError, SparkVersionError) as error:
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


def check_client(pipeline: PipelineSettings) -> list[str]:
    """Check that brokers accept the pipeline's client, and have its topics. Raises BrokerError, SettingError.

    Returns the topics.
    """
    from anabranch.spark.kafka_options import client_properties
    from anabranch.spark.pipeline.source_options import bootstrap_of, client_options
    from anabranch.spark.preflight import check_brokers

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
