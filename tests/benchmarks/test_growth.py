"""Curves as tables and pictures, and the load generator against a node."""

import xml.etree.ElementTree as ET
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from benchmarks.growth import LOAD, TOPIC, GrowthNode
from benchmarks.lab.curves import Curve

REQUESTS = 50
PARTITIONS = 3


def curve(samples: dict[int, list[float]]) -> Curve:
    made = Curve("key", "Title", "things", ("cost us",))
    for point, values in samples.items():
        for value in values:
            made.add(point, {"cost us": value})
    return made


def test_the_table_has_medians_in_order() -> None:
    assert curve({10: [5, 1, 3], 1: [7.0]}).markdown().splitlines() == [
        "| things | cost us |",
        "|---|---|",
        "| 1 | 7.00 |",
        "| 10 | 3.00 |",
    ]


def test_rows_have_the_smallest_and_largest_sample() -> None:
    assert curve({10: [5, 1, 3]}).as_rows() == [{"name": "key.10.cost us", "value": 3, "min": 1, "max": 5}]


@pytest.mark.parametrize("samples", [{1: [1.0], 100: [2.0, 3.0]}, {0: [0.0], 50: [1.0]}])
def test_the_picture_is_xml_with_a_point_for_each_sample(samples: dict[int, list[float]]) -> None:
    root = ET.fromstring(curve(samples).svg())
    points = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(points) == sum(map(len, samples.values()))


def test_points_are_swept_up_and_down_in_turn() -> None:
    seen: list[int] = []
    made = Curve("key", "Title", "things", ())

    def measure(point: int) -> dict[str, float]:
        seen.append(point)
        return {"x": 1.0}

    made.sweep((1, 2), 2, measure, lambda _: None)
    assert seen == [1, 2, 2, 1]


@pytest.mark.slow
def test_each_request_of_a_load_is_an_acknowledged_batch(tmp_path: Path) -> None:
    load = replace(LOAD, partitions=PARTITIONS, connections=2, batch_bytes=1024, seconds=60, bytes_max=REQUESTS * 1024)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(PARTITIONS)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)])
    with ExitStack() as stack:
        node = GrowthNode(stack, tmp_path / "node", PARTITIONS, ("--wal-capacity-bytes", "16MiB"))
        done, cpu_s = node.run(load)
        with node.broker.connect() as connection:
            ends = [partition.offset for partition in connection.call(request).topics[0].partitions]
    assert done.requests == sum(ends) == REQUESTS
    assert min(ends) > 0, "every partition has its turn"
    assert done.bytes == REQUESTS * 1024
    assert cpu_s >= 0
