"""Warm-up, steps, and results of the benchmark beside Apache Kafka."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.lab.report import GOALS, markdown, results_of, rows_of, write_json
from benchmarks.lab.session import Plan, expected_step_s, stands_still
from benchmarks.lab.steps import upload_cycle_bytes
from benchmarks.produce_fetch import FULL, QUICK, chosen

KEY = "produce.16p.256KiB"
ROUNDS = {
    KEY: {
        "anabranch": {0: {"mb_per_s": 100.0, "p99_ms": 1.0}, 1: {"mb_per_s": 200.0}, 2: {"mb_per_s": 500.0}},
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
    assert rows["mb_per_s", "anabranch"].result.value == 200.0
    assert rows["mb_per_s", "ratio"].rounds == [1.0, 2.0]
    assert rows["p99_ms", "ratio"].rounds == [0.5]
    assert rows["p99_ms", "ratio"].result.met is True
    assert rows["mb_per_s", "ratio"].result.met is False


def test_the_file_has_the_values_of_all_rounds_and_the_failures(tmp_path: Path) -> None:
    write_json(tmp_path / "out.json", results_of(rows_of(ROUNDS, "anabranch", ["Apache Kafka"])), ["it fell"])
    *rows, failure = json.loads((tmp_path / "out.json").read_text())
    assert failure == {"failure": "it fell"}
    assert rows[0]["name"] == f"{KEY}.mb_per_s.anabranch"
    assert rows[0]["rounds"] == [100.0, 200.0, 500.0]


def test_the_table_marks_missed_goals() -> None:
    text = markdown(rows_of(ROUNDS, "anabranch", ["Apache Kafka"]), "anabranch", ["Apache Kafka"], "1.2")
    assert "| produce.16p.256KiB | **1.50 (1.00-2.00)** [>= 2] |  | 0.50 [<= 0.7] |  |\n" in text
    assert "Native part: 1.2." in text


def test_the_table_has_columns_for_each_other_broker() -> None:
    rounds = {KEY: {**ROUNDS[KEY], "flushed": {1: {"mb_per_s": 50.0, "cpu_s_per_gb": 3.0}}}}
    peers = ["Apache Kafka", "flushed"]
    text = markdown(rows_of(rounds, "anabranch", peers), "anabranch", peers, "1.2")
    assert "| p99.9 | over flushed: throughput | CPU per GB | p99 |\n|---|---|---|---|---|---|---|---|\n" in text
    assert " | 0.50 [<= 0.7] |  | 4.00 |  |  |\n" in text


def test_an_upload_cycle_follows_the_nodes_flags() -> None:
    flags = ["--wal-capacity-bytes=300MiB", "--storage-log-cache-bytes=3GiB"]
    assert upload_cycle_bytes(flags) == 100 << 20
    assert upload_cycle_bytes([*flags, "--storage-upload-bytes=7MiB"]) == 7 << 20


def options(**given: object) -> Namespace:
    return Namespace(**{"flag": [], "quick": False, "all": False, "only": None, **given})


def test_steps_are_chosen_by_their_beginning() -> None:
    keys = [step.key for step in chosen(FULL, options(only=["steady", "e2e"]))]
    assert keys == ["steady.10MBps", "e2e", "steady.half"]
    with pytest.raises(SystemExit, match="unknown step jump"):
        chosen(FULL, options(only=["jump"]))


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_steps_without_a_goal_need_all(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [step.key for step in chosen(plan, options())]
    assert f"leaves out {', '.join(plan.left_out)}" in capsys.readouterr().out
    everything = [step.key for step in chosen(plan, options(all=True))]
    assert [key for key in everything if key not in plan.left_out] == keys
    assert set(plan.left_out) <= set(everything)


def test_each_step_with_a_goal_is_in_the_full_run_which_fits_into_50_minutes() -> None:
    steps = chosen(FULL, options())
    keys = {step.key for step in steps}
    assert {key.removeprefix("produce.").removeprefix("fetch.") for key in GOALS} == keys
    expected_s = FULL.warm_up_s + sum(expected_step_s(step, FULL, FULL.rounds) for step in steps)
    assert expected_s < 50 * 60
