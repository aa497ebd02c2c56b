"""Dashboards, rules and the page of metrics: current, and each query finds data in a real Prometheus beside a node."""

import asyncio
import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from anabranch.broker.operator.admin.metrics.documentation import PAGE, page
from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection
from anabranch.client.share import ShareMember
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from benchmarks.lab.processes import free_port
from scripts.dashboards import DASHBOARDS, FOLDER, grafana
from tests.broker.api.handlers.test_client_quotas import alter
from tests.support import tools
from tests.support.certificates import Authority
from tests.support.node import NodeProcess
from tests.support.raw_client import batch_of, raw_client
from tests.support.tables import QUICK
from tests.support.waiting import WAIT_S, expect_before, wait_until

RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "anabranch-rules.yml"
TESTS: Final = RULES.with_name("anabranch-rules.test.yml")
EXAMPLE: Final = RULES.with_name("prometheus.yml")
ALERTS: Final = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
LIMIT: Final = re.compile(r" [<>] [\d. *]+$")
"""The end of an alert's expression. Without it, the rest is the value that is compared."""
VARIABLES: Final = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m"}
TIMEOUT_S: Final = 60


# files


def test_the_dashboards_are_current() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{each.uid}.json" for each in DASHBOARDS}
    for each in DASHBOARDS:
        assert (FOLDER / f"{each.uid}.json").read_text(encoding="utf-8") == grafana(each)


def test_the_page_lists_all_metrics_and_alerts() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run python -m anabranch.broker.operator.admin.metrics.documentation"
    assert re.findall(r"^\| `(Anabranch\w+)` \|", text, re.MULTILINE) == ALERTS


@pytest.mark.slow
def test_each_alert_fires_in_a_test_of_promtool() -> None:
    promtool = tools.prometheus("promtool")
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts:", TESTS.read_text(encoding="utf-8")))
    assert tested == set(ALERTS)
    for command in (("check", "rules", RULES), ("check", "config", EXAMPLE), ("test", "rules", TESTS)):
        done = subprocess.run((promtool, *command), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# queries


class Monitored:
    """A node that a Prometheus scrapes."""

    def __init__(self, folder: Path, node: NodeProcess, member: ShareMember) -> None:
        self.node = node
        self.member = member
        self.address = f"127.0.0.1:{free_port()}"
        targets = {"job_name": "anabranch", "static_configs": [{"targets": [node.admin]}]}
        config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [targets],
        }
        self.config = folder / "prometheus.yml"
        self.config.write_text(json.dumps(config))
        self.data = folder / "prometheus"

    def command(self) -> Sequence[str | Path]:
        """The command of its Prometheus."""
        flags = {"config.file": self.config, "storage.tsdb.path": self.data, "web.listen-address": self.address}
        return [tools.prometheus(), *(f"--{name}={value}" for name, value in flags.items()), "--log.level=error"]

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of Prometheus."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        """True if its Prometheus answers."""
        try:
            self.ask("query", query="1")
        except OSError:
            return False
        return True

    def has_data(self, query: str) -> bool:
        """True if a query finds a series with a number."""
        found = self.ask("query", query=query)["result"]
        return any(not math.isnan(float(series["value"][1])) for series in found)

    async def load(self) -> None:
        """Produce and commit an offset."""
        async with raw_client(self.node.bootstrap) as client:
            answer = await client.produce("t", [batch_of(b"x" * 1000)])
            assert answer.responses[0].partition_responses[0].error_code == 0
            await client.commit_offset("readers", "t", 0, 1)

    async def prepare(self) -> None:
        """Create a topic that is a published table, and a quota that nobody reaches; wait for the coordinator."""
        async with raw_client(self.node.bootstrap) as client:
            wanted = {**QUICK, "table.publish": "lake"}
            configs = [CreatableTopicConfig(name=name, value=value) for name, value in wanted.items()]
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
            await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
            await alter(client, {"client-id": "raw"}, producer_byte_rate=1e9)
            await client.call(FindCoordinatorRequest(coordinator_keys=["readers"]))

    def wait_for_data(self, queries: Sequence[str]) -> None:
        """Keep the node busy until each query has found data."""
        end = time.monotonic() + WAIT_S
        while queries := [each for each in queries if not self.has_data(each)]:
            expect_before(end, f"no data for {queries}")
            self.member.fetch(1, 0)
            asyncio.run(self.load())


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    tools.prometheus()
    folder = tmp_path_factory.mktemp("monitored")
    issued = Authority(folder / "ca").issue("node", days=(-1, 100))
    config = folder / "node.toml"
    config.write_text(f'[table_catalogs.lake]\ntype = "jdbc"\nuri = "sqlite:///{folder}/lake.db"\n')
    files = {"ssl_certificate_file": issued.certificate, "ssl_key_file": issued.key, "config": config}
    listeners = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
    with (
        NodeProcess(folder, listeners=listeners, storage_upload_age_ms=1000, **files) as node,
        Cluster(node.bootstrap, Connection) as cluster,
    ):
        made = Monitored(folder, node, ShareMember(cluster, "workers", ["t"]))
        process = subprocess.Popen(made.command())
        try:
            wait_until(lambda: process.poll() is not None or made.answers(), "Prometheus answers")
            assert process.poll() is None
            asyncio.run(made.prepare())
            yield made
        finally:
            process.terminate()
            process.wait()


@pytest.mark.interop
def test_each_query_of_a_dashboard_finds_data(monitored: Monitored) -> None:
    queries = []
    for path in sorted(FOLDER.iterdir()):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            queries += [target["expr"] for target in panel["targets"]]
    assert len(queries) > 50
    for name, value in VARIABLES.items():
        queries = [each.replace(name, value) for each in queries]
    monitored.wait_for_data(queries)


@pytest.mark.interop
def test_each_rule_finds_data_and_no_alert_fires_on_a_node_in_order(monitored: Monitored) -> None:
    rules = [rule for group in monitored.ask("rules")["groups"] for rule in group["rules"]]
    alerts = [rule for rule in rules if rule["type"] == "alerting"]
    assert {rule["name"] for rule in alerts} == set(ALERTS)
    assert all(LIMIT.search(rule["query"]) for rule in alerts), "an alert compares a value with a number"
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    monitored.wait_for_data([*recorded, *(LIMIT.sub("", rule["query"]) for rule in alerts)])
    # A scrape that took too long makes the alert of an unreachable node pending until the next one.
    wait_until(lambda: monitored.ask("alerts")["alerts"] == [], "no alert is active")
    rules = [rule for group in monitored.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
