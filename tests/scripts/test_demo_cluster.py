"""Parts of the cluster's demo that need no cluster: its picture, and the settings of its last check."""

import logging
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from scripts.demo_cluster import __main__ as demo
from scripts.demo_cluster.__main__ import toml_of
from scripts.demo_cluster.clients import Sample
from scripts.demo_cluster.picture import COLOURS, Timeline, rates
from scripts.tools import Tool

SVG = "{http://www.w3.org/2000/svg}"


def test_rates_are_counts_per_second() -> None:
    points = [(0.25 * step, 100 * step) for step in range(8)]
    assert rates(points) == [(1.0, 400.0), (1.25, 400.0), (1.5, 400.0), (1.75, 400.0)]
    assert rates(points[:3]) == []


def test_the_picture_has_each_life_event_and_curve() -> None:
    samples = [Sample(0.5 * step, 10 * step, {"t": step}, Counter({1: 4, 3: 2})) for step in range(20)]
    timeline = Timeline({1: [(0, 3), (6, 10)], 3: [(0, 10)]}, [(3, "kill -9 node 1")], samples, [(4.0, 7)])
    drawn = ET.fromstring(timeline.svg())
    texts = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"node 1", "node 3", "kill -9 node 1", "partitions led", "t: read/s"} <= texts
    colours = Counter(rect.get("fill") for rect in drawn.iter(f"{SVG}rect") if rect.get("height") == "14")
    assert colours == {COLOURS[0]: 2, COLOURS[2]: 1}


def test_an_empty_timeline_can_be_drawn() -> None:
    assert ET.fromstring(Timeline().svg()).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--data-dir=/d/node"], {"node": {"data_dir": "/d/node"}}),
        (
            ["--catalog-url=postgresql://u@h:1/d", "--objects-store=s3", "--objects-bucket=b"],
            {"catalog": {"url": "postgresql://u@h:1/d"}, "objects": {"store": "s3", "bucket": "b"}},
        ),
    ],
)
def test_flags_become_a_settings_file(flags: list[str], expected: dict[str, dict[str, str]]) -> None:
    assert tomllib.loads(toml_of(flags)) == expected


def test_without_its_programs_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Tool("kafka", "Apache Kafka", lambda: tmp_path, lambda _work: None)
    gone = Tool("s3", "S3 server", lambda: None, lambda _work: None)
    monkeypatch.setattr(demo, "TOOLS", (there, gone))
    monkeypatch.setattr(logging, "disable", lambda: None)  # it is for the whole process, and for later tests
    assert demo.main(["--folder", str(tmp_path / "demo")]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "it needs Go (it builds the S3 server), Maven" in said
    assert said.endswith("missing, see above: S3 server")
