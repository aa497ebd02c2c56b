"""`anabranch spark ...`: runs the jobs of the `spark` package, which the node never imports."""

import os
import sys
from importlib.util import find_spec

import click

from anabranch.extras import missing

PASS_ALL = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}


@click.command(name="spark", context_settings=PASS_ALL, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def spark(arguments: tuple[str, ...]) -> None:
    """Spark jobs over topics: see `anabranch spark --help`."""
    if find_spec("pyspark") is None:
        raise missing("a Spark job", "pyspark")
    os.execv(sys.executable, [sys.executable, "-m", "anabranch.spark", *arguments])  # noqa: S606 - no shell is wanted
