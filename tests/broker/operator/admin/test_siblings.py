"""One page of metrics for all nodes of one start."""

import asyncio
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.operator.admin.metrics.exposition import DEFINITIONS, Exposition, scrape
from anabranch.broker.operator.admin.metrics.siblings import MetricsOfNode, merged
from anabranch.protocol.messages.internal.describe_metrics import DescribeMetricsRequest, DescribeMetricsResponse
from tests.support.node import running_node, settings_for


def _answers(**bodies: bytes) -> Mapping[int, DescribeMetricsResponse]:
    return {int(name[1:]): DescribeMetricsResponse(body=zlib.compress(body)) for name, body in bodies.items()}


async def test_each_family_is_there_once_and_each_sample_names_its_node() -> None:
    own = b'# HELP a_total A.\n# TYPE a_total counter\na_total 1.0\n# HELP b B.\n# TYPE b gauge\nb{x="} {"} 2.0\n'
    other = (
        b"# HELP c C.\n# TYPE c gauge\nc{} 3.0\n# HELP a_total A.\n# TYPE a_total counter\na_total 4.0\n"
        b'# HELP "d.e" D.\n# TYPE "d.e" gauge\n{"d.e"} 5.0\n{"d.e",x="y"} 6.0\n'
    )
    found = await merged(Exposition("text/plain", own), 1, _answers(n2=other))
    assert found.body.decode().splitlines() == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        'a_total{node="1"} 1.0',
        'a_total{node="2"} 4.0',
        "# HELP b B.",
        "# TYPE b gauge",
        'b{node="1",x="} {"} 2.0',
        "# HELP c C.",
        "# TYPE c gauge",
        'c{node="2"} 3.0',
        '# HELP "d.e" D.',
        '# TYPE "d.e" gauge',
        '{"d.e",node="2"} 5.0',
        '{"d.e",node="2",x="y"} 6.0',
    ]
    assert found.body.endswith(b"\n")


def test_no_metric_has_the_label_that_is_added() -> None:
    assert [each.name for each in DEFINITIONS if "node" in each.labels] == []


@pytest.mark.parametrize(
    ("accept", "parse"), [("", families), ("application/openmetrics-text; version=1.0.0", open_families)]
)
async def test_metrics_of_two_nodes_can_be_read(tmp_path: Path, accept: str, parse: type) -> None:
    async with running_node(tmp_path) as node:
        own, answer = (
            await scrape(node, accept),
            await MetricsOfNode(node).describe(DescribeMetricsRequest(accept=accept)),
        )
        before = [each.name for each in parse(own.body.decode())]
        found = await merged(own, 1, {2: answer})
        after = list(parse(found.body.decode()))
    assert [each.name for each in after] == before
    assert {sample.labels["node"] for each in after for sample in each.samples} == {"1", "2"}


@pytest.mark.parametrize(("sibling", "status"), [(2, 503), (0, 200)])
async def test_the_port_of_the_first_node_tells_when_another_one_is_away(
    tmp_path: Path, sibling: int, status: int
) -> None:
    environment = Environment(siblings=frozenset({sibling}))
    async with run_node(settings_for(tmp_path), environment=environment) as node:

        def ask(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://{node.ports.admin_address}{path}") as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        found, reason = await asyncio.to_thread(ask, "/health")
        assert found == status
        assert ("2 do not serve" in reason) == (status == 503)
        ready, _ = await asyncio.to_thread(ask, "/health/ready")
        assert ready == 200, "clients are served"
        found, page = await asyncio.to_thread(ask, "/metrics")
        assert found == 200
        assert ('anabranch_node_epoch{node="1"}' in page) == (status == 503), "it is one page of all nodes"
