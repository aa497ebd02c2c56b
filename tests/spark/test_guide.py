"""The guide by task in docs/spark.md: each of its files and commands, in its order, with the output that it shows."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from anabranch.spark import cli
from tests.support.node import NodeProcess

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```(toml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANYTHING = "…"
SPARK = "anabranch spark "


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block of the section."""
    (section,) = re.findall(r"^## By task\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    for found in BLOCK.finditer(section):
        yield found[1], found[2]


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, and the lines of its output."""
    for command in block.split("$ ")[1:]:
        first, *output = command.splitlines()
        yield first, output


def is_shown(shown: list[str], output: list[str]) -> bool:
    """Return whether the document shows an output: `…` is a part of a line, or alone any lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == ANYTHING else ".*".join(map(re.escape, line.split(ANYTHING))) + r"\n" for line in shown
    )
    text = "".join(f"{' '.join(line.split())}\n" for line in output if line.strip())
    return re.fullmatch(" ".join(pattern.split(r"\ \ ")), text) is not None


def test_the_guide(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_args, **_more: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    monkeypatch.chdir(tmp_path)
    shell = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    # The one session of all tests has catalogs of other tests, too.
    text = DOCUMENT.read_text().replace("lake.shop", "guide.shop")
    done, wrong = 0, []
    with NodeProcess(tmp_path, storage_upload_age_ms=100) as node:
        shell["KAFKA_CLIENT_BOOTSTRAP_SERVERS"] = node.bootstrap
        monkeypatch.setenv("KAFKA_CLIENT_BOOTSTRAP_SERVERS", node.bootstrap)
        for language, block in blocks(text):
            if language == "toml":
                title = re.match(r"# (\S+\.toml)\n", block)
                assert title is not None, block
                (tmp_path / title[1]).write_text(block)
                continue
            for command, shown in commands(block):
                if command.startswith(SPARK):
                    node.wait_uploaded()
                    result = CliRunner().invoke(cli.main, shlex.split(command.removeprefix(SPARK)))
                    code, output = result.exit_code, result.output
                else:
                    run = subprocess.run(
                        command, shell=True, env=shell, check=False, text=True, stdout=-1, stderr=subprocess.STDOUT
                    )
                    code, output = run.returncode, run.stdout
                done += 1
                if code or not is_shown(shown, output.splitlines()):
                    wrong.append(f"$ {command}\n{output}")
        assert not wrong, "\n".join(wrong)
        names = {row["name"] for row in spark.table("guide.shop.customers").select("data.name").collect()}
        cents = {row["cents"] for row in spark.table("guide.shop.orders").select("data.cents").collect()}
        archive = spark.table("guide.shop.archive").count()
    assert (done > 15, names, cents, archive) == (True, {"Ada Lovelace"}, {1950, 500, 3_000_000_000}, 4)
