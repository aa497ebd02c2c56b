"""Status of a pipeline: its progress and lag, from its checkpoint and the brokers, without starting Java."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console

from anabranch.client.cluster import Place
from anabranch.client.errors import PropertyError, UnsupportedProperty
from anabranch.output import make_table, number_text, plain
from anabranch.spark.checkpoint_folder import local_folder, read_checkpoint
from anabranch.spark.freshness import LagReader, PartitionLag
from anabranch.spark.kafka_options import client_properties
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import client_options, source_options
from anabranch.times import age_text, second_text

FIGURES = ("partition", "done", "end", "lag", "lag in time")
"""Columns of numbers."""


class LagUnknown(Exception):
    """The lag of a pipeline cannot be looked up. The text says why."""


def lag_reader(pipeline: PipelineSettings) -> LagReader:
    """Return what looks up the lag of a pipeline.

    Raises LagUnknown if it has no broker, or one to which only Java's client can connect, and SettingError.
    """
    if pipeline.source.kind != "kafka":
        raise LagUnknown("the direct source has no broker to ask")
    options = source_options(pipeline.source)
    properties = client_properties(client_options(pipeline.source))
    committed = options["kafka.isolation.level"] == "read_committed"
    try:
        return LagReader(options["kafka.bootstrap.servers"], properties, committed=committed)
    except UnsupportedProperty as error:
        raise LagUnknown(str(error)) from None
    except PropertyError as error:
        name = "source.options" if pipeline.source.client_config is None else "source.client_config"
        raise SettingError(name, str(error)) from None


def read_status(pipeline: PipelineSettings, now_ms: int) -> dict[str, Any]:
    """Return the status of a pipeline as data. Raises PipelineError, ClientError."""
    state = read_checkpoint(local_folder(pipeline.checkpoint))
    partitions: list[dict[str, Any]] = []
    unknown: str | None = None
    if state is not None and state.batch_id is not None:
        lags: Mapping[Place, PartitionLag] = {}
        try:
            with closing(lag_reader(pipeline)) as reader:
                lags = reader.read(state.offsets, pipeline.source.topics)
        except LagUnknown as error:
            unknown = str(error)
        partitions = [
            _partition(place, state.offsets.get(place), lags.get(place), now_ms)
            for place in sorted({*state.offsets, *lags})
        ]
    counts = [each["lag"] for each in partitions if each["lag"] is not None]
    ages = [each["lag_ms"] for each in partitions if each["lag_ms"] is not None]
    planned = None if state is None else state.planned
    return {
        "pipeline": pipeline.name,
        "table": pipeline.table.place,
        "checkpoint": pipeline.checkpoint,
        "query": None if state is None else state.query_id,
        "batch": None if state is None else state.batch_id,
        "committed_ms": None if state is None else state.committed_ms,
        "planned": None if planned is None else {"batch": planned.number, "planned_ms": planned.planned_ms},
        "lag": sum(counts) if counts else None,
        "lag_ms": max(ages, default=None),
        "lag_unknown": unknown,
        "partitions": partitions,
    }


def _partition(place: Place, done: int | None, lag: PartitionLag | None, now_ms: int) -> dict[str, Any]:
    return {
        "topic": place[0],
        "partition": place[1],
        "done": done,
        "end": None if lag is None else lag.end,
        "lag": None if lag is None else lag.offsets,
        "lag_ms": None if lag is None else lag.age_ms(now_ms),
    }


def show_status(status: Mapping[str, Any], now_ms: int, console: Console) -> None:
    """Print a status for people."""
    console.print(f"[bold]{plain(status['pipeline'])}[/]  {plain(status['table'])}", soft_wrap=True)
    planned = status["planned"]
    if status["query"] is None:
        console.print(f"it has not run yet: there is no checkpoint in {plain(status['checkpoint'])}", soft_wrap=True)
        return
    if status["batch"] is None:
        console.print("no micro-batch is done yet", soft_wrap=True)
    else:
        committed_ms = status["committed_ms"]
        when = f"{second_text(committed_ms)}, {age_text(max(0, now_ms - committed_ms))} ago"
        console.print(f"micro-batch {status['batch']} was done at {when}", soft_wrap=True)
    if planned is not None:
        when = f"{second_text(planned['planned_ms'])}, {age_text(max(0, now_ms - planned['planned_ms']))} ago"
        console.print(
            f"micro-batch {planned['batch']} was planned at {when}, and is not done: "
            f"it is being written, or its driver has stopped",
            soft_wrap=True,
        )
    if status["partitions"]:
        _show_partitions(status, console)


def _show_partitions(status: Mapping[str, Any], console: Console) -> None:
    if status["lag_unknown"] is not None:
        console.print(f"the lag is not known: {plain(status['lag_unknown'])}", soft_wrap=True)
    elif status["lag"] is not None:
        console.print(f"lag {status['lag']:,} offsets, {age_text(status['lag_ms'])}", soft_wrap=True)
    table = make_table("topic", *FIGURES, right=FIGURES, whole=FIGURES)
    for each in status["partitions"]:
        figures = [number_text(each[name]) for name in ("done", "end", "lag")]
        table.add_row(plain(each["topic"]), str(each["partition"]), *figures, age_text(each["lag_ms"]))
    console.print(table)
    for each in status["partitions"]:
        if each["end"] is not None and each["done"] is not None and each["done"] > each["end"]:
            name = f"{plain(each['topic'])}-{each['partition']}"
            console.print(
                f"{name} ends before what is done of it: the topic has been created anew since", soft_wrap=True
            )
