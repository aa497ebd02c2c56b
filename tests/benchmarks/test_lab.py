"""Warm-up, steps, and results of the benchmark beside Apache Kafka."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.lab.report import LOWEST_GOALS, markdown, results_of, rows_of, write_json
from benchmarks.lab.session import stands_still
from benchmarks.lab.steps import all_steps, upload_cycle_bytes
from benchmarks.produce_fetch import FULL, QUICK, chosen

KEY = "produce.16p.256KiB"
ROUNDS = {
    KEY: {
        "anabranch": {0: {"mb_per_s": 100.0, "p99_ms": 1.0}, 1: {"mb_per_s": 300.0}, 2: {"mb_per_s": 500.0}},
        "Apache Kafka": {0: {"mb_per_s": 100.0, "p99_ms": 2.0}, 1: {"mb_per_s": 100.0}},
    }
}


@pytest.mark.parametrize(
    ("found", "still"),
    [
        ([], False),
        ([(1.0, 1.0), (1.0, 1.0)], False),
        ([(9.0, 9.0), (1.0, 2.0), (1.09, 2.0), (1.05, 2.1)], True),
        ([(1.0, 1.0), (1.0, 1.2), (1.0, 1.0)], False),
        ([(1.2, 1.0), (1.0, 1.0), (1.0, 1.0)], False),
    ],
)
def test_a_process_is_warm_when_the_last_three_units_agree(found: Sequence[tuple[float, float]], still: bool) -> None:
    assert stands_still(found) is still


def test_ratios_are_those_of_pairs_of_a_round() -> None:
    rows = {(row.figure, row.of): row for row in rows_of(ROUNDS, "anabranch", ["Apache Kafka"])}
    assert rows["mb_per_s", "anabranch"].result.value == 300.0
    assert rows["mb_per_s", "ratio"].rounds == [1.0, 3.0]
    assert rows["p99_ms", "ratio"].rounds == [0.5]
    assert rows["p99_ms", "ratio"].result.met is True
    assert rows["mb_per_s", "ratio"].result.met is False


def test_the_worst_round_has_a_goal_of_its_own() -> None:
    results = {result.name: result for result, _ in results_of(rows_of(ROUNDS, "anabranch", ["Apache Kafka"]))}
    lowest = results[f"{KEY}.mb_per_s.ratio.lowest"]
    assert (lowest.value, lowest.goal, lowest.met) == (1.0, LOWEST_GOALS[KEY], False)


def test_the_file_has_the_values_of_all_rounds_and_the_failures(tmp_path: Path) -> None:
    write_json(tmp_path / "out.json", results_of(rows_of(ROUNDS, "anabranch", ["Apache Kafka"])), ["it fell"])
    *rows, failure = json.loads((tmp_path / "out.json").read_text())
    assert failure == {"failure": "it fell"}
    assert rows[0]["name"] == f"{KEY}.mb_per_s.anabranch"
    assert rows[0]["rounds"] == [100.0, 300.0, 500.0]


def test_the_table_marks_missed_goals() -> None:
    text = markdown(rows_of(ROUNDS, "anabranch", ["Apache Kafka"]), "anabranch", ["Apache Kafka"])
    assert "**2.00 (1.00-3.00)**, goal >= 2.2, lowest >= 1.5" in text
    assert "| 0.50, goal <= 0.8 |" in text


def test_an_upload_cycle_follows_the_nodes_flags() -> None:
    flags = ["--wal-capacity-bytes=300MiB", "--storage-log-cache-bytes=3GiB"]
    assert upload_cycle_bytes(flags) == 100 << 20
    assert upload_cycle_bytes([*flags, "--storage-upload-bytes=7MiB"]) == 7 << 20


def test_steps_are_chosen_by_their_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [step.key for step in chosen(FULL, Namespace(flag=[], quick=False, only=["steady", "e2e"]))]
    assert keys == ["steady.10MBps", "steady.half", "e2e"]
    with pytest.raises(SystemExit, match="unknown step jump"):
        chosen(FULL, Namespace(flag=[], quick=False, only=["jump"]))
    quick = {step.key for step in chosen(QUICK, Namespace(flag=[], quick=True, only=None))}
    assert {step.key for step in all_steps(QUICK, [])} - quick == set(QUICK.left_out)
    assert "leaves out 100B, many, catchup, steady.half" in capsys.readouterr().out
